"""Errors of rotations: one sentence that names the encoding, what is wrong and what it got."""

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import posenc
from posenc import positions
from rotation_examples import HEADS, LISTS
from strategies import refuses

NAN, INF, HUGE = float("nan"), float("inf"), 10**400
AXIAL, MROPE = {"head_dim": 8}, {"head_dim": 8, "sections": (2, 1, 1)}
NTK = {"head_dim": 8, "factor": 2.0, "original_max_len": 100}
LONG = {"head_dim": 8, **LISTS, "original_max_len": 100}
FOPE = HEADS | {"original_max_len": 100}
EIGHT = {"head_dim": 8}
# all arguments of each constructor, with valid values
VALID: dict[str, dict[str, Any]] = {
    "rope": {**EIGHT, "base": 1e4, "rotary_dim": 4, "rotary_side": "first", "pairing": "half", "inv_freq": None},
    "axial_rope": {**AXIAL, "n_axes": 2, "base": 1e4, "pairing": "half", "spectrum": "shared", "inv_freq": None},
    "mrope": {**MROPE, "layout": "blocks", "base": 1e4, "pairing": "half", "inv_freq": None, "trainable": False},
    "xpos": {**EIGHT, "base": 1e4, "pairing": "half", "scale_base": 512.0, "gamma": 0.4, "centre": 0.0},
    "stretched_rope": {**EIGHT, "base": 1e4, "rotary_dim": 4, "rotary_side": "first", "pairing": "half"},
    "rope_pp": {**EIGHT, "n_heads": 2, "base": 1e4, "pairing": "half", "inv_freq": None},
    "mixed_rope": {**HEADS, "base": 10.0, "pairing": "half"},
    "retnet": {**HEADS, "base": 1e4, "pairing": "half", "centre": 0.0},
    "fope": {**FOPE, "base": 1e4, "pairing": "half", "init_gain": 0.3},
    "pope": {**HEADS, "base": 1e4, "phase_init": "zero"},
    "grape_m": {**HEADS, "n_planes": 2, "base": 1e4},
    "liere": {**EIGHT, "n_axes": 2, "block": 4, "init_std": 1.0},
    "dynamic_ntk": {**NTK, "base": 1e4, "rotary_dim": 8, "rotary_side": "first", "pairing": "half", "length": 200},
    "longrope": {**LONG, "base": 1e4, "rotary_dim": 8, "rotary_side": "first", "pairing": "half", "length": 200},
    "p_rope": {**EIGHT, "share": 0.5, "base": 1e4, "pairing": "half"},
    "mhrope": {**HEADS, "sections": (1, 0, 1), "base": 1e4, "pairing": "half"},
}
VALID["rope"] |= {"trainable": False, "attention_factor": 1.0, "score_factor": 1.0}
VALID["stretched_rope"] |= {"inv_freq": None}
VALID["mrope"] |= {"rotary_dim": 8, "rotary_side": "first", "attention_factor": 1.0, "score_factor": 1.0}
VALID["axial_rope"] |= {"trainable": False, "widths": None}
VALID["dynamic_ntk"] |= {"attention_factor": 1.0, "score_factor": 1.0}
VALID["longrope"] |= {"attention_factor": 1.0, "long_attention_factor": 1.0, "score_factor": 1.0}
COUNTS = {
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "rotary_dim",
    "n_axes",
    "n_planes",
    "block",
    "original_max_len",
    "length",
}
WORDS = ["Half", "", None, 0, ["half"], np.array(["half"])]  # unknown ones


def with_option(option: str) -> list[str]:
    return [name for name, options in VALID.items() if option in options]


def build(name: str, **changed: Any) -> Any:
    return posenc.create(name, **VALID[name] | changed)


def test_the_table_has_all_arguments() -> None:
    for name, options in VALID.items():
        assert set(options) == set(build(name).options())


