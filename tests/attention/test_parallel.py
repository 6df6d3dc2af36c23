"""Learned biases on two ranks: sharded by FSDP2, and split by heads; gradients and steps are those of one process.

Run as a script, this file is one of the two processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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

WORLD = 2
HEADS = 4
MODELS = ("t5", "kerple")
SHARDED = ("at the root", "on its own")
SPLIT = ("alibi", "t5", "kerple", "relative_bias", "fire", "fox")
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "both ways": {"causal": False},
    "window": {"window": 3},
}


# ---- what one process computes, and each of two


def language_model(name: str) -> LanguageModel:
    """Two layers that share one learned bias, drawn from a seed."""
    torch.manual_seed(0)
    encoding = posenc.create(name, n_heads=HEADS)
    model = LanguageModel(vocab_size=11, d_model=16, n_layers=2, n_heads=HEADS, n_kv_heads=2, encoding=encoding)
    for parameter in encoding.parameters():
        nn.init.normal_(parameter)
    return model.double()


def trained(model: nn.Module, rows: slice) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of a second step on some rows of a batch, and the parameters after it.

    The second: what a step has changed must be gathered anew.
    """
    tokens = torch.randint(11, (2 * WORLD, 9), generator=torch.Generator().manual_seed(1))[rows]
    optimiser, gradients = torch.optim.AdamW(model.parameters(), lr=0.1), {}
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        gradients = whole({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert len(gradients) == len(list(model.parameters()))
        optimiser.step()
    return gradients, whole(dict(model.named_parameters()))


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as one process has them."""
    full = {n: t.full_tensor() if isinstance(t, dist.tensor.DTensor) else t for n, t in tensors.items()}
    return {n: t.detach().clone() for n, t in full.items()}


def attended(name: str, options: dict[str, Any], first: int, n: int) -> dict[str, Tensor]:
    """Return what some of the heads make of it, with gradients of all that they read."""
    torch.manual_seed(0)
    given = {"fox": {"d_model": 6}, "alibi": {"slopes": "learned"}, "relative_bias": {"max_distance": 5}}
    bias: Any = posenc.create(name, n_heads=HEADS, **given.get(name, {})).double()
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    x = normal(2, 10, 6, seed=4).requires_grad_()
    placed = bias.place(positions.arange(10), x if bias.reads_x else None, dtype=torch.float64)
    mine = slice(first, first + n)
    q, k, v, weight = (normal(2, HEADS, 10, 8, seed=i)[:, mine].requires_grad_() for i in range(4))
    out = attend(q, k, v, bias.of_heads(first, n), placed, **options)
    (out * weight.detach()).sum().backward()
    shared = {f"shared {name}": p.grad for name, p in bias.named_parameters()}
    if bias.reads_x:
        shared["shared x"] = x.grad
    assert all(t is not None for t in shared.values())
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad, **shared}  # type: ignore[dict-item]


def sharded(name: str, how: str) -> nn.Module:
    """Shard a model: layers one by one, and the encoding with the root or on its own."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh, model = dist.device_mesh.init_device_mesh("cpu", (WORLD,)), language_model(name)
    if how == "on its own":
        fully_shard(model.encoding, mesh=mesh, reshard_after_forward=False)
        register_fsdp_forward_method(model.encoding, "place")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def rank(number: int, folder: Path) -> None:
    """Be one of the processes: compute each case, and leave what came out in a file."""
    import torch.distributed.fsdp
    import torch.distributed.tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=WORLD)
    found: dict[str, Any] = {}
    for name in MODELS:
        for how in SHARDED:
            model = sharded(name, how)
            local = {n: p.to_local().shape for n, p in model.encoding.named_parameters()}
            found[f"{name} {how}"] = trained(model, slice(2 * number, 2 * number + 2)), local
    n = HEADS // WORLD
    for name in SPLIT:
        for what, options in OPTIONS.items():
            mine = attended(name, options, n * number, n)
            for key, t in mine.items():
                if key.startswith("shared"):
                    dist.all_reduce(t)
                else:
                    parts = [torch.empty_like(t) for _ in range(WORLD)]
                    dist.all_gather(parts, t.contiguous())
                    mine[key] = torch.cat(parts, 1)
            found[f"{name} {what}"] = mine
    torch.save(found, folder / f"rank{number}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two processes have left."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(number), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(WORLD)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for number, process in enumerate(ranks):
        assert process.returncode == 0, f"rank {number}:\n{said[number][-3000:]}"
    return [torch.load(folder / f"rank{number}.pt") for number in range(WORLD)]


# ---- what two processes computed is what one computes


def same(got: dict[str, Tensor], wanted: dict[str, Tensor], within: float) -> None:
    assert got.keys() == wanted.keys()
    for key, true in wanted.items():
        torch.testing.assert_close(got[key], true, rtol=within, atol=within, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize("how", SHARDED)
@pytest.mark.parametrize("name", MODELS)
def test_fsdp_has_the_gradients_and_the_step_of_one_process(found: Any, name: str, how: str) -> None:
    wanted = trained(language_model(name), slice(None))
    start = dict(language_model(name).encoding.named_parameters())
    for one in found:
        results, local = one[f"{name} {how}"]
        for got, true in zip(results, wanted, strict=True):
            same(got, true, 1e-9)
        for key, shape in local.items():  # half of each table on each rank
            assert shape[0] == start[key].shape[0] // WORLD
            assert float(results[0][f"encoding.{key}"].abs().max()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("what", OPTIONS)
@pytest.mark.parametrize("name", SPLIT)
def test_heads_on_two_ranks_are_the_whole(found: Any, name: str, what: str) -> None:
    wanted = attended(name, OPTIONS[what], 0, HEADS)
    for one in found:
        same(one[f"{name} {what}"], wanted, 1e-10)


def test_the_whole_is_the_reference() -> None:
    """What the two are held against is not this engine alone."""
    for name in SPLIT:
        for options in OPTIONS.values():
            exact = attended(name, {**options, "backend": "reference-float64"}, 0, HEADS)
            same(attended(name, options, 0, HEADS), exact, 1e-10)


if __name__ == "__main__":
    rank(int(sys.argv[1]), Path(sys.argv[2]))
