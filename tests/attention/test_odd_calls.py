"""Calls that somebody will make: strange memory, no keys, odd scales, masks as peers write them, many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend, positions
from posenc.attention import explain
from strategies import normal, refuses

N = 40


def qkv(q_len: int = N, k_len: int = N, *, batch: int = 2) -> list[Tensor]:
    lengths = (q_len, k_len, k_len)
    return [normal(batch, 4, n, 8, seed=seed).requires_grad_() for seed, n in enumerate(lengths)]


def equal_to_the_reference(*call: Any, **options: Any) -> None:
    """Every backend that says that it would run gives the reference's result and gradients."""
    encoding = call[3]
    given = [t for t in (*call[:3], *encoding.parameters()) if t.requires_grad]
    wanted = attend(*call, backend="reference", **options)
    pull = normal(*wanted.shape, seed=7)
    exact = torch.autograd.grad(wanted, given, pull, allow_unused=True)
    for verdict in explain(*call, **options):
        if verdict.verdict in ("taken", "would run"):
            got = attend(*call, backend=verdict.backend, **options)
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)
            for mine, theirs in zip(torch.autograd.grad(got, given, pull, allow_unused=True), exact, strict=True):
                if theirs is not None and mine is not None:
                    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def learned() -> posenc.T5:
    return posenc.T5(n_heads=4).double()


@pytest.mark.parametrize("which", range(3))
def test_lanes_that_do_not_lie_side_by_side(which: int) -> None:
    """The kernel takes it for granted that they do, and would read what lies beyond."""
    tensors = qkv()
    tensors[which] = normal(2, 4, 8, N, seed=9).transpose(2, 3).requires_grad_()
    equal_to_the_reference(*tensors, learned(), positions.arange(N))
    equal_to_the_reference(
        *tensors[:2], tensors[2][..., :1].detach().expand(-1, -1, -1, 8), learned(), positions.arange(N)
    )
    with torch.no_grad():
        step = tensors[0][:, :, -1:], *tensors[1:], learned(), positions.arange(N)[-1:], positions.arange(N)
        torch.testing.assert_close(attend(*step), attend(*step, backend="reference"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "encoding", [posenc.NoPE(), posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=4), learned()], ids=str
)
@pytest.mark.parametrize("q_len", [1, 3])
def test_no_keys_give_zeros(encoding: posenc.Encoding, q_len: int) -> None:
    q, k, v = qkv(q_len, 0)
    pos, k_pos = positions.arange(q_len), positions.arange(0)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for verdict in explain(q, k, v, encoding, pos, k_pos):
                if verdict.verdict in ("taken", "would run"):
                    assert not attend(q, k, v, encoding, pos, k_pos, backend=verdict.backend).any()


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-42, 3.0])
@pytest.mark.parametrize(
    "encoding", [posenc.NoPE(), posenc.ALiBi(n_heads=4), posenc.Shaw(head_dim=8).double()], ids=str
)
def test_any_scale(encoding: posenc.Encoding, scale: float) -> None:
    equal_to_the_reference(*qkv(), encoding, positions.arange(N), scale=scale)


def test_the_least_number_of_a_dtype_hides_as_minus_infinity_does() -> None:
    """Peers write masks so, and left padding fills whole rows with it."""
    mask = torch.zeros(N, N).double().masked_fill(torch.ones(N, N).triu(1).bool(), torch.finfo(torch.float64).min)
    mask[:, :4] = torch.finfo(torch.float64).min
    tensors = qkv()
    equal_to_the_reference(*tensors, learned(), positions.arange(N), mask=mask, causal=False)
    assert not attend(*tensors, learned(), positions.arange(N), mask=mask, causal=False)[:, :, :4].any()


def test_second_derivatives_are_refused_and_not_zero() -> None:
    for encoding in (posenc.ALiBi(n_heads=4), learned(), posenc.ReRoPE(head_dim=8, window=5)):
        q, k, v = qkv()
        backend = "piecewise" if isinstance(encoding, posenc.ReRoPE) else "blocked"  # sdpa's refusal is torch's own
        out = attend(q, k, v, encoding, positions.arange(N), backend=backend)
        first = torch.autograd.grad(out.sum(), q, create_graph=True)[0]
        with refuses(RuntimeError, "no second derivative", "backend='reference'"):
            first.square().sum().backward(retain_graph=True)
        for tensor in (q, k, v, *encoding.parameters()):  # nor is one that is asked for alone left out in silence
            with refuses(RuntimeError, "no second derivative", "backend='reference'"):
                torch.autograd.grad(first.square().sum(), tensor, retain_graph=True)


def test_hidden_scores_reach_a_score_map_in_the_same_way() -> None:
    seen = normal(4, 1, N, seed=5) > -0.5
    as_numbers = torch.zeros(seen.shape).double().masked_fill(~seen, -torch.inf)
    tensors, dape = qkv(), posenc.DAPE(n_heads=4).double()
    for encoding in (dape, posenc.Compose(posenc.ALiBi(n_heads=4), dape)):
        found = [
            attend(*tensors, encoding, positions.arange(N), mask=mask, backend=backend)
            for mask in (seen, as_numbers)
            for backend in ("reference", "blocked")
        ]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_queries_before_all_keys_may_hold_nan(backend: str) -> None:
    q, k, v = qkv(N, 30)
    spoiled = q.detach().clone()
    spoiled[:, :, :10] = torch.nan
    bias = learned()
    out = attend(spoiled, k, v, bias, positions.arange(N), positions.arange(30) + 10, backend=backend)
    assert not out[:, :, :10].any()
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), [k, v, bias.weight]))


