"""Every argument of `attend`, in every backend, against two literal loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import posenc
from attention import literal
from posenc import attend, explain, positions
from posenc.attention import BACKENDS
from strategies import check, normal

NAMES = list(BACKENDS)
MASKING = [name for name in NAMES if name not in ("sdpa", "lanes", "piecewise", "flex")]  # those that take any mask
NOPE = posenc.NoPE()


def tensors(q_len: int, k_len: int, heads: tuple[int, int] = (4, 2), *, wide: int = 3, batch: int = 2) -> Any:
    q = normal(batch, heads[0], q_len, 4, seed=1)
    return q, normal(batch, heads[1], k_len, 4, seed=2), normal(batch, heads[1], k_len, wide, seed=3)


def able(*call: Any, **options: Any) -> list[str]:
    """The backends that run a call."""
    return [v.backend for v in explain(*call, **options) if v.verdict in ("taken", "would run")]


def spread(mask: Tensor | None, q: Tensor, k: Tensor) -> np.ndarray[Any, Any] | None:
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2]).numpy()


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """Tensors and options of one call: lengths, groups of heads, window, documents, masks of each kind."""
    q_len, k_len = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2)]))
    q, k, v = tensors(q_len, k_len, (kv_heads * group, kv_heads), wide=draw(st.integers(1, 6)))
    options: dict[str, Any] = {"causal": draw(st.booleans()), "window": draw(st.none() | st.integers(1, 7))}
    if q_len <= k_len and draw(st.booleans()):
        rows = st.lists(st.integers(0, 2), min_size=k_len, max_size=k_len)
        plain = draw(st.booleans())
        options["document_ids"] = torch.tensor(draw(rows) if plain else [draw(rows), draw(rows)])
    shape = tuple(draw(st.sampled_from([1, n])) for n in (*q.shape[:3], k_len))[draw(st.integers(0, 3)) :]
    kind = draw(st.sampled_from(["none", "bool", "float", "hole"]))
    noise = normal(*shape, seed=draw(st.integers(0, 99)))
    if kind != "none":
        holes = noise.masked_fill(noise < -0.5, -torch.inf)
        options["mask"] = {"bool": noise > -0.5, "float": noise, "hole": holes}[kind]
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 0.3, -1.0]))
    return (q, k, v), options


@given(calls(), st.booleans())
@check(150)
def test_every_backend_is_the_literal_loop(call: Any, biased: bool) -> None:
    (q, k, v), options = call
    pos = positions.arange(k.shape[2] + q.shape[2], start=11)
    k_pos, pos = pos[: k.shape[2]], pos[k.shape[2] :]
    encoding = posenc.ALiBi(n_heads=q.shape[1], slopes="geometric") if biased else NOPE
    bias = None
    if biased:
        slopes = 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1, dtype=torch.float64) / q.shape[1])
        bias = (-slopes[:, None, None] * (pos[:, None] - k_pos).abs()).expand(q.shape[0], -1, -1, -1).numpy()
    ids = options.get("document_ids")
    spelled = {**options, "mask": spread(options.get("mask"), q, k), "scale": options.get("scale", 0.5)}
    spelled["document_ids"] = None if ids is None else ids.expand(q.shape[0], -1).numpy()
    wanted = literal.attend(q.numpy(), k.numpy(), v.numpy(), bias=bias, **spelled)
    for name in able(q, k, v, encoding, pos, k_pos, **options):
        got = attend(q, k, v, encoding, pos, k_pos, backend=name, **options)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(attend(q, k, v, encoding, pos, k_pos, **options).numpy(), wanted, rtol=0, atol=1e-12)


def test_causal_is_aligned_at_the_end() -> None:
    """One query against a cache sees everything, where torch's own is_causal shows it one key."""
    q, k, v = tensors(1, 5)
    k_pos = positions.arange(5)
    got = attend(q, k, v, NOPE, k_pos[-1:], k_pos)
    wanted = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    start = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (start - wanted).abs().max() > 0.1