# options, values that they refuse, and the error
SIZES = ("attention_factor", "long_attention_factor", "score_factor", "factor", "init_std")
BAD: list[tuple[Collection[str], list[Any], type[Exception], str]] = [
    (["base"], [0.0, -1.0, 1.0, NAN, INF, -INF, HUGE], ValueError, "must be a finite number greater than 1"),
    (["base"], ["10000", True, None, [1e4], 1j, torch.tensor(1e4)], TypeError, "must be a number"),
    (COUNTS - {"block"}, [0, -2], ValueError, "must be at least 1"),
    (["block"], [0, -2], ValueError, "must be at least 2"),
    (COUNTS, [2.0, 2.5, "8", True, [8], NAN], TypeError, "must be a whole number"),
    (SIZES, [0.0, -1.0, NAN, INF], ValueError, "must be a finite number above zero"),
    (SIZES, [1e300, 1e-300], ValueError, "must be from 1e-30 to 1e+30, because float32 loses products"),
    (SIZES, ["2", True, (1.0,)], TypeError, "must be a number"),
    (["centre"], [NAN, INF, -INF, HUGE], ValueError, "must be finite"),
    (["centre"], ["0", None, True], TypeError, "must be a number"),
    (["pairing"], WORDS, ValueError, "must be one of ('half', 'interleaved')"),
    (["rotary_side"], WORDS, ValueError, "must be one of ('first', 'last')"),
    (["trainable"], ["no", 1, None, 0.0], TypeError, "must be True or False"),
]


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in VALID for option in VALID[name] if any(option in o for o, *_ in BAD)],
)
def test_values_that_an_option_refuses(name: str, option: str) -> None:
    who = build(name).name
    for options, values, kind, words in BAD:
        for value in values if option in options else ():
            shown = repr(value) if isinstance(value, int | float | str) else ""
            shown = "an integer of 1329 bits" if value is HUGE else shown
            with refuses(kind, f"{who}: {option} {words}", f"; got {'' if values is WORDS else option + '='}{shown}"):
                build(name, **{option: value})


@pytest.mark.parametrize("name", with_option("inv_freq"))
def test_given_frequencies(name: str) -> None:
    n, who = (4 if name in ("mrope", "rope_pp") else 2), build(name).name
    for bad in ([1.0] * (n - 1), [1.0] * (n + 1), [], torch.ones(n, 2), lambda k: k[1:]):
        with refuses(ValueError, f"{who}: inv_freq must hold {n} frequencies, one per pair; got "):
            build(name, inv_freq=bad)
    for bad in ([NAN] * n, torch.full((n,), INF), lambda k: k / 0):
        with refuses(ValueError, f"{who}: inv_freq must be finite; got "):
            build(name, inv_freq=bad)
    for bad in ("12", 1.0, {1.0, 2.0}, {}, object(), torch.ones(n, device="meta"), lambda k: None):
        with refuses(TypeError, f"{who}: inv_freq must be a list of numbers; got inv_freq="):
            build(name, inv_freq=bad)
    for bad in (["1"] * n, [True] * n, [[1.0]] * n, torch.ones(n) * 1j, torch.ones(n) > 0, np.array(["1"] * n)):
        with refuses(TypeError, f"{who}: inv_freq[0] must be a number; got inv_freq[0]="):
            build(name, inv_freq=bad)
    for good in (range(n), np.ones(n), torch.ones(1, n), (1, 2.0, 3, 4.0)[:n], lambda k: 0.5**k):
        with suppress(jaxtyping.TypeCheckError):  # the hook takes no array and no integer for a list of floats
            assert len(build(name, inv_freq=good).options()["inv_freq"]) == n


@pytest.mark.parametrize("option", ["short_factors", "long_factors"])
def test_lists_of_longrope(option: str) -> None:
    for bad in ([1.0] * 3, [1.0] * 5, []):
        with refuses(ValueError, f"LongRoPE: {option} must hold 4 numbers, one per pair; got {len(bad)}"):
            build("longrope", **{option: bad})
    for bad in (0.0, -1.0, NAN, INF):
        with refuses(ValueError, f"LongRoPE: {option}[2] must be a finite number above zero; got {option}[2]={bad}"):
            build("longrope", **{option: [1.0, 2.0, bad, 3.0]})
    for entry in ("1", True, None):
        with refuses(TypeError, f"LongRoPE: {option}[1] must be a number; got {option}[1]={entry!r}"):
            build("longrope", **{option: [1.0, entry, 1.0, 1.0]})
    for bad in (None, 4.0, "1248", {1.0, 2.0, 4.0, 8.0}):
        with refuses(TypeError, f"LongRoPE: {option} must be a list of numbers; got {option}="):
            build("longrope", **{option: bad})
    for good in (torch.ones(4), np.ones(4), (1, 1, 1, 1)):
        with suppress(jaxtyping.TypeCheckError):
            assert build("longrope", **{option: good}).options()[option] == (1.0,) * 4


