"""Rotary models on two ranks, sharded by FSDP2, split by heads or split along the text, compute what one process does.

Run as a script, this file is one of the two processes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

import posenc
from posenc import attend, positions
from posenc.nn import LanguageModel
from strategies import normal
from two_ranks import SHARDED, WORLD, Results, assert_same, gradients, rank, run_ranks, sharded, trained, whole

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
D_MODEL = HEADS * HEAD_DIM
LEARNED = {"fixed": False, "learned": True}
ORDERS = ("contiguous", "zigzag")
TEXTS = ("rope", "alibi", "documents")
PLACEMENTS = {"batch": 0, "heads": 1, "tokens": 2, "dimensions": 3, "whole": None}
ROTATIONS: dict[str, dict[str, Any]] = {
    "half": {},
    "interleaved": {"pairing": "interleaved"},
    "partial": {"rotary_dim": 4},
    "last, interleaved": {"rotary_dim": 4, "rotary_side": "last", "pairing": "interleaved"},
}


# ---- FSDP2


def language_model(learned: bool) -> LanguageModel:
    torch.manual_seed(0)
    rope = posenc.RoPE(head_dim=HEAD_DIM, trainable=learned)
    shape = {"d_model": D_MODEL, "n_heads": HEADS, "n_kv_heads": KV_HEADS}
    return LanguageModel(vocab_size=11, n_layers=2, encoding=rope, **shape).double()


def tables_in_bfloat16(how: str, mesh: Any) -> Tensor:
    """Return the cosines of far positions in a model in mixed precision."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, seen = language_model(True).float(), []
    place = model.encoding.place
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = sharded(model, how, mesh, mp_policy=policy)
    inner = model.encoding.place if how == "on its own" else place
    model.encoding.place = lambda *a, **o: seen.append(inner(*a, **o)) or seen[-1]  # type: ignore[method-assign]
    model(torch.zeros(1, 9, dtype=torch.int64), positions.arange(9, start=1000))
    return seen[0].parts[0].detach()


# ---- head-sharded tensor parallelism


