"""Hypothesis strategies for positions, dimensions and the options of each encoding; and what tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

import posenc
import sampling
from posenc.families import Matrices

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)
REALS = (torch.float32, torch.float64)
FAR = 1_000_000
# names of encodings for text, where a position is one number
TEXT = [name for name in posenc.names() if posenc.card(name).examples()[0].n_axes == 1]
# of these, all that a host model can construct of what it knows: LongRoPE's lists come from a search, and a graph is
# no text
HOSTED = [name for name in TEXT if name not in ("longrope", "graphormer")]


def check(examples: int = 40) -> settings:
    """Settings of one property, whose examples are counted for `--whole`; no deadline: torch's first call is slow."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    slow = [HealthCheck.too_slow]
    examples = max(round(examples * sampling.property_share), 5)
    return settings(max_examples=examples, deadline=None, phases=phases, suppress_health_check=slow)


@contextmanager
def refuses(kind: type[Exception], *words: str) -> Iterator[None]:
    """Expect an error whose message holds all the words.

    Under jaxtyping's import hook an argument of a wrong kind is stopped by the hook before the library sees it.
    """
    with pytest.raises((kind, jaxtyping.TypeCheckError)) as caught:
        yield
    if not isinstance(caught.value, jaxtyping.TypeCheckError):
        missing = [word for word in words if word not in str(caught.value)]
        assert not missing, f"{missing} not in: {caught.value}"


def randomise(encoding: Any, seed: int) -> Any:
    """Draw every parameter from N(0, 1), in float64."""
    random = torch.Generator().manual_seed(seed)
    encoding = encoding.double()
    for parameter in encoding.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return encoding


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw from N(0, 1)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dims() -> st.SearchStrategy[posenc.Dims]:
    """What a host may know of itself; head_dim is even and n_kv_heads divides n_heads."""
    groups, kv_heads = st.integers(1, 3), st.integers(1, 4)
    return st.builds(
        lambda d, g, kv, half, n: posenc.Dims(d_model=d, n_heads=g * kv, n_kv_heads=kv, head_dim=2 * half, max_len=n),
        st.integers(1, 8).map(lambda n: 2 * n),
        groups,
        kv_heads,
        st.integers(1, 8),
        st.integers(1, 64),
    )


@st.composite
def positions(
    draw: st.DrawFn,
    *,
    low: int = -FAR,
    high: int = FAR,
    real: bool = True,
    max_len: int = 6,
    n_axes: int = 1,
    batch: bool = True,
) -> Tensor:
    """Positions of every allowed kind in low..high: any integer dtype or real ones, plain or batched."""
    kind = draw(st.sampled_from(INTEGERS + REALS if real else INTEGERS))
    shape = [draw(st.integers(1, max_len))]
    if batch and draw(st.booleans()):
        shape.insert(0, draw(st.integers(1, 3)))
    if n_axes > 1:
        shape.append(n_axes)
    if kind.is_floating_point:
        values = st.floats(low, high, allow_nan=False, width=32 if kind == torch.float32 else 64)
    else:
        limits = torch.iinfo(kind)
        values = st.integers(max(low, limits.min), min(high, limits.max))
    count = int(torch.tensor(shape).prod())
    flat = draw(st.lists(values, min_size=count, max_size=count))
    wide = torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(flat, dtype=wide).to(kind).reshape(shape)


@st.composite
def images(draw: st.DrawFn, *, max_len: int = 6, batch: bool = True) -> Tensor:
    """Different places on a grid around (5, 5), in any order, and at most one token in a negative row."""
    cells = st.tuples(st.integers(4, 7), st.integers(4, 7))
    row = st.lists(cells, min_size=2, max_size=max_len, unique=True).map(lambda r: [(-1, 0), *r])
    rows = [draw(row) for _ in range(draw(st.integers(1, 3)) if batch else 1)]
    n = min(map(len, rows))
    pos = torch.tensor([r[:n] for r in rows])
    return pos if batch and draw(st.booleans()) else pos[0]


def bases() -> st.SearchStrategy[float]:
    """Bases from just above one to a million."""
    return st.sampled_from([10000.0, 500000.0, 100.0, 2.0, 1e6])


@st.composite
def _given(draw: st.DrawFn, n: int) -> dict[str, Any]:
    """No frequencies, or some of one's own."""
    if draw(st.booleans()):
        return {}
    values = st.floats(-2.0, 2.0, allow_nan=False, width=32)
    return {"inv_freq": draw(st.lists(values, min_size=n, max_size=n))}


