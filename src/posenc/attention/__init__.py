"""Attention with a position encoding: `attend` computes it, `explain` reports which backend would."""

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

CHECKED_FROM = 2**30  # bytes; for smaller needs, reading the free memory would take too long
# "auto" takes the first backend that does not refuse.
_ORDER: list[Backend] = [SDPA(), PiecewisePasses(), Flex(), Blocked(), Reference(), Reference(exact=True)]
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _ORDER}


class Verdict(NamedTuple):
    """The report of `explain` on one backend."""

    backend: str
    verdict: str  # "taken", "would run", or the reason why it refuses
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
        encoding: Any `Encoding`. Its rotations (of values and outputs too) and its bias are applied, its embedding
            is not.
        pos: Positions of the queries, or the result of `encoding.place` for them.
        k_pos: The same for the keys; the default is `pos`.
        rotated: True if q and k have been through `encoding.rotate`, and v through `encoding.rotate_v` at the
            positions of the keys, as in a cache. Outputs are rotated back in both cases.
        causal: Query i sees key j if j <= i + k_len - q_len: by index, aligned at the end.
        mask: Boolean, True where attention is allowed, or floating, added to the scores;
            broadcast to (batch, n_heads, q_len, k_len).
        window: Each query sees only the latest `window` keys, its own included (in both directions if not causal).
        document_ids: (k_len,) or (batch, k_len): tokens see only their own document. With a cache,
            the last q_len entries belong to the queries.
        scale: Replaces `encoding.score_scale(head_dim)` as the factor of q.k.
        dropout_p: Probability of dropping an attention weight.
        backend: "auto", or one of `posenc.attention.BACKENDS`. "reference-float64" computes in
            float64 for inputs of any dtype.

    Returns:
        (batch, n_heads, q_len, width of v) in the dtype of q, or autocast's. A row that may see no key is zero.

    Raises:
        ValueError: Shapes, lengths or options do not match, or a named backend refuses.
        MemoryError: The call needs, by estimate, more memory than is free.
        TypeError: An argument has a wrong type.

    Masks depend on indices, never on positions. Cache slots may hold any value: a slot with NaN makes the
    results NaN for the queries that may see it, and for no others. On a GPU, "sdpa" and "flex" guarantee
    this only for slots that no query may see. Infinity has the same effect as NaN where some queries may
    not see the slot; where all queries see it, it takes part in the sums.
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
    """Report for each backend whether `attend` would use it for the same arguments, or why not.

    No score is computed. Memory is an estimate, in bytes, of the backend's allocations beyond its inputs and
    its output.
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
    """Compute a call with the backend that it names, or with the first that does not refuse.

    Raises:
        ValueError: The named backend refuses, or all backends do.
        MemoryError: The call needs, by estimate, more memory than is free.
    """
    name = call.backend
    if name == "auto":
        short = False
        for candidate in BACKENDS.values():
            if candidate.rejects(call) is None:
                if _lacks_memory(candidate, call) is None:
                    return _run(candidate, call)
                short = True
        refusals = "\n".join(f"  {b.name}: {_refusal_of(b, call)}" for b in BACKENDS.values())
        raise (MemoryError if short else ValueError)(f"attend: no backend can run this call:\n{refusals}")
    if (refusal := BACKENDS[name].rejects(call)) is not None:
        raise ValueError(f"attend: the backend {name!r} cannot run this call: {refusal}")
    if (refusal := _lacks_memory(BACKENDS[name], call)) is not None:
        raise MemoryError(
            f"attend: the backend {name!r} has too little memory: {refusal} Pass fewer queries at a time."
        )
    return _run(BACKENDS[name], call)


def _run(backend: Backend, call: Call) -> Tensor:
    """Compute a call with a backend that does not refuse; rotate values before it and outputs after it."""
    out_dtype = call.out_dtype
    if isinstance(backend, Blocked) and compiled.fits(call):
        out = compiled.run(call.with_rotated_v())
        return call.encoding.unrotate_out(out, call.placed).to(out_dtype)
    if isinstance(backend, Reference):
        call = backend.widened(call)  # before any rotation, which would round
    call, spoiled = finite.without_nonfinite(call, backend.name)
    call = call.with_rotated_v()
    if isinstance(backend, Blocked) and not (call.q.numel() and call.is_plain):
        with no_autocast(call.q.device):
            out = compiled.traced(call)
    else:
        out = backend.run(call)
    out = call.encoding.unrotate_out(out, call.placed).to(out_dtype)
    return out if spoiled is None else out.masked_fill(spoiled[..., None], torch.nan)


def _refusal_of(backend: Backend, call: Call) -> str | None:
    """Return why a backend refuses a call, for lack of memory too; None if it does not."""
    return backend.rejects(call) or _lacks_memory(backend, call)


def _lacks_memory(backend: Backend, call: Call) -> str | None:
    """Return the lack of memory as a sentence, or None. A compiler would specialise on the sizes read here."""
    if torch.compiler.is_compiling() or (needed := backend.memory(call)) < CHECKED_FROM:
        return None
    device = call.q.device.type
    free = memory.available(device)
    if free is None or needed <= free:
        return None
    return f"it needs about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on this {device}."