@torch.no_grad()
def test_a_step_with_positions_by_row() -> None:
    q, k, v = qkv(1, 6)
    k_pos = torch.stack((positions.arange(6), positions.arange(6) + 3))
    for pos in (torch.tensor([8]), torch.tensor([[5], [8]])):
        call = q, k, v, learned(), pos, k_pos
        torch.testing.assert_close(attend(*call), attend(*call, backend="reference"), rtol=0, atol=1e-12)


def test_rows_whose_queries_are_ahead_by_different_amounts() -> None:
    """Each row's positions are in order, so that only beside each other do they show that no one vector fits."""
    k_pos = positions.arange(N).expand(2, N)
    pos = k_pos[:, -4:] + torch.tensor([[0], [7]])
    for causal in (True, False):
        equal_to_the_reference(*qkv(4), learned(), pos, k_pos, causal=causal)


def test_two_threads_may_go_back_over_one_graph() -> None:
    n = 700
    tensors = qkv(n, n)
    for encoding in (learned(), posenc.Shaw(head_dim=8).double()):
        out = attend(*tensors, encoding, positions.arange(n))
        given, pull = [*tensors, *encoding.parameters()], normal(*out.shape, seed=7)
        wanted = torch.autograd.grad(out, given, pull, retain_graph=True)
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(torch.autograd.grad, out, given, pull, retain_graph=True) for _ in range(8)]
        for run in runs:
            for mine, theirs in zip(run.result(), wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_dropout_drops_other_weights_in_each_row_of_the_batch() -> None:
    n = 512
    ids = torch.stack((torch.arange(n) // 256, torch.arange(n) // 128))
    q = k = torch.zeros(2, 1, n, 8)
    v = torch.eye(n)[None, None].expand(2, 1, n, n)  # so that the result is the weights
    torch.manual_seed(0)
    weights = attend(q, k, v, posenc.NoPE(), positions.arange(n), document_ids=ids, dropout_p=0.5, causal=False)[:, 0]
    kept = weights > 0
    first, second = kept[0, 256:384, 256:384], kept[1, :128, :128]
    assert 0.4 < float((first == second).float().mean()) < 0.6


def test_transforms_run_over_a_learned_bias() -> None:
    bias, (q, k, v) = learned(), (t.detach() for t in qkv())
    found = torch.func.grad(lambda x: attend(x, k, v, bias, positions.arange(N)).sum())(q)
    here = q.clone().requires_grad_()
    wanted = torch.autograd.grad(attend(here, k, v, bias, positions.arange(N)).sum(), here)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)

    def loss(weight: Tensor) -> Tensor:
        return torch.func.functional_call(_Attend(bias), {"bias.weight": weight}, (q, k, v)).square().sum()

    mine = torch.func.grad(loss)(bias.weight.detach())
    theirs = torch.autograd.grad(_Attend(bias)(q, k, v).square().sum(), bias.weight)[0]
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's own rules for it
def test_a_product_of_vectors_has_a_forward_derivative() -> None:
    """Lanes have none: torch's kernel knows no rule for it."""
    tupe, (q, k, v) = posenc.TUPE(n_heads=4, head_dim=8, max_len=N).double(), (t.detach() for t in qkv())
    step = normal(*q.shape, seed=7)
    _, found = torch.func.jvp(lambda x: attend(x, k, v, tupe, positions.arange(N)), (q,), (step,))
    with torch.no_grad():
        ahead, behind = (attend(q + s * step, k, v, tupe, positions.arange(N)) for s in (1e-6, -1e-6))
    torch.testing.assert_close(found, (ahead - behind) / 2e-6, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "encoding", [posenc.ALiBi(n_heads=4), learned(), posenc.DynamicPositionBias(n_heads=4)], ids=str
)
def test_where_new_tensors_go_by_default_does_not_matter(encoding: posenc.Encoding) -> None:
    encoding, (q, k, v) = encoding.double(), (t.detach() for t in qkv())
    placed = encoding.place(positions.arange(N), dtype=torch.float64)
    for n, causal, backend in ((N, True, "auto"), (N, False, "auto"), (1, True, "auto"), (N, True, "blocked")):
        call = q[:, :, -n:], k, v, encoding, placed.last(n), placed
        with torch.no_grad():
            with torch.device("meta"):
                found = attend(*call, causal=causal, backend=backend)
            assert torch.equal(found, attend(*call, causal=causal, backend=backend))


class _Attend(torch.nn.Module):
    def __init__(self, bias: posenc.Encoding) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, self.bias, positions.arange(N))


def test_what_a_score_map_or_an_unseen_row_learns_is_zero_and_there() -> None:
    """Data-parallel training wants a gradient of every parameter."""
    tupe = posenc.TUPE(n_heads=4, head_dim=8, max_len=N).double()
    out = attend(*qkv(), tupe, positions.arange(N))
    assert all(g is not None for g in torch.autograd.grad(out.sum(), list(tupe.parameters()), allow_unused=True))