@st.composite
def _rope(draw: st.DrawFn) -> dict[str, Any]:
    head_dim = 2 * draw(st.integers(1, 6))
    rotary_dim = draw(st.sampled_from([None, *range(2, head_dim + 1, 2)]))
    return {
        "head_dim": head_dim,
        "rotary_dim": rotary_dim,
        "base": draw(bases()),
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "rotary_side": draw(st.sampled_from(["first", "last"])),
        "trainable": draw(st.booleans()),
        "attention_factor": draw(st.sampled_from([1.0, 1.36])),
        "score_factor": draw(st.sampled_from([1.0, 1.87])),
        **draw(_given((rotary_dim or head_dim) // 2)),
    }


@st.composite
def _sinusoidal(draw: st.DrawFn) -> dict[str, Any]:
    d_model = draw(st.integers(1, 12))
    return {
        "d_model": d_model,
        "base": draw(bases()),
        "order": draw(st.sampled_from(["alternating", "concatenated"])),
        "exponent": draw(st.sampled_from(["paper", "tensor2tensor"])),
        "trainable": draw(st.booleans()),
        "learned_scale": draw(st.sampled_from([None, 0.5])),
        **draw(_given(-(-d_model // 2))),
    }


@st.composite
def _axial_rope(draw: st.DrawFn) -> dict[str, Any]:
    n_axes, share = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    spectrum = draw(st.sampled_from(["shared", "dealt"]))
    return {
        "head_dim": 2 * share * n_axes,
        "n_axes": n_axes,
        "spectrum": spectrum,
        "base": draw(bases()),
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "trainable": draw(st.booleans()),
        **draw(_given(share * (1 if spectrum == "shared" else n_axes))),
    }


@st.composite
def _mrope(draw: st.DrawFn) -> dict[str, Any]:
    sections = draw(st.lists(st.integers(0, 4), min_size=2, max_size=4).filter(any))
    n_pairs = sum(sections)
    room = [len(range(axis, sum(sections), len(sections))) for axis in range(len(sections))]
    fits = all(n <= r for n, r in zip(sections[1:], room[1:], strict=True))
    last = sorted(sections[1:], reverse=True) == sections[1:] and sections[1] - sections[-1] <= 1
    layouts: list[Any] = ["blocks"] + ["interleaved"] * fits + ["time_last", "time_unrotated"] * last
    layout = draw(st.sampled_from([*layouts, None]))
    if layout is None:  # a plan of one's own
        axes = st.sampled_from([*range(min(n_pairs, 3)), None])
        layout = tuple(draw(st.lists(axes, min_size=n_pairs, max_size=n_pairs).filter(lambda plan: {*plan} != {None})))
        sections = [layout.count(axis) for axis in range(3)]
    return {
        "head_dim": 2 * n_pairs + draw(st.integers(0, 3)),
        "rotary_dim": 2 * n_pairs,
        "rotary_side": draw(st.sampled_from(["first", "last"])),
        "sections": tuple(sections),
        "layout": layout,
        "base": draw(bases()),
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "attention_factor": draw(st.sampled_from([1.0, 1.25])),
        "score_factor": draw(st.sampled_from([1.0, 1.5])),
        "trainable": draw(st.booleans()),
        **draw(_given(n_pairs)),
    }


_LANES = {
    "base": bases(),
    "pairing": st.sampled_from(["half", "interleaved"]),
    "rotary_side": st.sampled_from(["first", "last"]),
}


@st.composite
def _stretched_rope(draw: st.DrawFn) -> dict[str, Any]:
    options = draw(st.fixed_dictionaries({"head_dim": _EVEN}, optional=_LANES | {"rotary_dim": st.just(2)}))
    n_pairs = options.get("rotary_dim", options["head_dim"]) // 2
    return options | draw(st.sampled_from([{}, {"inv_freq": [0.5**k for k in range(n_pairs)]}]))


@st.composite
def _longrope(draw: st.DrawFn) -> dict[str, Any]:
    n_pairs = draw(st.integers(1, 4))
    factors = st.lists(st.floats(1.0, 64.0, width=32), min_size=n_pairs, max_size=n_pairs).map(tuple)
    rest = {key: draw(strategy) for key, strategy in _LANES.items()}
    return rest | {
        "head_dim": 2 * n_pairs + draw(st.integers(0, 3)),
        "rotary_dim": 2 * n_pairs,
        "short_factors": draw(factors),
        "long_factors": draw(factors),
        "original_max_len": 100,
        "attention_factor": draw(st.sampled_from([1.0, 1.1])),
        "long_attention_factor": draw(st.sampled_from([None, 1.2])),
        "score_factor": draw(st.sampled_from([1.0, 1.87])),
        "length": draw(st.sampled_from([1, 100, 101, 5000])),
    }


@st.composite
def _grape_m(draw: st.DrawFn) -> dict[str, Any]:
    n_planes = draw(st.integers(1, 3))
    even = {"head_dim": 2 * n_planes, "n_planes": None}
    wider = {"head_dim": 2 * n_planes + draw(st.integers(0, 3)), "n_planes": n_planes}
    return {"n_kv_heads": draw(st.integers(1, 3)), "base": draw(bases()), **draw(st.sampled_from([even, wider]))}


@st.composite
def _nerf_fourier(draw: st.DrawFn) -> dict[str, Any]:
    n_axes, n_octaves = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    return {
        "d_model": 2 * n_axes * n_octaves + draw(st.integers(0, 3)),
        "n_axes": n_axes,
        "n_octaves": draw(st.sampled_from([n_octaves, None])),
        "extent": draw(st.sampled_from([1024.0, 100.0])),
    }


@st.composite
def _hierarchical(draw: st.DrawFn) -> dict[str, Any]:
    axes = draw(st.lists(st.sampled_from(["sinusoidal", "sine", "integer"]), min_size=2, max_size=3))
    return {
        "d_model": len(axes) * draw(st.integers(1, 4)),
        "axes": tuple(axes),
        "combine": draw(st.sampled_from(["sum", "concat"])),
    }


@st.composite
def _t5(draw: st.DrawFn) -> dict[str, Any]:
    bidirectional = draw(st.booleans())
    n_buckets = draw(st.integers(2, 20)) * (2 if bidirectional else 1)
    exact = (n_buckets // 2 if bidirectional else n_buckets) // 2
    return {
        "n_heads": draw(st.integers(1, 4)),
        "n_buckets": n_buckets,
        "max_distance": exact + draw(st.integers(1, 200)),
        "bidirectional": bidirectional,
        "score_scale": draw(st.sampled_from([None, 1.0, 0.125])),
    }


@st.composite
def _alibi(draw: st.DrawFn) -> dict[str, Any]:
    n_heads = draw(st.integers(1, 13))
    some = st.lists(st.integers(0, n_heads - 1), min_size=1, unique=True).map(tuple)
    heads = draw(st.one_of(st.none(), st.integers(1, n_heads), some))
    sloped = len(heads) if isinstance(heads, tuple) else heads or n_heads
    own = st.lists(st.floats(-1.0, 1.0, width=32), min_size=sloped, max_size=sloped).map(tuple)
    sides = draw(st.sampled_from(["symmetric", "one-sided", "key"]))
    return {
        "n_heads": n_heads,
        "heads": heads,
        "slopes": draw(st.one_of(st.sampled_from(["authors", "geometric", "learned"]), own)),
        "bias_max": draw(st.sampled_from([8.0, 16.0])),
        "sides": sides,
        "precision": draw(st.sampled_from([None, "falcon-bfloat16"] if sides == "key" else [None])),
    }


@st.composite
def _deberta(draw: st.DrawFn) -> dict[str, Any]:
    n_buckets = draw(st.integers(4, 12))
    return {
        "n_heads": draw(st.integers(1, 3)),
        "head_dim": draw(st.integers(1, 4)),
        "n_buckets": n_buckets,
        "max_distance": n_buckets // 2 + draw(st.integers(2, 50)),
        "terms": draw(st.sampled_from([("c2p", "p2c"), ("c2p",), ("p2c",)])),
    }


_TURNED = st.fixed_dictionaries(
    {"head_dim": st.integers(1, 3).map(lambda n: 2 * n)},
    optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"])},
)


def _turned(pieces: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _TURNED.map(lambda rope: pieces | rope)


@st.composite
def _dual_chunk(draw: st.DrawFn) -> dict[str, Any]:
    chunk = draw(st.integers(1, 9))
    return {"chunk": chunk, "local": draw(st.integers(0, chunk - 1)), **draw(_TURNED)}


_HEADS = st.integers(1, 13)
_WIDTH, _EVEN = st.integers(1, 12), st.integers(1, 6).map(lambda n: 2 * n)
_WINDOW, _WIDER = (st.tuples(*[st.integers(least, 6)] * 2) for least in (1, 2))
# of cameras: heads, matrices of the world, and a lens with a skew in pixels
_EIGHTS, _VIEWS = st.integers(1, 4).map(lambda n: 8 * n), st.integers(1, 30).map(posenc.PRoPE.spiral)
INTRINSICS = Matrices.read("tests", "intrinsics", ((300.0, 2.0, 120.0), (0.0, 280.0, 130.0), (0.0, 0.0, 1.0)), 3, (2,))
_OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "alibi": _alibi(),
    "axial_rope": _axial_rope(),
    "beit": st.fixed_dictionaries({"n_heads": st.integers(1, 4), "window": _WINDOW}),
    "binary": st.fixed_dictionaries({"d_model": st.integers(1, 70)}),
    "cape": st.fixed_dictionaries({"d_model": _WIDTH}, optional={"base": bases()}),
    "complex_order": st.fixed_dictionaries({"d_model": _EVEN}),
    "cope": st.fixed_dictionaries({"head_dim": st.integers(1, 4), "max_count": st.integers(1, 6)}),
    "dape": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 3), "width": st.integers(1, 5)},
        optional={"encoding": st.sampled_from(["alibi", "kerple_power", "sandwich", "t5"])},
    ),
    "deberta": _deberta(),
    "dual_chunk": _dual_chunk(),
    "dynamic_position_bias": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 3), "width": st.integers(1, 5), "depth": st.integers(1, 3)},
        optional={
            "log_distance": st.just(True),
            "n_axes": st.just(2),
            "norm": st.just(False),
            "activation": st.just("silu"),
        },
    ),
    "fire": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 4), "width": st.integers(1, 6)}, optional={"eps": st.just(0.1)}
    ),
    "fox": st.fixed_dictionaries({"d_model": _WIDTH, "n_heads": st.integers(1, 4)}),
    "decomposed_2d": st.fixed_dictionaries({"head_dim": st.integers(1, 6), "size": _WINDOW}),
    "graphormer": st.fixed_dictionaries(
        {
            "n_heads": st.integers(1, 4),
            "max_distance": st.integers(10, 14),
            "distances": st.integers(1, 30).map(posenc.Graphormer.tree),
        }
    ),
    "gta": st.fixed_dictionaries({"head_dim": _EIGHTS, "size": _WINDOW, "viewmats": _VIEWS}),
    "prope": st.fixed_dictionaries(
        {"head_dim": _EIGHTS, "viewmats": _VIEWS},
        optional={"base": bases(), "intrinsics": st.just(INTRINSICS), "image_size": st.just((240, 320))},
    ).map(lambda found: found if "image_size" in found else found | {"intrinsics": None}),
    "swin": st.fixed_dictionaries({"n_heads": st.integers(1, 4), "window": _WINDOW}),
    "swin_v2": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 4), "window": _WIDER, "width": _WIDTH}, optional={"pretrained_window": _WIDER}
    ),
    "cpvt": st.fixed_dictionaries({"d_model": _WIDTH}, optional={"kernel_size": st.sampled_from([1, 3, 5])}),
    "gaussian_fourier": st.fixed_dictionaries(
        {"d_model": _EVEN, "n_axes": st.integers(1, 3)},
        optional={"sigma": st.sampled_from([1.0, 10.0]), "extent": st.just(64.0), "seed": st.integers(0, 9)},
    ),
    "dynamic_ntk": st.fixed_dictionaries(
        {
            "head_dim": st.sampled_from([4, 6, 12]),
            "factor": st.sampled_from([1.0, 4.0]),
            "original_max_len": st.sampled_from([1, 100]),
        },
        optional=_LANES
        | {
            "length": st.sampled_from([1, 100, 101, 5000]),
            "rotary_dim": st.just(4),
            "attention_factor": st.just(1.1),
            "score_factor": st.just(1.87),
        },
    ).map(lambda options: {"length": 300} | options),
    "fope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": _EVEN, "original_max_len": st.sampled_from([7, 100, 4096])},
        optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"]), "init_gain": st.just(0.0)},
    ),
    "grape_a": st.fixed_dictionaries(
        {"n_heads": _HEADS, "head_dim": _WIDTH}, optional={"gates": st.sampled_from(["query", "key"])}
    ),
    "grape_ap": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_heads": _HEADS, "p_dim": st.sampled_from([2, 4, 6])},
    ),
    "grape_m": _grape_m(),
    "selective_rope": st.fixed_dictionaries(
        {
            "d_model": st.sampled_from([6, 12]),
            "n_kv_heads": st.integers(1, 3),
            "head_dim": _EVEN,
            "rank": st.integers(1, 4),
        },
        optional={"base": bases()},
    ),
    "liere": st.fixed_dictionaries(
        {"head_dim": st.just(12), "n_axes": st.integers(1, 3), "block": st.sampled_from([2, 3, 4])}
    ),
    "leaky_rerope": st.fixed_dictionaries(
        {"window": st.integers(1, 9), "factor": st.sampled_from([1.0, 3.0, 16.0])}
    ).flatmap(_turned),
    "longrope": _longrope(),
    "mhrope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 4), "head_dim": _EVEN},
        optional={
            "base": bases(),
            "sections": st.sampled_from([(1,), (0, 1), (0, 1, 0), (1, 0, 0)]),
            "pairing": st.sampled_from(["half", "interleaved"]),
        },
    ),
    "mixed_rope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": st.sampled_from([4, 8, 12])},
        optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"])},
    ),
    "p_rope": st.fixed_dictionaries(
        {"head_dim": _EVEN},
        optional={
            "share": st.sampled_from([0, 0.25, 0.75, 1.0]),
            "base": bases(),
            "pairing": st.sampled_from(["half", "interleaved"]),
        },
    ),
    "pope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": _WIDTH},
        optional={"base": bases(), "phase_init": st.sampled_from(["zero", "uniform"])},
    ),
    "rope_pp": st.fixed_dictionaries(
        {"n_heads": st.sampled_from([2, 4, 6]), "head_dim": _EVEN},
        optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"])},
    ),
    "retnet": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": _EVEN},
        optional={
            "base": bases(),
            "pairing": st.sampled_from(["half", "interleaved"]),
            "centre": st.sampled_from([0.0, 100.5, -30.0]),
        },
    ),
    "stretched_rope": _stretched_rope(),
    "hierarchical": _hierarchical(),
    "inkling": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_heads": st.integers(1, 4), "d_rel": st.integers(1, 3), "extent": st.integers(1, 9)},
        optional={"temperature": st.just(0.5), "original_max_len": st.sampled_from([1, 3])},
    ),
    "integer": st.fixed_dictionaries({"d_model": _WIDTH}),
    "kerple_power": st.fixed_dictionaries({"n_heads": _HEADS}),
    "learnable_fourier": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_axes": st.integers(1, 3)}, optional={"n_features": _EVEN, "hidden": _WIDTH}
    ),
    "learned_2d": st.fixed_dictionaries(
        {"d_model": st.integers(1, 6), "height": st.integers(1, 9), "width": st.integers(1, 9)},
        optional={"n_prefix": st.integers(0, 2)},
    ),
    "mrope": _mrope(),
    "nerf_fourier": _nerf_fourier(),
    "normalised": st.fixed_dictionaries(
        {"d_model": _WIDTH, "length": st.integers(1, 100)}, optional={"over": st.sampled_from(["length", "last"])}
    ),
    "sandwich": st.fixed_dictionaries({"n_heads": _HEADS}, optional={"width": _EVEN, "base": bases()}),
    "shaw": st.fixed_dictionaries(
        {"head_dim": st.integers(1, 6)}, optional={"max_distance": st.integers(0, 40), "max_ahead": st.integers(0, 9)}
    ),
    "sine": st.fixed_dictionaries(
        {"d_model": _WIDTH}, optional={"spectrum": st.sampled_from(["octaves", "geometric"]), "base": bases()}
    ),
    "sinusoidal_nd": st.fixed_dictionaries(
        {"d_model": st.integers(9, 20), "n_axes": st.integers(2, 3)},
        optional={
            "base": bases(),
            "order": st.sampled_from(["alternating", "concatenated"]),
            "exponent": st.sampled_from(["paper", "tensor2tensor"]),
        },
    ),
    "tape": st.fixed_dictionaries({"d_model": _WIDTH, "length": st.integers(1, 100)}, optional={"base": bases()}),
    "time2vec": st.fixed_dictionaries({"d_model": _WIDTH}),
    "kerple": st.fixed_dictionaries({"n_heads": _HEADS}),
    "learned": st.fixed_dictionaries(
        {"d_model": st.integers(1, 6), "max_len": st.integers(1, 60)}, optional={"offset": st.integers(0, 3)}
    ),
    "nope": st.just({}),
    "query_temperature": st.fixed_dictionaries(
        {"law": st.sampled_from(["llama4", "ministral", "log_n", "beam", "inkling"])},
        optional={"original_max_len": st.sampled_from([2, 100, 8192]), "weight": st.sampled_from([0.1, 0.5])},
    ),
    "relative_bias": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 4)}, optional={"max_distance": st.integers(0, 40)}
    ),
    "rerope": st.fixed_dictionaries({"window": st.integers(1, 9)}).flatmap(_turned),
    "rope": _rope(),
    "self_extend": st.fixed_dictionaries({"window": st.integers(1, 9), "group": st.integers(1, 5)}).flatmap(_turned),
    "sinusoidal": _sinusoidal(),
    "t5": _t5(),
    "tupe": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 3), "head_dim": st.integers(1, 4), "max_len": st.integers(1, 60)},
        optional={"untie_cls": st.just(False)},
    ),
    "transformer_xl": st.fixed_dictionaries(
        {
            "d_model": st.integers(1, 4).map(lambda n: 2 * n),
            "n_heads": st.integers(1, 3),
            "head_dim": st.integers(1, 4),
        },
        optional={"base": bases()},
    ),
    "vo_rope": st.fixed_dictionaries(
        {"head_dim": _EVEN}, optional=_LANES | {"rotary_dim": st.just(2), "inv_freq": st.just([0.3])}
    ).map(lambda found: found if "inv_freq" not in found else found | {"rotary_dim": 2}),
    "xpos": st.fixed_dictionaries(
        {"head_dim": st.integers(1, 6).map(lambda n: 2 * n)},
        optional={
            "base": bases(),
            "pairing": st.sampled_from(["half", "interleaved"]),
            "scale_base": st.sampled_from([512.0, 64.0]),
            "gamma": st.sampled_from([0.4, 1.0]),
            "centre": st.sampled_from([0.0, 100.5, -30.0]),
        },
    ),
}


