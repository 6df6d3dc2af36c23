"""Hypothesis strategies for the options of each encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import drawn_rotations
import posenc
from drawn_rotations import EVEN, LANES, bases
from posenc.families import Matrices


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


_HEADS = st.integers(1, 13)
_WIDTH = st.integers(1, 12)
_WINDOW, _WIDER = (st.tuples(*[st.integers(least, 6)] * 2) for least in (1, 2))
# of cameras: heads, matrices of the world, and a lens with a skew in pixels
_EIGHTS, _VIEWS = st.integers(1, 4).map(lambda n: 8 * n), st.integers(1, 30).map(posenc.PRoPE.spiral)
INTRINSICS = Matrices.read("tests", "intrinsics", ((300.0, 2.0, 120.0), (0.0, 280.0, 130.0), (0.0, 0.0, 1.0)), 3, (2,))
_OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "alibi": _alibi(),
    "axial_rope": drawn_rotations.axial_rope(),
    "beit": st.fixed_dictionaries({"n_heads": st.integers(1, 4), "window": _WINDOW}),
    "binary": st.fixed_dictionaries({"d_model": st.integers(1, 70)}),
    "cape": st.fixed_dictionaries({"d_model": _WIDTH}, optional={"base": bases()}),
    "complex_order": st.fixed_dictionaries({"d_model": EVEN}),
    "cope": st.fixed_dictionaries({"head_dim": st.integers(1, 4), "max_count": st.integers(1, 6)}),
    "dape": st.fixed_dictionaries(
        {"n_heads": st.integers(1, 3), "width": st.integers(1, 5)},
        optional={"encoding": st.sampled_from(["alibi", "kerple_power", "sandwich", "t5"])},
    ),
    "deberta": _deberta(),
    "dual_chunk": drawn_rotations.dual_chunk(),
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
        {"d_model": EVEN, "n_axes": st.integers(1, 3)},
        optional={"sigma": st.sampled_from([1.0, 10.0]), "extent": st.just(64.0), "seed": st.integers(0, 9)},
    ).flatmap(
        lambda found: st.sampled_from(
            [found, found | {"matrix": np.ones((found["n_axes"], found["d_model"] // 2)) / 3}]
        )
    ),
    "dynamic_ntk": st.fixed_dictionaries(
        {
            "head_dim": st.sampled_from([4, 6, 12]),
            "factor": st.sampled_from([1.0, 4.0]),
            "original_max_len": st.sampled_from([1, 100]),
        },
        optional=LANES
        | {
            "length": st.sampled_from([1, 100, 101, 5000]),
            "rotary_dim": st.just(4),
            "attention_factor": st.just(1.1),
            "score_factor": st.just(1.87),
        },
    ).map(lambda options: {"length": 300} | options),
    "fope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": EVEN, "original_max_len": st.sampled_from([7, 100, 4096])},
        optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"]), "init_gain": st.just(0.0)},
    ),
    "grape_a": st.fixed_dictionaries(
        {"n_heads": _HEADS, "head_dim": _WIDTH}, optional={"gates": st.sampled_from(["query", "key"])}
    ),
    "grape_ap": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_heads": _HEADS, "p_dim": st.sampled_from([2, 4, 6])},
    ),
    "grape_m": drawn_rotations.grape_m(),
    "selective_rope": st.fixed_dictionaries(
        {
            "d_model": st.sampled_from([6, 12]),
            "n_kv_heads": st.integers(1, 3),
            "head_dim": EVEN,
            "rank": st.integers(1, 4),
        },
        optional={"base": bases()},
    ),
    "liere": st.fixed_dictionaries(
        {"head_dim": st.just(12), "n_axes": st.integers(1, 3), "block": st.sampled_from([2, 3, 4])}
    ),
    "leaky_rerope": st.fixed_dictionaries(
        {"window": st.integers(1, 9), "factor": st.sampled_from([1.0, 3.0, 16.0])}
    ).flatmap(drawn_rotations.turned),
    "longrope": drawn_rotations.longrope(),
    "mhrope": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 4), "head_dim": EVEN},
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
        {"head_dim": EVEN},
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
        {"n_heads": st.sampled_from([2, 4, 6]), "head_dim": EVEN},
        optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"])},
    ),
    "retnet": st.fixed_dictionaries(
        {"n_kv_heads": st.integers(1, 3), "head_dim": EVEN},
        optional={
            "base": bases(),
            "pairing": st.sampled_from(["half", "interleaved"]),
            "centre": st.sampled_from([0.0, 100.5, -30.0]),
        },
    ),
    "stretched_rope": drawn_rotations.stretched_rope(),
    "hierarchical": _hierarchical(),
    "inkling": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_heads": st.integers(1, 4), "d_rel": st.integers(1, 3), "extent": st.integers(1, 9)},
        optional={"temperature": st.just(0.5), "original_max_len": st.sampled_from([1, 3])},
    ),
    "integer": st.fixed_dictionaries({"d_model": _WIDTH}),
    "kerple_power": st.fixed_dictionaries({"n_heads": _HEADS}),
    "learnable_fourier": st.fixed_dictionaries(
        {"d_model": _WIDTH, "n_axes": st.integers(1, 3)}, optional={"n_features": EVEN, "hidden": _WIDTH}
    ),
    "learned_2d": st.fixed_dictionaries(
        {"d_model": st.integers(1, 6), "height": st.integers(1, 9), "width": st.integers(1, 9)},
        optional={"n_prefix": st.integers(0, 2)},
    ),
    "mrope": drawn_rotations.mrope(),
    "nerf_fourier": _nerf_fourier(),
    "normalised": st.fixed_dictionaries(
        {"d_model": _WIDTH, "length": st.integers(1, 100)}, optional={"over": st.sampled_from(["length", "last"])}
    ),
    "sandwich": st.fixed_dictionaries({"n_heads": _HEADS}, optional={"width": EVEN, "base": bases()}),
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
    "rerope": st.fixed_dictionaries({"window": st.integers(1, 9)}).flatmap(drawn_rotations.turned),
    "rope": drawn_rotations.rope(),
    "self_extend": st.fixed_dictionaries({"window": st.integers(1, 9), "group": st.integers(1, 5)}).flatmap(
        drawn_rotations.turned
    ),
    "sinusoidal": drawn_rotations.sinusoidal(),
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
        optional={"base": bases(), "order": st.just("alternating")},
    ),
    "vo_rope": st.fixed_dictionaries(
        {"head_dim": EVEN}, optional=LANES | {"rotary_dim": st.just(2), "inv_freq": st.just([0.3])}
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