class Layer(nn.Module):
    """A plain layer: attention, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        width = KV_HEADS * HEAD_DIM
        self.q, self.k, self.v = (nn.Linear(D_MODEL, n, bias=False) for n in (D_MODEL, width, width))
        self.out, self.up, self.down = nn.Linear(D_MODEL, D_MODEL), nn.Linear(D_MODEL, 64), nn.Linear(64, D_MODEL)

    def forward(self, x: Tensor, rope: Any, placed: Any) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rope.rotate(q, k, placed)
        mesh = getattr(q, "device_mesh", None)
        if mesh is not None:  # torch's attention on the CPU takes no DTensor
            q, k, v = (t.to_local() for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        if mesh is not None:
            mixed = dist.tensor.DTensor.from_local(mixed, mesh, [dist.tensor.Shard(2)])
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, learned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rope = posenc.RoPE(head_dim=HEAD_DIM, trainable=learned)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        placed = self.rope.place(positions.arange(x.shape[1]), dtype=torch.float64)
        for layer in self.layers:
            x = layer(x, self.rope, placed)
        return x


def split_by_heads(learned: bool, mesh: Any, *, local: bool) -> Model:
    """Give each rank half of the heads, as tensors of its own or as DTensors."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Model(learned)
    plan: dict[str, Any] = {name: ColwiseParallel(use_local_output=local) for name in ("q", "k", "v")}
    plan |= {"up": ColwiseParallel(), "out": RowwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def run(model: Model) -> Results:
    """Return the output, and the gradients of input and weights."""
    x = normal(2, 9, D_MODEL, seed=2).requires_grad_()
    out = model(x)
    out.sin().sum().backward()
    return whole({"out": out, "x": x.grad, **gradients(model)})


def rotated(placement: str | None, learned: bool, options: dict[str, Any], mesh: Any) -> Results:
    """Rotate q and k, plain (None) or DTensors, and return gradients too."""
    rope = posenc.RoPE(head_dim=HEAD_DIM, trainable=learned, **options).double()
    q, k = normal(2, HEADS, 6, HEAD_DIM), normal(2, KV_HEADS, 6, HEAD_DIM, seed=1)
    if placement is not None:
        tensor = dist.tensor
        dim = PLACEMENTS[placement]
        where = [tensor.Replicate() if dim is None else tensor.Shard(dim)]
        q, k = (tensor.distribute_tensor(t, mesh, where) for t in (q, k))
    q, k = q.requires_grad_(), k.requires_grad_()
    q_out, k_out = rope.rotate(q, k, rope.place(positions.arange(6, start=3), dtype=torch.float64))
    (q_out.sin().sum() + k_out.cos().sum()).backward()
    return whole({"q": q_out, "k": k_out, "dq": q.grad, "dk": k.grad, **gradients(rope)})


# ---- a text split between the ranks


def read(text: str, shard: Tensor | None, gather: Any) -> Results:
    """Attend from some tokens (None: all) to all, and return gradients of tokens and weights.

    `gather` concatenates a tensor of all ranks.
    """
    n = 12
    encoding: Any = posenc.ALiBi(n_heads=HEADS) if text == "alibi" else posenc.RoPE(head_dim=HEAD_DIM)
    ids = torch.tensor([0] * 5 + [1] * 7) if text == "documents" else torch.zeros(n, dtype=torch.int64)
    weights = [normal(D_MODEL, m, seed=i).div(6).requires_grad_() for i, m in enumerate((D_MODEL, 16, 16))]
    x, index = normal(2, n, D_MODEL, seed=5), torch.arange(n) if shard is None else shard
    x = x[:, index].requires_grad_()
    pos, mine = positions.packed(ids)[index], ids[index]
    q, k, v = ((x @ w).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in weights)
    q, k = encoding.rotate(q, k, encoding.place(pos, dtype=torch.float64))
    if shard is None:
        options: dict[str, Any] = {"document_ids": ids}
        k_pos = pos
    else:
        k, v, k_pos, theirs = gather(k, 2), gather(v, 2), gather(pos, 0), gather(mine, 0)
        seen = (k_pos <= pos[:, None]) & (theirs == mine[:, None])  # indices are not in order
        options = {"causal": False, "mask": seen}
    out = attend(q, k, v, encoding, pos, k_pos, rotated=True, **options)
    out.sin().sum().backward()
    shared = {f"shared {i}": w.grad for i, w in enumerate(weights)}
    return whole({"out": out.transpose(1, 2), "x": x.grad, **shared})


class Gather(torch.autograd.Function):
    """Concatenate a tensor of all ranks; gradients go back to the rank that they belong to."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        parts = [torch.empty_like(t, memory_format=torch.contiguous_format) for _ in range(WORLD)]
        dist.all_gather(parts, t.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(WORLD, ctx.dim)[dist.get_rank()], None


def read_on_two(text: str, order: Any, number: int) -> Results:
    """Attend from the tokens of one rank, and gather the results of both."""
    shard = positions.sharded(12, rank=number, world_size=WORLD, order=order)
    mine = read(text, shard, Gather.apply)
    for name in [name for name in mine if name.startswith("shared")]:
        dist.all_reduce(mine[name])
    back = Gather.apply(shard, 0).argsort()
    return {n: t if n.startswith("shared") else Gather.apply(t, 1)[:, back] for n, t in mine.items()}


# ---- two processes


def compute(number: int, mesh: Any) -> dict[str, Any]:
    """Return the results of each case on one rank."""
    found: dict[str, Any] = {}
    for how in SHARDED:
        found[f"bfloat16 {how}"] = tables_in_bfloat16(how, mesh)
    for which, learned in LEARNED.items():
        for how in SHARDED[: 1 + learned]:
            model = sharded(language_model(learned), how, mesh)
            results = trained(model, slice(2 * number, 2 * number + 2))
            found[f"fsdp {which} {how}"] = results, {n: p.to_local().shape for n, p in model.named_parameters()}
        for local in (True, False):
            results = run(split_by_heads(learned, mesh, local=local))
            if local and learned:  # each rank has rotated its own heads
                dist.all_reduce(results["rope.inv_freq"])
            found[f"heads {which} {local}"] = results
        for placement in PLACEMENTS:
            for what, options in ROTATIONS.items():
                found[f"rotated {which} {placement} {what}"] = rotated(placement, learned, options, mesh)
    for text in TEXTS:
        for order in ORDERS:
            found[f"text {text} {order}"] = read_on_two(text, order, number)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "how"), [("fixed", "at the root"), *(("learned", how) for how in SHARDED)], ids=lambda s: s
)
def test_fsdp_has_the_logits_gradients_and_step_of_one_process(found: Any, which: str, how: str) -> None:
    logits, *wanted = trained(language_model(LEARNED[which]), slice(None))
    start = dict(language_model(LEARNED[which]).named_parameters())
    assert ("encoding.inv_freq" in start) == LEARNED[which]
    for number, one in enumerate(found):
        (mine, *results), local = one[f"fsdp {which} {how}"]
        torch.testing.assert_close(mine, logits[2 * number : 2 * number + 2], rtol=1e-9, atol=1e-9)
        for got, true in zip(results, wanted, strict=True):
            assert_same(got, true, 1e-6 if LEARNED[which] else 1e-9)  # learned frequencies have float32 tables
        rows = {n: [each[f"fsdp {which} {how}"][1][n][0] for each in found] for n in local}
        assert {n: sum(r) for n, r in rows.items()} == {n: p.shape[0] for n, p in start.items()}
        assert max(r[0] for r in rows.values()) < max(p.shape[0] for p in start.values())


@pytest.mark.slow
def test_learned_frequencies_in_their_own_group_stay_in_float32(found: Any) -> None:
    rope = language_model(True).float().encoding
    wanted = rope.place(positions.arange(9, start=1000)).parts[0].detach()
    for one in found:
        torch.testing.assert_close(one["bfloat16 on its own"], wanted, rtol=0, atol=1e-6)
        # in the root's group they are cast with all others, as docs/export.md explains
        assert float((one["bfloat16 at the root"] - wanted).abs().max()) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("local", [True, False], ids=["tensors", "DTensors"])
@pytest.mark.parametrize("which", LEARNED)
def test_half_of_the_heads_on_each_rank_is_the_whole_model(found: Any, which: str, local: bool) -> None:
    wanted = run(Model(LEARNED[which]))
    for one in found:
        assert_same(one[f"heads {which} {local}"], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("which", LEARNED)
def test_dtensors_rotate_as_whole_tensors(found: Any, which: str, placement: str) -> None:
    for what, options in ROTATIONS.items():
        wanted = rotated(None, LEARNED[which], options, None)
        for one in found:
            assert_same(one[f"rotated {which} {placement} {what}"], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_on_two_ranks_equals_one_process(found: Any, text: str, order: str) -> None:
    for one in found:
        assert_same(one[f"text {text} {order}"], read(text, None, None))


if __name__ == "__main__":
    rank(compute)