def test_sections_of_mrope() -> None:
    for bad in ((2, 1), (2, 1, 2), (), (5, -1), (0, 0, 0)):
        with refuses(
            ValueError, "MRoPE: sections must be numbers of pairs that add up to rotary_dim / 2 = 4", f"{bad}"
        ):
            build("mrope", sections=bad)
    for bad in ((2.0, 1, 1), (2, True, 1), ("2", 1, 1), (NAN, 1, 1), [[2, 1, 1]]):
        with refuses(TypeError, "MRoPE: sections must be whole numbers of pairs; got sections="):
            build("mrope", sections=bad)
    for bad in (4, "211", {2, 1}):
        with refuses(TypeError, "MRoPE: sections must be a list of numbers; got sections="):
            build("mrope", sections=bad)
    with refuses(ValueError, "MRoPE: layout must be 'blocks' or 'interleaved' or", "'time_unrotated'; got 'rows'"):
        build("mrope", layout="rows")
    for layout, sections in (("interleaved", (0, 2, 2)), ("time_last", (1, 1, 2))):
        with refuses(
            ValueError, "MRoPE: alternating axes can have at most", f"got sections={sections} and layout='{layout}'"
        ):
            build("mrope", layout=layout, sections=sections)


def test_layouts_of_mrope_as_lists() -> None:
    whole = "MRoPE: a layout that is a list must have an axis for each of 4 pairs"
    for bad in ((), (None, None), (0, 1, 2, 0, 1), (0, -1), (0, 4)):
        with refuses(ValueError, whole, f"got layout=tuple of {len(bad)} entries"):
            build("mrope", layout=bad, sections=None)
    for bad in ((0.0, 1), (True, 1), ("0", 1), ((0,), 1)):
        with refuses(TypeError, "MRoPE: layout must be a word, or a list of axes and None; got layout="):
            build("mrope", layout=bad, sections=None)
    for bad in (4, {0, 1}, None):
        with refuses(TypeError, "MRoPE: layout must be a list of numbers; got layout="):
            build("mrope", layout=bad, sections=None)
    for layout, sections, counts in (((0, 1), (1, 3), (2, 2)), ((0, 2, None), (2, 1), (2, 0)), ((1,), (4, 0), (0, 4))):
        with refuses(ValueError, f"must count the pairs of each axis in layout, {counts}; got sections={sections}"):
            build("mrope", layout=layout, sections=sections)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: posenc.RoPE(head_dim=7), ValueError, "RoPE: head_dim must be even, because dimensions rotate in pairs"),
    (lambda: posenc.StretchedRoPE(head_dim=7), ValueError, "Pass rotary_dim=6 to rotate the first 6."),
    (lambda: posenc.DynamicNTK(**NTK | {"head_dim": 7}), ValueError, "DynamicNTK: head_dim must be even"),
    (lambda: posenc.LongRoPE(**LONG | {"head_dim": 7}), ValueError, "LongRoPE: head_dim must be even"),
    (lambda: posenc.LongRoPE(**LONG, rotary_dim=6), ValueError, "must hold 3 numbers, one per pair; got 4"),
    (lambda: posenc.RoPE(head_dim=8, rotary_dim=10), ValueError, "rotary_dim must be even and between 2 and head_dim"),
    (lambda: posenc.DynamicNTK(**NTK, rotary_dim=5), ValueError, "DynamicNTK: rotary_dim must be even and between 2"),
    (lambda: posenc.AxialRoPE(head_dim=6), ValueError, "must be a multiple of 4, because 2 axes share its pairs"),
    (lambda: posenc.AxialRoPE(head_dim=8, n_axes=3), ValueError, "got head_dim=8, n_axes=3"),
    (lambda: posenc.AxialRoPE(head_dim=8, spectrum="even"), ValueError, "spectrum must be 'shared' or 'dealt'"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=(4, 2)), ValueError, "add up to head_dim=8; got widths=(4, 2), which"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=(5, 3)), ValueError, "widths must be even numbers of dimensions"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=(8, 0)), ValueError, "widths must be even numbers of dimensions"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=()), ValueError, "n_axes must be at least 1; got n_axes=0"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=(2, 2)), ValueError, "up to 4. Sections count pairs: double them."),
    (lambda: posenc.AxialRoPE(head_dim=8, widths=(4.0, 4)), TypeError, "widths must be whole numbers of dimensions"),
    (lambda: posenc.AxialRoPE(head_dim=8, widths="44"), TypeError, "AxialRoPE: widths must be a list of numbers"),
    (lambda: posenc.AxialRoPE(head_dim=8, n_axes=3, widths=(4, 4)), ValueError, "one number for each axis; got n_axes"),
    (lambda: posenc.AxialRoPE(head_dim=8, spectrum="dealt", widths=(6, 2)), ValueError, "axes have equally many"),
    (lambda: posenc.MixedRoPE(n_kv_heads=2, head_dim=6), ValueError, "MixedRoPE: head_dim must be a multiple of 4"),
    (lambda: posenc.MixedRoPE(n_kv_heads=2, head_dim=5), ValueError, "MixedRoPE: head_dim must be a multiple of 4"),
    (lambda: posenc.LieRE(head_dim=9, block=4), ValueError, "LieRE: head_dim must be a multiple of block"),
    (lambda: posenc.LieRE(head_dim=8, block=1), ValueError, "LieRE: block must be at least 2; got block=1"),
    (lambda: posenc.GRAPEM(n_kv_heads=2, head_dim=8, n_planes=5), ValueError, "n_planes must be at most 4"),
    (lambda: posenc.GRAPEM(n_kv_heads=2, head_dim=7), ValueError, "an odd head_dim needs n_planes; got head_dim=7"),
    (lambda: posenc.FoPE(**HEADS, original_max_len=6), ValueError, "original_max_len must be at least 7"),
    (lambda: posenc.FoPE(**FOPE, init_gain=-0.1), ValueError, "FoPE: init_gain must be finite and not negative"),
    (lambda: posenc.FoPE(**FOPE, init_gain=NAN), ValueError, "FoPE: init_gain must be finite and not negative"),
    (lambda: posenc.FoPE(**FOPE, init_gain="0.3"), TypeError, "FoPE: init_gain must be a number; got init_gain='0.3'"),
    (lambda: posenc.PoPE(**HEADS, phase_init="one"), ValueError, "phase_init must be 'zero' or 'uniform'; got 'one'"),
    (lambda: posenc.DynamicNTK(**NTK | {"factor": 0.5}), ValueError, "DynamicNTK: factor must be at least 1, because"),
    (lambda: posenc.ProportionalRoPE(head_dim=8, share=1.1), ValueError, "ProportionalRoPE: share must be from 0 to 1"),
    (lambda: posenc.ProportionalRoPE(head_dim=8, share=NAN), ValueError, "it is the share of the pairs that rotate"),
    (lambda: posenc.ProportionalRoPE(head_dim=8, share="1"), TypeError, "ProportionalRoPE: share must be a number"),
    (lambda: posenc.MHRoPE(**HEADS, sections=(1, 1, 1)), ValueError, "at most n_kv_heads=2; got sections=(1, 1, 1)"),
    (lambda: posenc.MHRoPE(**HEADS, sections=()), ValueError, "MHRoPE: sections must be numbers of heads that add up"),
    (lambda: posenc.MHRoPE(**HEADS, sections=(-1, 2)), ValueError, "sections must be numbers of heads that add"),
    (lambda: posenc.MHRoPE(**HEADS, sections=(1.0,)), TypeError, "MHRoPE: sections must be whole numbers of heads"),
    (lambda: posenc.XPos(head_dim=8, gamma=INF), ValueError, "scale_base and gamma must be positive and finite"),
    (lambda: posenc.XPos(head_dim=8, scale_base=NAN), ValueError, "got scale_base=nan, gamma=0.4"),
    (lambda: posenc.XPos(head_dim=8, gamma="0.4"), TypeError, "XPos: gamma must be a number; got gamma='0.4'"),
    (lambda: posenc.XPos(head_dim=8, scale_base=True), TypeError, "XPos: scale_base must be a number; got"),
]  # fmt: skip