@pytest.mark.parametrize("backend", MASKING)
def test_rows_that_see_nothing_are_zero(backend: str) -> None:
    q, k, v = tensors(4, 2)
    out = attend(q, k, v, NOPE, positions.arange(4), positions.arange(2), backend=backend)
    assert not out[:, :, :2].any()
    assert out[:, :, 2:].all()
    mask = torch.tensor([True, False]).view(1, 1, 2, 1)
    for given_mask in (mask, torch.zeros(1, 1, 2, 1).masked_fill(~mask, -torch.inf)):
        out = attend(q[:, :, :2], k, v, NOPE, positions.arange(2), mask=given_mask, backend=backend)
        assert not out[:, :, 1].any()
        assert out[:, :, 0].all()


@pytest.mark.parametrize("backend", MASKING)
@pytest.mark.parametrize("biased", [False, True])
def test_rows_that_see_nothing_send_no_nan_back(backend: str, biased: bool) -> None:
    encoding = posenc.KERPLE(n_heads=4).double() if biased else NOPE
    q, k, v = (t.requires_grad_() for t in tensors(4, 4, wide=4))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0] = False
    pos = positions.arange(4)
    attend(q, k, v, encoding, pos, mask=mask, causal=False, backend=backend).square().sum().backward()
    got = [t.grad for t in (q, k, v, *encoding.parameters())]
    for t in (q, k, v, *encoding.parameters()):
        t.grad = None
    rest = q[:, :, 1:], k, v
    attend(*rest, encoding, pos[1:], pos, causal=False, backend=backend).square().sum().backward()
    for mine, theirs in zip(got, [t.grad for t in (q, k, v, *encoding.parameters())], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", MASKING)
@pytest.mark.parametrize(
    "options",
    [
        {"mask": torch.tensor([False, True, True, True]).view(1, 1, 1, 4)},
        {"mask": torch.tensor([-torch.inf, 0.0, 0.0, 1.0]).view(1, 1, 1, 4)},
        {"window": 2, "q_len": 2},
        {"document_ids": torch.tensor([0, 1, 1, 1]), "q_len": 3},
    ],
    ids=["boolean", "floating", "window", "documents"],
)
@pytest.mark.parametrize("encoding", [NOPE, posenc.ALiBi(n_heads=4), posenc.RoPE(head_dim=4)], ids=str)
def test_what_no_query_sees_may_hold_nan(backend: str, options: dict[str, Any], encoding: posenc.Encoding) -> None:
    options = dict(options)
    q_len = options.pop("q_len", 4)
    q, k, v = tensors(q_len, 4)
    spoiled = k.clone(), v.clone()
    for t in spoiled:
        t[:, :, 0] = torch.nan
    k_pos = positions.arange(4)
    clean = attend(q, k, v, encoding, k_pos[4 - q_len :], k_pos, backend=backend, **options)
    got = attend(q, *spoiled, encoding, k_pos[4 - q_len :], k_pos, backend=backend, **options)
    assert torch.equal(got, clean)
    assert got.isfinite().all()


@pytest.mark.parametrize("mask", [torch.tensor([True, True, False, True]), torch.tensor(True)], ids=["1-D", "0-D"])
@pytest.mark.parametrize("backend", MASKING)
@pytest.mark.parametrize("floating", [False, True])
def test_masks_of_few_dimensions_broadcast(mask: Tensor, backend: str, floating: bool) -> None:
    q, k, v = tensors(4, 4)
    given_mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if floating else mask
    for causal in (False, True):
        got = attend(q, k, v, NOPE, positions.arange(4), mask=given_mask, causal=causal, backend=backend)
        wanted = literal.attend(q.numpy(), k.numpy(), v.numpy(), mask=spread(mask, q, k), scale=0.5, causal=causal)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("q_len", "k_len"), [(0, 9), (0, 0), (3, 0)])
