"""A cell on all processes of torchrun, for a model or a sequence that is too large for one device.

Each process holds a part of every weight (FSDP2) and a slice of every sequence (context parallelism). A slice's queries
attend to the keys and values of all slices. Every process gets the logits of the whole sequence, so it computes the
loss and the tests as a single process would. The backward pass sums over the processes' equal losses, and FSDP takes
the mean over processes.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from posenc import positions
from posenc.encoding import Placed
from posenc.nn import LanguageModel
from posenc.nn.layers import Cache
from posenc.raised import describe

LOOK_S = 0.05  # between two checks for messages of the other processes
Report = Callable[[dict[str, float]], None]
Do = Callable[[dict[str, Any], Report], dict[str, bytes]]  # a job's files


class JobError(Exception):
    """A job failed in one of the processes; the message gives the reason and the place."""


class Together:
    """Runs each job in all processes of torchrun: the first one chooses it, the others follow.

    They communicate through torchrun's store, and have a process group for each job: a process that raises leaves the
    group, so that no other waits for it.

    Args:
        run: Runs this process's part of a job.
        device: This process's device.
    """

    def __init__(self, run: Do, device: torch.device) -> None:
        self.run, self.backend = run, "nccl" if device.type == "cuda" else "gloo"
        self.store, self.rank, self.world_size = next(dist.rendezvous("env://"))
        self._n = 0  # the number of the job

    def do(self, job: dict[str, Any], report: Report) -> dict[str, bytes]:
        """Run a job in all processes, and return its files from this one.

        Raises:
            JobError: The job raised in one of the processes.
        """
        self.store.set(f"job {self._n}", json.dumps(job))
        return self._do(job, report)

    def follow(self) -> None:
        """Run the jobs of the first process until it ends."""
        while True:
            while not self.store.check([f"job {self._n}"]):
                time.sleep(LOOK_S)
            job = json.loads(self.store.get(f"job {self._n}"))
            if job is None:
                return
            with suppress(JobError):  # the first process reports it
                self._do(job, lambda _: None)

    def end(self) -> None:
        """Make the other processes end."""
        self.store.set(f"job {self._n}", "null")

    def _do(self, job: dict[str, Any], report: Report) -> dict[str, bytes]:
        n, files = self._n, {}
        self._n += 1
        try:
            group = dist.PrefixStore(f"group {n}", self.store)
            dist.init_process_group(self.backend, store=group, rank=self.rank, world_size=self.world_size)
            files = self.run(job, report)
            failed = False
        except (Exception, SystemExit) as error:
            self.store.compare_set(f"why {n}", "", describe(error))  # the first error made the others lose their group
            failed = True
        if failed:
            _leave()
        self.store.add(f"ended {n}", 1)
        while self.store.add(f"ended {n}", 0) < self.world_size:
            time.sleep(LOOK_S)
        _leave()
        if self.store.check([f"why {n}"]):
            raise JobError(self.store.get(f"why {n}").decode())
        return files


def _leave() -> None:
    gc.collect()  # a model's hooks keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()


def device_of(kind: str) -> torch.device:
    """Return this process's device of a kind, such as cuda."""
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def place(model: LanguageModel, device: torch.device) -> LanguageModel:
    """Move a model to its device; under torchrun, keep only this process's part of it.

    Raises:
        ValueError: Its encoding reads tokens that other processes hold, or has a weight that cannot be sharded.
    """
    if not dist.is_initialized():
        return model.to(device)
    encoding, why = model.encoding, ""
    if encoding.reads_x:
        why = "reads all tokens from the first one, but each process holds only a slice of them"
    elif any(p.ndim == 0 for p in encoding.parameters()):
        why = "has a scalar weight, which FSDP2 cannot shard"
    if why:
        raise ValueError(f"study: {encoding.name} {why}. Run its cells with posenc study worker without torchrun.")
    from torch.distributed.fsdp import fully_shard  # imported here, since it takes 40 MiB that no other worker needs

    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    model.__class__ = Sharded  # as fully_shard does
    fully_shard(model, mesh=mesh)
    return model


def weights(model: LanguageModel) -> dict[str, Tensor]:
    """Return a model's whole weights on the CPU, or an empty mapping in processes other than the first."""
    found = {}
    for name, t in model.state_dict().items():
        whole = t.full_tensor() if isinstance(model, Sharded) else t  # a collective: all processes take part
        if not isinstance(model, Sharded) or dist.get_rank() == 0:
            found[name] = whole.contiguous().cpu()
    return found


class Sharded(LanguageModel):
    """This process's part of a language model, made by `place`; it takes and returns whole sequences."""

    def forward(  # type: ignore[override]
        self, tokens: Int[Tensor, "batch seq"], pos: Tensor | None = None, *, last: int | None = None
    ) -> Float[Tensor, "batch out vocab"]:
        """Return the logits of the next token, as in `LanguageModel`."""
        seq_len, size = tokens.shape[1], dist.get_world_size()
        if pos is None:
            pos = positions.arange(seq_len, device=tokens.device)
        padding = -seq_len % size  # on the right, where no token attends
        tokens, pos = (torch.cat((t, t[..., -1:].expand(*t.shape[:-1], padding)), -1) for t in (tokens, pos))
        here = positions.sharded(seq_len + padding, rank=dist.get_rank(), world_size=size, device=tokens.device)
        mask = positions.arange(seq_len + padding, device=tokens.device) <= here[:, None]
        logits = super().forward(tokens[:, here], pos, cache=_Everywhere(seq_len, len(here)), mask=mask)
        return _gather(logits, 1)[:, seq_len - (last or seq_len) : seq_len].clone()  # FSDP warns about a view


class _Everywhere(Cache):
    """Gives each layer the keys, values and positions of all slices; the mask hides all but this slice's past."""

    def __init__(self, seq_len: int, n: int) -> None:
        super().__init__()
        self.seq_len, self.n = seq_len, n

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        both = _gather(torch.cat((k, v), -1), 2)  # rotated keys may be wider than values
        return both[..., : k.shape[-1]], both[..., k.shape[-1] :]

    def append_placed(self, layer: int, placed: Placed) -> tuple[Placed, Placed]:
        begin = dist.get_rank() * self.n
        return placed.rows(begin, begin + self.n), placed


class _Gather(torch.autograd.Function):
    """Concatenate the slices of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        slices = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(slices, x)
        return torch.cat(slices, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        slices = [t.contiguous() for t in grad.chunk(dist.get_world_size(), ctx.dim)]
        mine = torch.empty_like(slices[0])
        dist.reduce_scatter(mine, slices)
        return mine, None


def _gather(x: Tensor, dim: int) -> Tensor:
    return _Gather.apply(x.contiguous(), dim)  # type: ignore[no-any-return]
