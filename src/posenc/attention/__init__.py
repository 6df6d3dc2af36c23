"""Attention with a position encoding: `attend`, and `explain` for what it would do."""

from typing import NamedTuple

from torch import Tensor

from posenc.attention.checked import make_call
from posenc.attention.choice import BACKENDS, compute, refusal_of
from posenc.encoding import Encoding, Placed

__all__ = ["BACKENDS", "Verdict", "attend", "explain"]


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
        encoding: Any `Encoding`; its embedding is not applied here, its rotation and bias are.
        pos: Positions of the queries, or what `encoding.place` made of them.
        k_pos: The same for the keys; those of the queries if left out.
        rotated: True if q and k went through `encoding.rotate` already, as cached keys have.
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
    return compute(call)


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
        refusal = refusal_of(candidate, call)
        wanted = backend in ("auto", candidate.name)
        verdict = refusal or ("taken" if wanted and not taken else "would run")
        taken = taken or verdict == "taken"
        verdicts.append(Verdict(candidate.name, verdict, candidate.memory(call)))
    return verdicts


def _check_backend(backend: str) -> None:
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"attend: unknown backend {backend!r}; use 'auto' or one of {', '.join(BACKENDS)}.")