@pytest.mark.parametrize("encoding", [NOPE, posenc.ALiBi(n_heads=4)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_empty_sequences_have_masks_too(causal: bool, q_len: int, k_len: int, encoding: posenc.Encoding) -> None:
    call, options = tensors(q_len, k_len), {"causal": causal, "mask": torch.ones(2, 1, q_len, k_len).bool()}
    pos = positions.arange(max(q_len, k_len))
    backends = able(*call, encoding, pos[:q_len], pos[:k_len], **options)
    assert len(backends) > 1
    for backend in ("auto", *backends):
        out = attend(*call, encoding, pos[:q_len], pos[:k_len], **options, backend=backend)
        assert out.shape == (2, 4, q_len, 3)
        assert not out.any()


@pytest.mark.parametrize("backend", MASKING)
def test_dropout(backend: str) -> None:
    q, k = normal(1, 1, 200, 4), normal(1, 1, 300, 4)
    pos, k_pos, ones = positions.arange(200), positions.arange(300), torch.ones(1, 1, 300, 1).double()
    torch.manual_seed(3)
    out = attend(q, k, ones, NOPE, pos, k_pos, causal=False, dropout_p=0.25, backend=backend)
    assert abs(float(out.mean()) - 1.0) < 0.02  # weights that are kept are made larger by 1 / (1 - p)
    assert float(out.std()) > 0.01
    assert torch.equal(
        attend(q, k, ones, NOPE, pos, k_pos, causal=False, dropout_p=0.0, backend=backend).round(decimals=12),
        ones[:, :, :200],
    )


def test_the_result_has_the_dtype_of_q() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        q, k, v = (t.to(dtype) for t in tensors(3, 3))
        for name in able(q, k, v, NOPE, positions.arange(3)):
            assert attend(q, k, v, NOPE, positions.arange(3), backend=name).dtype == dtype


def test_reference_float64_is_exact_whatever_the_inputs() -> None:
    rope = posenc.RoPE(head_dim=4)
    single = [t.float() for t in tensors(3, 3)]
    pos = positions.arange(3, start=90_000)
    wanted = attend(*(t.double() for t in single), rope, pos).float()
    assert torch.equal(attend(*single, rope, pos, backend="reference-float64"), wanted)


def test_positions_are_placed_once_and_only_if_they_are_not() -> None:
    class Counts(posenc.RoPE):
        calls = 0

        def place(self, *arguments: Any, **options: Any) -> posenc.Placed:
            self.calls += 1
            return super().place(*arguments, **options)

    rope = Counts(head_dim=4)
    q, k, v = tensors(3, 3)
    placed = rope.place(positions.arange(3), dtype=torch.float64)
    first = attend(q, k, v, rope, placed)
    assert rope.calls == 1
    assert torch.equal(attend(q, k, v, rope, positions.arange(3)), first)
    assert rope.calls == 2
    explain(q, k, v, rope, placed, placed)
    attend(q, k, v, rope, positions.arange(3), rotated=True)  # what is rotated needs no tables
    assert rope.calls == 2


def test_rotated_keys_are_not_turned_again() -> None:
    both = posenc.Compose(posenc.RoPE(head_dim=4), posenc.TransformerXL(d_model=4, n_heads=4, head_dim=4).double())
    q, k, v = tensors(2, 5)
    k_pos = positions.arange(5, start=7)
    placed, k_placed = (both.place(p, dtype=torch.float64) for p in (k_pos[-2:], k_pos))
    turned = both.rotate(q, k, placed, k_placed)
    for name in able(*turned, v, both, placed, k_placed, rotated=True):
        got = attend(*turned, v, both, placed, k_placed, rotated=True, backend=name)
        torch.testing.assert_close(got, attend(q, k, v, both, placed, k_placed), rtol=0, atol=1e-12)
