"""What the definitions say of an encoding of the registry: its vectors, and its scores."""

from typing import Any

import numpy as np

import posenc
from posenc import definitions
from posenc.defined import of_text

Array = np.ndarray
# of the constructor, not of the mathematics: how learned tensors start, and what training draws
UNDEFINED = {
    "init_std",
    "trainable",
    "score_scale",
    "learned_scale",
    "padding_idx",
    "score_factor",
    "init_gain",
    "phase_init",
}
UNDEFINED |= {"max_global_shift", "max_local_shift", "max_global_scaling", "init_c"}
READ_TOKENS = {name for name in posenc.names() if posenc.card(name).cls.reads_x}
# how many products of q and k definitions add up under one root of head_dim, where it is more than q.k
PRODUCTS = {"tupe": lambda options: 2, "deberta": lambda options: 1 + len(options["terms"])}


def mathematics(encoding: Any) -> dict[str, Any]:
    """The arguments of the definition: the constructor's and the learned tensors."""
    learned = {name: p.detach().numpy() for name, p in encoding.named_parameters()}
    undefined = UNDEFINED | ({"gamma"} if isinstance(encoding, posenc.LearnableFourier) else set())
    kept = {name: value for name, value in encoding.options().items() if name not in undefined}
    if kept.get("inv_freq") is not None:
        kept["inv_freq"] = np.array(kept["inv_freq"])
    return kept | learned


def find(name: str) -> Any:
    """The definition of a name of the registry."""
    define = definitions.find(name)
    assert define is not None
    return define


def embedded(name: str, encoding: Any, x: Array, pos: Array) -> Array:
    """Tokens (n, d_model) with position in them."""
    if posenc.card(name).family == "additive":
        return x + find(name)(pos, **mathematics(encoding))
    return np.asarray(find(name)(x, pos, **mathematics(encoding)))


def matrices(name: str, encoding: Any, pos: Array, side: int, head_dim: int) -> Array:
    """What turns queries (side 0) or keys (side 1): (n, head_dim, head_dim), or with heads before the last two."""
    arguments = mathematics(encoding) | {"head_dim": head_dim}
    points = [float(p) if encoding.n_axes == 1 else p.astype(float) for p in pos]
    return np.array([find(name)(p, **arguments)[side] for p in points])


def scores(
    name: str, encoding: Any, q: Array, k: Array, q_pos: Array, k_pos: Array, allowed: Array, text: Array | None = None
) -> Array:
    """Scores (heads, m, n) of queries (heads, m, head_dim) and keys, scaled and with all biases.

    Args:
        name: Of the registry.
        encoding: Resolved, in float64.
        q: Before any turn.
        k: The same, with as many heads.
        q_pos: Positions of the queries.
        k_pos: Positions of the keys; for what counts keys, all that there are, in order.
        allowed: Which keys a query may see, where that changes scores.
        text: The tokens from position 0 on, for what reads them.
    """
    family, options, head_dim = posenc.card(name).family, encoding.options(), q.shape[-1]
    scale = options.get("score_scale") or (PRODUCTS.get(name, lambda _: 1)(options) * head_dim) ** -0.5
    scale *= options.get("score_factor", 1.0)
    arguments, define = mathematics(encoding), None if family == "compose" else find(name)
    if name == "pope":
        return define(q, k, q_pos, k_pos, **arguments) * scale
    if family == "piecewise":
        return define(q, k, q_pos, k_pos, **arguments)
    if name == "selective_rope":
        sides = define(text, np.arange(len(text)), **arguments)
        q, k = (turn(side[at], t) for side, t, at in zip(sides, (q, k), (q_pos, k_pos), strict=True))
    elif family == "rotary":
        q, k = (
            turn(matrices(name, encoding, at, i, head_dim), t) for i, (t, at) in enumerate(((q, q_pos), (k, k_pos)))
        )
    product = np.einsum("hid,hjd->hij", q, k) * scale
    if name in READ_TOKENS and family == "bias":
        term = define(*of_text(define, text, np.arange(len(text))), **arguments)
        return product + term[:, q_pos][:, :, k_pos]
    if name == "grape_ap":  # whose terms do not look at scores
        n, nothing = len(text), np.zeros((len(q), len(text), len(text)))
        term = define(nothing, text, np.arange(n), np.tril(np.ones((n, n), bool)), **arguments)
        return product + term[:, q_pos][:, :, k_pos]
    if name == "cope":
        return define(product, q=q, k=k, allowed=allowed, **arguments)
    if name == "dape":
        inner = arguments.pop("encoding")
        arguments = {key: value for key, value in arguments.items() if not key.startswith("encoding.")}
        bias = find(inner)(q_pos, k_pos, **mathematics(encoding.encoding))
        return define(product, bias=bias, allowed=allowed, **arguments)
    if family == "bias":
        return product + define(q_pos, k_pos, **arguments)
    if family == "content_bias":
        return product + define(q, k, q_pos, k_pos, **arguments)
    return product


def turn(matrices: Array, x: Array) -> Array:
    """Turned vectors (heads, n, head_dim), by matrices of each position, or of each position and group of heads."""
    each = matrices[:, None] if matrices.ndim == 3 else np.repeat(matrices, len(x) // matrices.shape[1], axis=1)
    return np.einsum("nhij,hnj->hni", np.broadcast_to(each, (len(each), len(x), *each.shape[-2:])), x)
