"""Two processes of torch.distributed on the CPU, for tests that compare their results with those of one process.

A test file calls `run_ranks(__file__, folder)` in a fixture. Run as a script, it calls `rank(compute)`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

WORLD = 2
SHARDED = ("at the root", "on its own")  # of FSDP2
WRAPPERS = ("DDP", "FSDP 1")
Results = dict[str, Tensor]


def whole(tensors: dict[str, Any]) -> Results:
    """Return tensors as one process has them."""
    full = {n: t.full_tensor() if isinstance(t, dist.tensor.DTensor) else t for n, t in tensors.items()}
    return {n: t.detach().clone() for n, t in full.items()}


def gradients(module: nn.Module) -> dict[str, Any]:
    """Return the gradients of all parameters."""
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert len(found) == len(list(module.parameters()))
    return found


def trained(model: nn.Module, rows: slice) -> tuple[Tensor, Results, Results]:
    """Return logits and gradients of a second step on some rows of a batch, and the parameters after it.

    The second step needs the parameters that the first has changed.
    """
    tokens = torch.randint(11, (2 * WORLD, 9), generator=torch.Generator().manual_seed(1))[rows]
    optimiser, found = torch.optim.AdamW(model.parameters(), lr=0.1), {}
    for _ in range(2):
        optimiser.zero_grad()
        logits = model(tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        found = whole(gradients(model))
        optimiser.step()
    return logits.detach(), found, whole(dict(model.named_parameters()))


def followed(model: nn.Module, rows: slice) -> Tensor:
    """Return the logits of some rows of a batch in three steps of training."""
    tokens = torch.randint(11, (2 * WORLD, 9), generator=torch.Generator().manual_seed(1))[rows]
    optimiser, seen = torch.optim.AdamW(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimiser.zero_grad()
        seen.append(model(tokens))
        F.cross_entropy(seen[-1][:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step()
    return torch.stack(seen).detach()


def wrapped(model: nn.Module, how: str) -> nn.Module:
    """Wrap a model in DDP or FSDP 1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if how == "DDP":
        return nn.parallel.DistributedDataParallel(model)
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def sharded(model: Any, how: str, mesh: Any, **options: Any) -> Any:
    """Shard a language model by FSDP2: layers one by one, and the encoding with the root or on its own."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if how == "on its own":
        fully_shard(model.encoding, mesh=mesh, reshard_after_forward=False)
        register_fsdp_forward_method(model.encoding, "place")
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def rank(compute: Callable[[int, Any], dict[str, Any]]) -> None:
    """Be one of the processes: compute all cases from its number and the mesh, and write them to a file."""
    import torch.distributed.fsdp
    import torch.distributed.tensor

    number, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=WORLD)
    torch.save(compute(number, dist.device_mesh.init_device_mesh("cpu", (WORLD,))), folder / f"rank{number}.pt")
    dist.destroy_process_group()


def run_ranks(script: str, folder: Path) -> list[dict[str, Any]]:
    """Run a script as two processes and return what each has computed."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [
        subprocess.Popen([sys.executable, script, str(number), str(folder)], env=environment, **pipes)
        for number in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for number, process in enumerate(ranks):
        assert process.returncode == 0, f"rank {number}:\n{outputs[number][-3000:]}"
    return [torch.load(folder / f"rank{number}.pt") for number in range(WORLD)]


def assert_same(got: Results, wanted: Results, within: float = 1e-10) -> None:
    assert got.keys() == wanted.keys()
    for key, true in wanted.items():
        torch.testing.assert_close(got[key], true, rtol=within, atol=within, msg=lambda m, key=key: f"{key}: {m}")
