"""The backends, which of them computes a call, and how."""

import torch
from torch import Tensor

from posenc.attention import finite, operator
from posenc.attention.blocked import Blocked
from posenc.attention.call import Backend, Call
from posenc.attention.flex import Flex
from posenc.attention.piecewise import PiecewisePasses
from posenc.attention.room import lacks
from posenc.attention.whole import SDPA, Reference

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
    if isinstance(backend, Blocked) and operator.fits(call):
        return operator.run(call)
    call, spoiled = finite.without(call, backend.name)
    out = backend.run(call)
    return out if spoiled is None else out.masked_fill(spoiled[..., None], torch.nan)


def refusal_of(backend: Backend, call: Call) -> str | None:
    """Return why a backend does not run a call: for what it is, or for lack of memory."""
    return backend.rejects(call) or _lacks(backend, call)


def _lacks(backend: Backend, call: Call) -> str | None:
    """Return that there is too little memory, or None; a compiler is asked for no sizes, which it would hold fast."""
    return None if torch.compiler.is_compiling() else lacks(backend.memory(call), call.q.device)
