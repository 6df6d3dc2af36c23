"""Conventions: named, read off a signature, distinguished by a trial; two that fit are never guessed between."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import posenc
from posenc import verify
from posenc.verify import FAMILIES, conventions
from posenc.verify.examples import EXAMPLES
from posenc.verify.explain import explain, text
from posenc.verify.spec import READS


def infer(subject, spec=None):
    return conventions.fitting(subject, spec or {})[0]


def turned(x, positions):
    """Rotate halves of x (batch, heads, seq, dim) by positions (seq,)."""
    angle = positions[:, None] * 10000.0 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def by_offset(x, start):
    return turned(x, torch.arange(x.shape[-2]) + start)


class Sum(nn.Module):
    """x + code, for any number of leading axes."""

    def forward(self, x):
        return x + torch.arange(x.shape[-2])[:, None] / 7 + torch.arange(x.shape[-1])


class Pixels(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.code = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        return x + self.code


class OffsetSum(nn.Module):
    def forward(self, x, offset=0):
        _, s, _ = x.shape
        return x + torch.arange(offset, offset + s)[:, None].cos()


class TwoModule(nn.Module):
    def forward(self, q, k):
        return q, k


def hf(x, position_ids):
    angle = position_ids[..., None] * torch.ones(x.shape[-1])
    return angle.cos(), angle.sin()


def hf_apply(q, k, cos, sin, unsqueeze_dim=1):
    return q, k


def shift(x):
    return x


NAMED = {
    "hf_rope": (hf, hf_apply),
    "meta_complex": (lambda end: torch.ones(end, 8, dtype=torch.complex64), lambda q, k, table: (q, k)),
    "rope_fn": lambda x, positions: turned(x, positions),
    "rope_offset_fn": lambda x, offset=0: by_offset(x, offset),
    "lucidrains": SimpleNamespace(rotate_queries_or_keys=lambda x, offset=0: x),
    "bshd_module": TwoModule(),
    "mrope_fn": lambda position_ids: position_ids[0][:, None] * torch.ones(8),
    "relative_table_fn": lambda n: torch.ones(2 * n - 1, 8),
    "slopes_fn": lambda n_heads: [0.5] * n_heads,
    "bias_fn": lambda heads, q_len, kv_len: torch.zeros(heads, q_len, kv_len),
    "score_mod": lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx),
    "bucket_fn": lambda relative_position: relative_position.abs(),
    "position_fn": lambda attention_mask, q_len: attention_mask.cumsum(1)[:, -q_len:] - 1,
    "packed_position_fn": lambda cu_seqlens: torch.arange(int(cu_seqlens[-1])),
    "learned_rows_fn": lambda attention_mask: attention_mask.cumsum(1) + 1,
    "cached_model": lambda x, cache: (x, cache),
    "attention": lambda q, k, v, positions: v,
    "scores_fn": lambda query, key, rel_k: query @ key.mT,
    "shift_fn": shift,
    "learned_bias_fn": lambda h, w, table: table,
    "encoding": posenc.RoPE,
}


@pytest.mark.parametrize("name", NAMED)
def test_names_of_arguments_are_enough(name):
    assert infer(NAMED[name]) == [name]


def xpos(q, k):
    return q, k


def index(h, w):
    return torch.zeros(h * w, h * w, dtype=torch.long)


def angles(h, w):
    return torch.zeros(h * w, 8)


# The same subjects under names that say nothing, so that only calls tell them apart.
UNNAMED = {
    "rope_fn": lambda a, b: turned(a, b),
    "rope_offset_fn": lambda a, b: by_offset(a, b),
    "mrope_fn": lambda a: a[0][:, None] * torch.ones(8),
    "relative_table_fn": lambda a: torch.ones(2 * a - 1, 8),
    "slopes_fn": lambda a: [0.5] * a,
    "bias_fn": lambda a, b, c: torch.zeros(1, b, c),
    "bucket_fn": lambda a: a.abs().clamp(max=31),
    "position_fn": lambda a, b: (a.cumsum(1) - 1)[:, -b:],
    "packed_position_fn": lambda a: torch.arange(int(a[-1])),
    "learned_rows_fn": lambda a: a.cumsum(1) + 1,
    "cached_model": lambda a, b: (a, b),
    "attention": lambda a, b, c, d: c,
    "score_mod": lambda *args: args[0] + args[4] - args[3],
    "relative_index_fn": index,
    "rope2d_table_fn": angles,
    "additive_module": lambda a: a + torch.arange(a.shape[1])[:, None].cos(),
    "additive_2d_module": Pixels(64),
    "xpos_fn": xpos,
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_trial_call_tells_them_apart(name):
    assert infer(UNNAMED[name]) == [name]


def always_fails(x, positions):
    raise RuntimeError


class Liar:
    __signature__ = 5

    def __call__(self, *args):
        (n,) = args
        return [0.5] * n if isinstance(n, int) else math.nan


@pytest.mark.parametrize(
    ("subject", "words", "fitting"),
    [
        (OffsetSum(), {}, ["additive_module"]),  # an argument for the offset does not make a sum a rotation
        (lambda *, n_heads: [0.5] * n_heads, {}, ["slopes_fn"]),
        (Pixels(48), {"dim": 48}, ["additive_2d_module"]),
        (TwoModule(), {"encoding": "rope"}, ["bshd_module"]),
        (TwoModule(), {"encoding": "xpos"}, ["bshd_module", "xpos_fn"]),
        (always_fails, {}, ["rope_fn"]),
        (lambda a, b: 1 / 0, {}, []),
        (lambda a, b, c: a, {"encoding": "Shaw"}, ["scores_fn"]),
        (lambda a, b, c, d, e: a, {"encoding": "transformer-xl"}, ["scores_fn"]),
        (lambda x: x, {"encoding": "transformer_xl"}, ["shift_fn"]),
        (lambda a, b, c, d: a, {"encoding": "deberta_v2"}, ["scores_fn"]),
        (lambda relative_position: relative_position, {"encoding": "deberta"}, ["bucket_fn"]),
        (lambda a, b, c, d, e: a, {"encoding": "swinv2"}, ["learned_bias_fn"]),
        (lambda q, k, rel_k, scale=None: q, {}, ["scores_fn"]),
        (Liar(), {}, ["slopes_fn"]),
    ],
)
def test_odd_subjects_and_what_the_specification_says(subject, words, fitting):
    assert infer(subject, words) == fitting


@pytest.mark.parametrize(
    ("subject", "fitting"),
    [
        (lambda q, k: (q, k), ["bshd_module", "xpos_fn"]),
        (lambda a, b: a, ["rope_fn", "rope_offset_fn"]),
        (Sum(), ["additive_module", "additive_2d_module"]),
    ],
)
def test_two_that_fit_are_both_named(subject, fitting):
    assert infer(subject) == fitting
    with pytest.raises(ValueError, match="2 conventions fit") as reported:
        conventions.only(fitting, subject)
    assert all(name in str(reported.value) for name in fitting)


@pytest.mark.parametrize("subject", [5, None, [0.5, 0.25], "rope", lambda: 1, lambda a, b, c, d, e, f: a])
def test_what_fits_nothing_is_said(subject):
    assert infer(subject) == []
    with pytest.raises(ValueError, match="no convention fits"):
        conventions.only([], subject)


def test_every_convention_that_is_checked_is_known():
    assert set(conventions.CONVENTIONS) == set(FAMILIES)


def test_an_unknown_name_is_refused_with_near_ones():
    assert conventions.named("rope_fn", "STYLE") == "rope_fn"
    with pytest.raises(ValueError, match="STYLE must be a convention; got 'rope-fn'. did you mean 'rope_fn'"):
        conventions.named("rope-fn", "STYLE")
    with pytest.raises(ValueError, match="got '5'"):
        conventions.named(5, "STYLE")


@pytest.mark.parametrize(
    ("subject", "convention", "fits"),
    [
        ((hf, hf_apply), "hf_rope", True),
        (hf, "hf_rope", False),
        ([hf], "meta_complex", False),
        (posenc.NoPE, "encoding", True),
        (hf, "encoding", False),
        (hf, "lucidrains", False),
        (5, "rope_fn", False),
        (TwoModule(), "bshd_module", True),
    ],
)
def test_what_cannot_be_called_so_is_told_before_it_is_called(subject, convention, fits):
    assert (conventions.misfit(subject, convention) is None) == fits


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_right_program_of_a_convention_passes(name):
    spec, build = EXAMPLES[name]
    report = verify.check(build(), convention=name, spec=spec)
    assert (report.status, report.causes) == ("pass", ()), report


@pytest.mark.parametrize("name", conventions.CONVENTIONS)
def test_every_convention_is_explained_by_the_calls_of_its_right_program(name):
    assert name in {*EXAMPLES, "encoding"}, f"add a right program of {name} to posenc/verify/examples.py"
    found = explain(name)
    assert found.call == conventions.CONVENTIONS[name].call
    assert {*found.words, "encoding"} >= {*READS[name].split()} - {"kind"}
    assert found.cases
    if name != "encoding":
        asked = {arg for args in conventions.CONVENTIONS[name].functions.values() for arg in args}
        assert {*found.arguments} == asked - {"cache"}
        assert list(found.covers) == ["lengths", "offsets", "dtypes", "batch", "masks", "caches"]
    assert all(line == line.rstrip() and len(line) <= 100 for line in text(found).splitlines())


def test_what_an_explanation_contains():
    found = explain("rope_fn")
    assert found.arguments["positions"] == "int64; seq 1 to 2,052; values -7 to 65,537"
    assert found.covers["offsets"] == "positions -7 to 65,537"
    assert "views that are not contiguous" in found.arguments["x"]
    assert "half precision: no activation_dtype is declared" in found.not_asked
    assert explain("position_fn").covers["masks"] == "padding on the left"
    assert explain("bias_fn").covers["masks"] == "causal, a window of 64 keys"
    assert explain("bias_fn").covers["lengths"] == "q_len 1 to 68, kv_len 2 to 1,224"
    assert "gradients" in explain("attention").not_asked