def options(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return arguments that construct the encoding: drawn, or those of its card's example."""
    return _OPTIONS.get(name, st.just(dict(posenc.card(name).example)))


def draw_encoding(data: st.DataObject, name: str) -> Any:
    """Construct an encoding of that name with random learned tensors, in float64.

    In the test's body and not in a strategy, since beartype draws random numbers of its own.
    """
    arguments, seed = data.draw(options(name)), data.draw(st.integers(0, 2**20))
    return randomise(posenc.create(name, **arguments), seed)


def sites(encoding: Any, **limits: Any) -> st.SearchStrategy[Tensor]:
    """Return positions that this encoding accepts, up to a million where it has no bound of its own."""
    low, high = -FAR, FAR
    numbered = posenc.Swin, posenc.BEiT, posenc.Decomposed2D, posenc.Graphormer, posenc.PRoPE, posenc.GTA
    if isinstance(encoding, (posenc.Learned, posenc.Learned2D, posenc.TUPE, *numbered)):
        low, high = 0, encoding.max_len - 1
    if isinstance(encoding, posenc.Piecewise):  # nobody says how chunks and groups count below the first token
        low = 0
    if isinstance(encoding, posenc.DeBERTa):  # whose definition counts buckets one by one
        low, high = -2_000, 2_000
    if isinstance(encoding, posenc.CPVT):  # no two tokens of an image stand in one place
        return images(**{"max_len": 6} | limits)
    if isinstance(encoding, posenc.Binary):
        low, high = 0, 2 ** min(encoding.d_model, 62) - 1
    if isinstance(encoding, posenc.QueryTemperature):  # nobody says what is before the first token
        low = 0
    if isinstance(encoding, posenc.RetNet):
        low, high = -1_000, 1_000
    if isinstance(encoding, posenc.LieRE):  # an exponential of matrices of norm 10 times the position
        low, high = -100, 100
    if isinstance(encoding, posenc.XPos):  # lane sizes are powers of the position, and float64 ends
        low, high = -20_000, 20_000
    # fractions go through float32 on their way to bfloat16, and so may be rounded twice
    real = encoding.accepts_real and getattr(encoding, "precision", None) is None
    return positions(**{"low": low, "high": high, "real": real, "n_axes": encoding.n_axes} | limits)