@pytest.mark.parametrize(("construct", "kind", "words"), REFUSED)
def test_other_refusals(construct: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with refuses(kind, words):
        construct()


@pytest.mark.parametrize("name", ["retnet", "fope", "xpos", "grape_m", "mixed_rope", "axial_rope", "p_rope", "mhrope"])
def test_no_message_advises_an_argument_that_the_constructor_does_not_accept(name: str) -> None:
    with pytest.raises(ValueError, match="got head_dim=7") as caught:
        build(name, head_dim=7, **({"n_planes": None} if name == "grape_m" else {}))
    assert "rotary_dim" not in str(caught.value)
    with pytest.raises(ValueError, match=r"got head_dim=1\.$"):
        posenc.RoPE(head_dim=1)


def test_a_decay_that_rounds_to_none_divides_by_no_zero() -> None:
    xpos = posenc.XPos(head_dim=8, gamma=1e17)
    cos, sin = xpos.place(torch.tensor([1, 10**6])).parts[:2]
    torch.testing.assert_close(cos**2 + sin**2, torch.ones(2, 4))


@pytest.mark.parametrize("name", VALID)
def test_queries_and_keys_of_other_shapes_and_dtypes(name: str) -> None:
    encoding = build(name)
    n_axes, who = encoding.n_axes, encoding.name
    pos = positions.arange(5) if n_axes == 1 else positions.grid(1, 5).repeat(1, 2)[:, :n_axes]
    placed, batched = encoding.place(pos), encoding.place(pos.expand(3, *pos.shape))
    for rotate in (encoding.rotate_q, encoding.rotate_k):
        for width in (4, 16):
            with refuses(ValueError, f"{who}: q and k must have head_dim=8 dimensions; got shape (1, 2, 5, {width})"):
                rotate(torch.ones(1, 2, 5, width), placed)
        for shape in ((1, 2, 6, 8), (1, 2, 1, 8)):
            with refuses(
                ValueError, f"{who}: q and k must have a token for each of their positions; got shape {shape}"
            ):
                rotate(torch.ones(shape), placed)
        for shape in ((2, 2, 5, 8), (3, 5, 8)):
            with refuses(ValueError, f"{who}: q and k must have a token for each", "positions of shape (3, 5)"):
                rotate(torch.ones(shape), batched)
        for shape in ((), (8,)):
            with refuses(ValueError, f"{who}: q and k must be (batch, heads, seq, head_dim); got shape {shape}"):
                rotate(torch.ones(shape), placed)
        for dtype in (torch.int64, torch.bool, torch.complex64):
            with refuses(TypeError, f"{who}: q and k must be floating-point, to hold a rotation; got {dtype}"):
                rotate(torch.ones(1, 2, 5, 8, dtype=dtype), placed)


@pytest.mark.parametrize("name", ["mixed_rope", "retnet", "fope", "pope", "grape_m", "mhrope"])
def test_other_numbers_of_heads(name: str) -> None:
    encoding = build(name)
    pos = positions.on_each_axis(positions.arange(5), encoding.n_axes)
    placed = encoding.place(pos)
    for shape in ((1, 3, 5, 8), (1, 1, 5, 8), (1, 0, 5, 8), (2, 5, 8)):
        with refuses(
            ValueError, f"{encoding.name}: has separate tables for each of n_kv_heads=2 key heads", f"{shape}"
        ):
            encoding.rotate_k(torch.ones(shape), placed)


@pytest.mark.parametrize("name", ["retnet", "xpos"])
def test_positions_beyond_float32_are_refused(name: str) -> None:
    encoding = build(name)
    with refuses(ValueError, f"{encoding.name}: positions must lie within", "got one 1,000,000 away"):
        encoding.place(torch.tensor([0, 10**6]))


JUNK = [None, True, 2.5, "8", "half", NAN, INF, -INF, 0, 0.0, -1, -2.0, 1, 3, 1e300, 1e-300, [], [1.0], (1.0, NAN)]
JUNK += [[0.0, 1.0], ["a"], [[1.0, 2.0]], [1j, 2.0], torch.tensor(2.0), torch.ones(2), torch.full((2,), NAN), {}, 1j]
JUNK += [np.float64(3), np.int64(4), np.ones(2), b"x", object(), 5.0, {1.0, 2.0}, range(2), (2, 2), "211", HUGE]


@pytest.mark.parametrize("name", VALID)
def test_any_value_gives_one_sentence_or_an_encoding_that_works(name: str) -> None:
    """No message of Python or torch, and no encoding that makes tokens NaN."""
    who, refused = posenc.card(name).cls.__name__, 0
    for option in VALID[name]:
        for junk in JUNK[:-1] if option in COUNTS else JUNK:
            try:
                encoding = build(name, **{option: junk})
            except (TypeError, ValueError) as error:
                message, refused = str(error), refused + 1
                if not isinstance(error, jaxtyping.TypeCheckError):
                    assert message.startswith(f"{who}: "), (option, junk, message)
                    assert "got" in message, message
                    assert len(message) < 400, message
                    assert "\n" not in message, message
                continue
            works(encoding.resolve(5))
    assert refused > 20


def works(encoding: Any) -> None:
    pos = torch.zeros(3, encoding.n_axes).squeeze(-1).double() + getattr(encoding, "centre", 0.0)
    n_heads = getattr(encoding, "n_heads", None) or getattr(encoding, "n_kv_heads", None) or 2
    x = torch.ones(1, n_heads, 3, encoding.head_dim)
    rotated = encoding.rotate(x, x, encoding.place(pos))
    assert all(t.isfinite().all() for t in rotated), encoding
    assert 0 < encoding.score_scale(8) < math.inf
    assert type(encoding)(**encoding.options()).options() == encoding.options()
