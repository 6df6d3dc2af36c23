"""Attention with a position encoding: `attend`, and `explain` for what it would do."""

from typing import NamedTuple

import torch
from torch import Tensor

from posenc import memory
from posenc.attention import compiled, finite
from posenc.attention.blocked import Blocked
from posenc.attention.call import Backend, Call
from posenc.attention.checked import make_call
from posenc.attention.flex import Flex
from posenc.attention.piecewise import PiecewisePasses
from posenc.attention.whole import SDPA, Reference
from posenc.encoding import Encoding, Placed
from posenc.families import no_autocast

__all__ = ["BACKENDS", "Verdict", "attend", "explain"]

MUCH = 2**30  # bytes, from which on asking costs little next to taking
# The first that does not refuse is taken.
_ORDER: list[Backend] = [SDPA(), PiecewisePasses(), Flex(), Blocked(), Reference(), Reference(exact=True)]
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _ORDER}


class Verdict(NamedTuple):
    """What `explain` says of one backend."""

    backend: str
    verdict: str  # "taken", "would run", or the sentence with which it refuses
    memory: int  # bytes beyond q, k, v and the output


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    pos: Tensor | Placed,
    k_pos: Tensor | Placed | None = None,
    *,
    rotated: bool = False,
    causal: bool = True,
    mask: Tensor | None = None,
    window: int | None = None,
    document_ids: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Attend with any position encoding.

    Args:
        q: Queries (batch, n_heads, q_len, head_dim).
        k: Keys (batch, n_kv_heads, k_len, head_dim); n_kv_heads divides n_heads.
        v: Values (batch, n_kv_heads, k_len, any width).
        encoding: Any `Encoding`; its embedding is not applied here; its rotations, of values and outputs too, and its
            bias are.
        pos: Positions of the queries, or what `encoding.place` made of them.
        k_pos: The same for the keys; those of the queries if left out.
        rotated: True if q and k went through `encoding.rotate` already, and v through `encoding.rotate_v` at the
            positions of the keys, as what a cache holds has; outputs are rotated back all the same.
        causal: Query i sees key j if j <= i + k_len - q_len: by index, aligned at the end.
        mask: Boolean, True where attention is allowed, or floating, added to the scores;
            broadcast to (batch, n_heads, q_len, k_len).
        window: See the latest `window` keys only, itself included (both ways if not causal).
        document_ids: (k_len,) or (batch, k_len): tokens see only their own document. With a cache
            the last q_len entries are those of the queries.
        scale: Replaces `encoding.score_scale(head_dim)` in front of q.k.
        dropout_p: Probability of dropping an attention weight.
        backend: "auto", or one of `posenc.attention.BACKENDS`. "reference-float64" computes in
            float64 whatever the inputs are.

    Returns:
        (batch, n_heads, q_len, width of v) in the dtype of q, or autocast's. A row that may see no key is zero.

    Raises:
        ValueError: Shapes, lengths or options that do not fit, or a named backend that refuses.
        MemoryError: What would be taken, by estimate, is more than there is.
        TypeError: Arguments of a wrong kind.

    Which keys are masked is decided by index, never by position. A slot may hold anything:
    one of NaN makes the results of those queries NaN that may see it, and no others (by "sdpa",
    "lanes" and "flex" on a GPU: where no query may see it). Infinity does the same where some
    queries may not see it; where all do, it is computed with.
    """
    _check_backend(backend)
    call = make_call(
        q, k, v, encoding, pos, k_pos, rotated, causal, mask, window, document_ids, scale, dropout_p, backend
    )
    return _compute(call)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding,
    pos: Tensor | Placed,
    k_pos: Tensor | Placed | None = None,
    *,
    rotated: bool = False,
    causal: bool = True,
    mask: Tensor | None = None,
    window: int | None = None,
    document_ids: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> list[Verdict]:
    """Say for each backend whether `attend` with the same arguments would take it, or why not.

    No score is computed. Memory is an estimate of what the backend allocates beyond its inputs and
    its output, in bytes.
    """
    _check_backend(backend)
    call = make_call(
        q, k, v, encoding, pos, k_pos, rotated, causal, mask, window, document_ids, scale, dropout_p, backend
    )
    verdicts, taken = [], False
    for candidate in BACKENDS.values():
        refusal = _refusal_of(candidate, call)
        wanted = backend in ("auto", candidate.name)
        verdict = refusal or ("taken" if wanted and not taken else "would run")
        taken = taken or verdict == "taken"
        verdicts.append(Verdict(candidate.name, verdict, candidate.memory(call)))
    return verdicts


def _check_backend(backend: str) -> None:
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"attend: unknown backend {backend!r}; use 'auto' or one of {', '.join(BACKENDS)}.")


def _compute(call: Call) -> Tensor:
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
        refusals = "\n".join(f"  {b.name}: {_refusal_of(b, call)}" for b in BACKENDS.values())
        raise (MemoryError if short else ValueError)(f"attend: no backend can run this call:\n{refusals}")
    if (refusal := BACKENDS[name].rejects(call)) is not None:
        raise ValueError(f"attend: the backend {name!r} cannot run this call: {refusal}")
    if (refusal := _lacks(BACKENDS[name], call)) is not None:
        raise MemoryError(f"attend: the backend {name!r} has no room: {refusal} Take fewer queries at a time.")
    return _run(BACKENDS[name], call)


def _run(backend: Backend, call: Call) -> Tensor:
    """Compute a call by a backend that does not refuse: values rotate before it, and outputs back behind it."""
    out_dtype = call.out_dtype
    if isinstance(backend, Blocked) and compiled.fits(call):
        out = compiled.run(call.valued())
        return call.encoding.unrotate_out(out, call.placed).to(out_dtype)
    call, spoiled = finite.without(call, backend.name)
    if isinstance(backend, Reference):  # before any rotation, which would round
        call = backend.widened(call)
    call = call.valued()
    if isinstance(backend, Blocked) and not (call.q.numel() and call.is_plain):
        with no_autocast(call.q.device):
            out = compiled.traced(call)
    else:
        out = backend.run(call)
    out = call.encoding.unrotate_out(out, call.placed).to(out_dtype)
    return out if spoiled is None else out.masked_fill(spoiled[..., None], torch.nan)


def _refusal_of(backend: Backend, call: Call) -> str | None:
    """Return why a backend does not run a call: for what it is, or for lack of memory."""
    return backend.rejects(call) or _lacks(backend, call)


def _lacks(backend: Backend, call: Call) -> str | None:
    """Return that there is too little memory, or None; a compiler is asked for no sizes, which it would hold fast."""
    if torch.compiler.is_compiling() or (needed := backend.memory(call)) < MUCH:
        return None
    device = call.q.device.type
    free = memory.available(device)
    if free is None or needed <= free:
        return None
    return f"it would take about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are left on this {device}."
