"""Hypothesis strategies for the options of rotations, and of what else has frequencies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def bases() -> st.SearchStrategy[float]:
    """Bases from just above one to a million."""
    return st.sampled_from([10000.0, 500000.0, 100.0, 2.0, 1e6])


@st.composite
def given_frequencies(draw: st.DrawFn, n: int) -> dict[str, Any]:
    """No frequencies, or some of one's own."""
    if draw(st.booleans()):
        return {}
    values = st.floats(-2.0, 2.0, allow_nan=False, width=32)
    return {"inv_freq": draw(st.lists(values, min_size=n, max_size=n))}


@st.composite
def rope(draw: st.DrawFn) -> dict[str, Any]:
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
        **draw(given_frequencies((rotary_dim or head_dim) // 2)),
    }


@st.composite
def sinusoidal(draw: st.DrawFn) -> dict[str, Any]:
    d_model = draw(st.integers(1, 12))
    return {
        "d_model": d_model,
        "base": draw(bases()),
        "order": draw(st.sampled_from(["alternating", "concatenated"])),
        "exponent": draw(st.sampled_from(["paper", "tensor2tensor"])),
        "trainable": draw(st.booleans()),
        "learned_scale": draw(st.sampled_from([None, 0.5])),
        **draw(given_frequencies(-(-d_model // 2))),
    }


@st.composite
def axial_rope(draw: st.DrawFn) -> dict[str, Any]:
    n_axes, share = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    spectrum = draw(st.sampled_from(["shared", "dealt"]))
    widths = draw(st.none() | st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=4).map(tuple))
    if widths is not None:
        n_axes, share, spectrum = len(widths), sum(widths) // 2, "shared"
    return {
        "head_dim": 2 * share * (1 if widths else n_axes),
        "n_axes": draw(st.sampled_from([n_axes, None])) if widths else n_axes,
        "widths": widths,
        "spectrum": spectrum,
        "base": draw(bases()),
        "pairing": draw(st.sampled_from(["half", "interleaved"])),
        "trainable": draw(st.booleans()),
        **draw(given_frequencies(share * (1 if spectrum == "shared" else n_axes))),
    }


@st.composite
def mrope(draw: st.DrawFn) -> dict[str, Any]:
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
        **draw(given_frequencies(n_pairs)),
    }


EVEN = st.integers(1, 6).map(lambda n: 2 * n)
LANES = {
    "base": bases(),
    "pairing": st.sampled_from(["half", "interleaved"]),
    "rotary_side": st.sampled_from(["first", "last"]),
}


@st.composite
def stretched_rope(draw: st.DrawFn) -> dict[str, Any]:
    options = draw(st.fixed_dictionaries({"head_dim": EVEN}, optional=LANES | {"rotary_dim": st.just(2)}))
    n_pairs = options.get("rotary_dim", options["head_dim"]) // 2
    return options | draw(st.sampled_from([{}, {"inv_freq": [0.5**k for k in range(n_pairs)]}]))


@st.composite
def longrope(draw: st.DrawFn) -> dict[str, Any]:
    n_pairs = draw(st.integers(1, 4))
    factors = st.lists(st.floats(1.0, 64.0, width=32), min_size=n_pairs, max_size=n_pairs).map(tuple)
    rest = {key: draw(strategy) for key, strategy in LANES.items()}
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
def grape_m(draw: st.DrawFn) -> dict[str, Any]:
    n_planes = draw(st.integers(1, 3))
    even = {"head_dim": 2 * n_planes, "n_planes": None}
    wider = {"head_dim": 2 * n_planes + draw(st.integers(0, 3)), "n_planes": n_planes}
    return {"n_kv_heads": draw(st.integers(1, 3)), "base": draw(bases()), **draw(st.sampled_from([even, wider]))}


_TURNED = st.fixed_dictionaries(
    {"head_dim": st.integers(1, 3).map(lambda n: 2 * n)},
    optional={"base": bases(), "pairing": st.sampled_from(["half", "interleaved"])},
)


def turned(pieces: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _TURNED.map(lambda rope: pieces | rope)


@st.composite
def dual_chunk(draw: st.DrawFn) -> dict[str, Any]:
    chunk = draw(st.integers(1, 9))
    return {"chunk": chunk, "local": draw(st.integers(0, chunk - 1)), **draw(_TURNED)}
