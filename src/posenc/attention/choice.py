"""The backends, which of them computes a call, and how."""

import contextlib
from pathlib import Path

import torch
from torch import Tensor

from posenc.attention import compiled, finite
from posenc.attention.blocked import Blocked
from posenc.attention.call import Backend, Call
from posenc.attention.flex import Flex
from posenc.attention.leaves import is_plain
from posenc.attention.piecewise import PiecewisePasses
from posenc.attention.whole import SDPA, Reference
from posenc.families import no_autocast

MUCH = 2**30  # bytes, from which on asking costs little next to taking
_CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
# The first that does not refuse is taken.
_ORDER: list[Backend] = [
    SDPA(),
    PiecewisePasses(),
    Flex(),
    Blocked(),
    Reference(),
    Reference(exact=True),
]
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _ORDER}


def compute(call: Call) -> Tensor:
    """Compute a call by the backend that it names, or by the first that does not refuse.

    Raises:
        ValueError: It refuses, or all do.
        MemoryError: What would be taken, by estimate, is more than there is.
    """
    name = call.backend
    if name == "auto":
        short = False
        for candidate in BACKENDS.values():
            if candidate.rejects(call) is None:
                if _lacks(candidate, call) is None:
                    return _run(candidate, call)
                short = True
        refusals = "\n".join(f"  {b.name}: {refusal_of(b, call)}" for b in BACKENDS.values())
        raise (MemoryError if short else ValueError)(f"attend: no backend can run this call:\n{refusals}")
    if (refusal := BACKENDS[name].rejects(call)) is not None:
        raise ValueError(f"attend: the backend {name!r} cannot run this call: {refusal}")
    if (refusal := _lacks(BACKENDS[name], call)) is not None:
        raise MemoryError(f"attend: the backend {name!r} has no room: {refusal} Take fewer queries at a time.")
    return _run(BACKENDS[name], call)


def _run(backend: Backend, call: Call) -> Tensor:
    """Compute a call by a backend that does not refuse."""
    if isinstance(backend, Blocked) and compiled.fits(call):
        return compiled.run(call)
    call, spoiled = finite.without(call, backend.name)
    if isinstance(backend, Blocked) and not (call.q.numel() and is_plain(call)):
        with no_autocast(call.q.device):
            out = compiled.traced(call)
    else:
        out = backend.run(call)
    return out if spoiled is None else out.masked_fill(spoiled[..., None], torch.nan)


def refusal_of(backend: Backend, call: Call) -> str | None:
    """Return why a backend does not run a call: for what it is, or for lack of memory."""
    return backend.rejects(call) or _lacks(backend, call)


def _lacks(backend: Backend, call: Call) -> str | None:
    """Return that there is too little memory, or None; a compiler is asked for no sizes, which it would hold fast."""
    return None if torch.compiler.is_compiling() else lacks(backend.memory(call), call.q.device)


def lacks(needed: int, device: torch.device) -> str | None:
    """Say that there is too little memory for what a backend estimates, or None."""
    if needed < MUCH:
        return None
    free = available(device.type)
    if free is None or needed <= free:
        return None
    return f"it would take about {needed / MUCH:.1f} GiB, and {free / MUCH:.1f} GiB are left on this {device.type}."


def available(device: str = "cpu") -> int | None:
    """Return the bytes that can still be used before this machine, container or GPU runs out; None if unknown."""
    if device == "cuda":
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch holds it for what comes
        return int(torch.cuda.mem_get_info()[0]) + kept
    if device != "cpu":
        return None
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known = {words[0]: 1024 * int(words[1]) for words in lines}
        found.append(known["MemAvailable:"] + known.get("SwapFree:", 0))
    for limit, used in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            root = Path("/sys/fs/cgroup")
            found.append(int((root / limit).read_text()) - int((root / used).read_text()))
    return max(0, min(found)) if found else None
