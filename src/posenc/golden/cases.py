"""The cases of golden vectors: small encodings with exact inputs, and the results of their definitions."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import posenc
from posenc import definitions, registry
from posenc.defined import arguments, definition_of, matrices, of_text

TOLERANCE = 1e-9  # of float64 at positions up to 1000, with angles of thousands for learned frequencies
RESOLVED = 5000  # the length of the text, for encodings that depend on it
Array = NDArray[Any]
Meaning = dict[str, tuple[Array, str]]  # tensors by name, each with a description
# small widths, so that files stay small; a card's variant overrides them if they do not fit
_SMALL: dict[str, dict[str, Any]] = {
    **{name: {"window": (3, 4)} for name in ("beit", "swin", "swin_v2")},
    "decomposed_2d": {"size": (3, 4)},
    "fope": {"head_dim": 8, "original_max_len": 100},
    "graphormer": {"distances": None},  # of a tree of 12 nodes
    **{name: {"viewmats": ("spiral", 4)} for name in ("gta", "prope")},
    "learned": {"d_model": 8, "max_len": 16},
    "learned_2d": {"height": 3, "width": 4},
    "liere": {"head_dim": 16},
    "mrope": {"head_dim": 16, "sections": (2, 3, 3)},
    "tupe": {"max_len": 16},
}
_WIDTHS = {"head_dim": 8, "d_model": 8}
_NEAR, _K_NEAR = (0, 1, 2, 3, 7, 11), (0, 1, 4, 6, 9)
_FAR = {"binary": (200,), "liere": (60,), "fox": (), "graphormer": (), "learned": (), "tupe": ()}
_CELLS = ((0, 0), (0, 1), (1, 0), (2, 3), (1, 2), (0, 3))
_LAW = "scores[h, i, j] = score_scale * sum_d q[h, i, d] k[h, j, d] + bias[h, i, j]; no mask"


@dataclass(frozen=True)
class Case:
    """One encoding with one set of options: its inputs and outputs."""

    options: dict[str, Any]
    outside: list[str]
    n_axes: int
    score_scale: float | None
    law: str
    tensors: dict[str, Array] = field(repr=False)
    meanings: dict[str, str] = field(repr=False)


def cases_of(card: registry.Card) -> list[Case]:
    """Return the cases of an encoding: its card's example and each of its variants, in small widths.

    Raises:
        RuntimeError: The implementation does not agree with the definition.

    >>> case, *others = cases_of(registry.card("sinusoidal"))
    >>> case.law, case.tensors["definition.code"][1, :2].tolist()
    ('embedded = x + code, code = sinusoidal(pos)', [0.8414709848078965, 0.5403023058681398])
    """
    return [_case(card, variant) for variant in ({}, *card.variants)]


def definition(card: registry.Card) -> Callable[..., Any]:
    """Return the definition of an encoding.

    Raises:
        ValueError: There is none.
    """
    define = definitions.find(card.name)
    if define is None:
        raise ValueError(f"golden: {card.name} has no definition, so there is nothing exact to write. Add one.")
    return define


def _construct(card: registry.Card, variant: Mapping[str, Any]) -> Any:
    """Return the encoding in small widths, resolved for one length, with learned tensors of exact numbers."""
    given = dict(card.example) | dict(variant)
    small: dict[str, Any] = {key: width for key, width in _WIDTHS.items() if key in card.example and key not in variant}
    small |= {key: value for key, value in _SMALL.get(card.name, {}).items() if key not in variant}
    if card.name == "graphormer":
        small["distances"] = posenc.Graphormer.tree(12)
    with torch.random.fork_rng(devices=[]):  # constructors draw random numbers, which are replaced
        try:
            encoding = card.cls(**{**given, **small})
        except (ValueError, TypeError):  # widths that do not fit the variant
            encoding = card.cls(**given)
    encoding = encoding.resolve(RESOLVED).double().eval()
    for name, parameter in encoding.named_parameters():
        parameter.data = torch.from_numpy(np.asarray(_exact(parameter.shape, f"{card.name} {name}") / 2))
    return encoding


def _exact(shape: tuple[int, ...], seed: str) -> Array:
    """Return multiples of 1/64 from -2 to 2, the same on every machine."""
    draw = random.Random(seed).random
    count = int(np.prod(shape))
    return np.array([(int(draw() * 257) - 128) / 64 for _ in range(count)]).reshape(shape)


def _case(card: registry.Card, variant: Mapping[str, Any]) -> Case:
    encoding, define = _construct(card, variant), definition(card)
    learned = {name: p.detach().numpy() for name, p in encoding.named_parameters()}
    options, known = encoding.options(), set(signature(define).parameters)
    given = arguments(define, encoding, head_dim=getattr(encoding, "head_dim", 4))
    runs = {"additive": _embed, "embedded": _embed, "rotary": _rotate, "score_map": _rescore, "values": _mix}
    run = runs.get(card.family, _score)
    if run is _rotate and type(encoding).rotate_v is not posenc.Encoding.rotate_v:
        run = _surround
    inputs, exact, made, law = run(card, encoding, partial(define, **given))
    for name, (wanted, _) in exact.items():
        size = max(1.0, float(np.abs(wanted).max()))
        off = float(np.abs(made[name] - wanted).max()) / size
        if not off <= TOLERANCE:
            raise RuntimeError(f"golden: {name} of {card.name} must match its definition; off by {off:.2g}. Fix one.")
    parts = {f"input.{name}": t for name, t in inputs.items()}
    parts |= {f"parameter.{name}": (t, f"the learned tensor {name}") for name, t in learned.items()}
    parts |= {f"definition.{name}": t for name, t in exact.items()}
    parts |= {f"implementation.{n}": (made[n], f"posenc's result: {m}") for n, (_, m) in exact.items()}
    return Case(
        options={name: _plain(value, name) for name, value in options.items()},
        outside=sorted(set(options) - known - {"encoding"}),
        n_axes=encoding.n_axes,
        score_scale=None if run is _embed else encoding.score_scale(_head_dim(encoding)),
        law=law,
        tensors={name: np.array(t, order="C") for name, (t, _) in parts.items()},
        meanings={name: meaning for name, (_, meaning) in parts.items()},
    )


def _plain(value: Any, name: str) -> Any:
    """Return an option ready for JSON."""
    value = getattr(value, "table", value)  # the distances of a graph
    if isinstance(value, torch.Tensor):
        return {"tensor": f"parameter.{name}"} if isinstance(value, torch.nn.Parameter) else value.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one, name) for one in value]
    return value


def _head_dim(encoding: Any) -> int:
    return int(getattr(encoding, "head_dim", 4))


def _positions(card: registry.Card, encoding: Any) -> tuple[Array, Array]:
    """Return positions of queries and of keys, the latter ascending."""
    if encoding.n_axes > 1:
        cells = [[*cell, *(sum(cell) % 3 for _ in range(encoding.n_axes - 2))] for cell in _CELLS]
        return np.array(cells), np.array(cells[:-1])
    far = _FAR.get(card.name, (100, 1000))
    return np.array([*_NEAR, *far]), np.array([*_K_NEAR, *far])


def _embed(
    card: registry.Card, encoding: Any, define: Callable[..., Array]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    pos, _ = _positions(card, encoding)
    x = _exact((len(pos), encoding.d_model), f"{card.name} x")
    inputs = {"pos": (pos, "positions, one a row of x"), "x": (x, "token vectors (seq, d_model)")}
    placed = encoding.place(torch.from_numpy(pos), dtype=torch.float64)
    made = {"embedded": encoding.embed(torch.from_numpy(x)[None], placed)[0].detach().numpy()}
    if card.family == "embedded":
        exact = {"embedded": (define(x, pos), "token vectors with position (seq, d_model)")}
        return inputs, exact, made, f"embedded = {card.name}(x, pos)"
    code = define(pos)
    nothing = torch.zeros(1, *x.shape, dtype=torch.float64)
    made["code"] = encoding.embed(nothing, placed)[0].detach().numpy()
    exact = {"code": (code, "the added encoding (seq, d_model)"), "embedded": (x + code, "x + code (seq, d_model)")}
    return inputs, exact, made, f"embedded = x + code, code = {card.name}(pos)"


def _tokens(card: registry.Card, encoding: Any) -> tuple[Meaning, Array, Array, Array, Array]:
    """Return queries and keys with their positions; there are as many key heads as query heads, or half as many."""
    pos, k_pos = _positions(card, encoding)
    if encoding.reads_x:  # one text
        k_pos = pos
    n_kv = getattr(encoding, "n_kv_heads", None)
    n_heads = 2 * n_kv if n_kv else getattr(encoding, "n_heads", 2)
    d = _head_dim(encoding)
    q = _exact((n_heads, len(pos), d), f"{card.name} q")
    k = _exact((n_kv or n_heads, len(k_pos), d), f"{card.name} k")
    inputs = {
        "q": (q, "queries (n_heads, q_len, head_dim)"),
        "k": (k, "keys (n_kv_heads, k_len, head_dim); query head h uses key head h // (n_heads / n_kv_heads)"),
        "q_pos": (pos, "positions of the queries"),
        "k_pos": (k_pos, "positions of the keys"),
    }
    return inputs, q, k, pos, k_pos


def _text(card: registry.Card, encoding: Any, inputs: Meaning) -> tuple[Array, torch.Tensor] | tuple[None, None]:
    """Return the text of an encoding that reads one, also as a batch; it joins the inputs."""
    if not encoding.reads_x:
        return None, None
    text = _exact((len(inputs["q_pos"][0]), encoding.d_model), f"{card.name} x")
    inputs["x"] = (text, "token vectors (seq, d_model), which the encoding reads")
    return text, torch.from_numpy(text)[None]


def _place(encoding: Any, pos: Array, k_pos: Array, x: torch.Tensor | None = None) -> tuple[Any, Any]:
    placed, k_placed = (encoding.place(torch.from_numpy(p), x, dtype=torch.float64) for p in (pos, k_pos))
    return placed, k_placed


def _products(q: Array, k: Array) -> Array:
    products: Array = np.einsum("hid,hjd->hij", q, np.repeat(k, len(q) // len(k), axis=0))
    return products


def _rotate(
    card: registry.Card, encoding: Any, define: Callable[..., Any]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    inputs, q, k, pos, k_pos = _tokens(card, encoding)
    text, x = _text(card, encoding, inputs)
    rotated = encoding.rotate(torch.from_numpy(q)[None], torch.from_numpy(k)[None], *_place(encoding, pos, k_pos, x))
    ours = [t[0].detach().numpy() for t in rotated]
    scale = encoding.score_scale(ours[0].shape[-1])
    made = {"rotated_q": ours[0], "rotated_k": ours[1], "scores": scale * _products(*ours)}
    said = "score_scale * <rotated_q, rotated_k> (n_heads, q_len, k_len), without a mask"
    if card.name == "pope":  # its dimensions double, in an order that does not change scores
        scores = encoding.score_scale(q.shape[-1]) * define(q, k, pos.astype(float), k_pos.astype(float))
        return inputs, {"scores": (scores, said)}, made, f"scores = score_scale * {card.name}(q, k, q_pos, k_pos)"
    exact: Meaning = {}
    for side, (name, t, at) in enumerate((("rotated_q", q, pos), ("rotated_k", k, k_pos))):
        turn = matrices(define, at, text)[side]
        each = np.repeat(turn, len(t) // turn.shape[1], axis=1) if turn.ndim == 4 else turn[:, None]
        found = np.einsum("nhij,hnj->hni", np.broadcast_to(each, (len(at), len(t), *turn.shape[-2:])), t)
        exact[name] = (found, f"{name[-1]} rotated by its own position, of the shape of {name[-1]}")
    exact["scores"] = (scale * _products(exact["rotated_q"][0], exact["rotated_k"][0]), said)
    law = f"rotated_q[h, i] = R(q_pos[i]) q[h, i], the same for k, R = {card.name}; scores = score_scale * products"
    if text is not None:
        law = law.replace("R(q_pos[i])", "R[i]").replace(card.name, f"{card.name}(x, pos)")
    return inputs, exact, made, law


def _at(encoding: Any, p: Any) -> Any:
    """Return one position as a definition takes it."""
    return float(p) if encoding.n_axes == 1 else p.astype(float)


def _surround(
    card: registry.Card, encoding: Any, define: Callable[..., Any]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    """Return what becomes of queries and keys, then of values and outputs."""
    inputs, exact, made, law = _rotate(card, encoding, define)
    v_inputs, v_exact, v_made, v_law = _mix(card, encoding, define)
    return inputs | v_inputs, exact | v_exact, made | v_made, f"{law}; {v_law}"


def _mix(
    card: registry.Card, encoding: Any, define: Callable[..., Any]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    pos, k_pos = _positions(card, encoding)
    v = _exact((1, len(k_pos), _head_dim(encoding)), f"{card.name} v")
    weights = np.abs(_exact((2, len(pos), len(k_pos)), f"{card.name} weights"))
    inputs = {
        "v": (v, "values (n_kv_heads, k_len, head_dim)"),
        "weights": (weights, "attention weights (n_heads, q_len, k_len), whose sums are not 1"),
        "q_pos": (pos, "positions of the queries"),
        "k_pos": (k_pos, "positions of the keys"),
    }
    placed, k_placed = _place(encoding, pos, k_pos)
    ours = encoding.rotate_v(torch.from_numpy(v)[None], k_placed)
    out = encoding.unrotate_out(torch.from_numpy(weights) @ ours, placed)
    made = {"rotated_v": ours[0].numpy(), "out": out[0].numpy()}
    rotated = np.stack([v[:, j] @ define(_at(encoding, p))[-2].T for j, p in enumerate(k_pos)], 1)
    mixed = weights @ rotated
    exact: Meaning = {"rotated_v": (rotated, "v rotated by its own position, of the shape of v")}
    exact["out"] = (
        np.stack([mixed[:, i] @ define(_at(encoding, p))[-1].T for i, p in enumerate(pos)], 1),
        "the weighted sum of rotated_v, rotated back by the query's position (n_heads, q_len, head_dim)",
    )
    law = (
        "rotated_v[0, j] = V(k_pos[j]) v[0, j], out[h, i] = O(q_pos[i]) sum_j weights[h, i, j] rotated_v[0, j], "
        f"V, O = {card.name}"
    )
    return inputs, exact, made, law


def _score(
    card: registry.Card, encoding: Any, define: Callable[..., Array]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    inputs, q, k, pos, k_pos = _tokens(card, encoding)
    text, x = _text(card, encoding, inputs)
    placed, k_placed = _place(encoding, pos, k_pos, x)
    wide = torch.from_numpy(q)[None], torch.from_numpy(np.repeat(k, len(q) // len(k), axis=0))[None]
    rotated = encoding.rotate(*wide, placed, k_placed)
    scale = encoding.score_scale(q.shape[-1])
    made = {"scores": scale * _products(*(t[0].detach().numpy() for t in rotated))}
    term = encoding.bias(*wide, placed, k_placed)
    if term is not None:
        made["bias"] = np.broadcast_to(term[0].detach().numpy(), made["scores"].shape)
        made["scores"] = made["scores"] + made["bias"]
    said = "scores (n_heads, q_len, k_len), without a mask"
    if card.family == "piecewise":  # its definition returns whole scores
        return inputs, {"scores": (define(q, k, pos, k_pos), said)}, made, f"scores = {card.name}(q, k, q_pos, k_pos)"
    if card.family == "none":
        return inputs, {"scores": (define(q, k), said)}, made, "scores = score_scale * products of q and k"
    arguments = {"bias": (pos, k_pos), "content_bias": (q, k, pos, k_pos)}[card.family]
    bias = define(*(arguments if text is None else of_text(define, text, pos)))
    whole = np.broadcast_to(bias, made["scores"].shape)
    exact = {"bias": (whole, "the bias that is added to the scores (n_heads, q_len, k_len)")}
    exact["scores"] = (scale * _products(q, k) + whole, said)
    return inputs, exact, made, _LAW


def _rescore(
    card: registry.Card, encoding: Any, define: Callable[..., Array]
) -> tuple[Meaning, Meaning, dict[str, Array], str]:
    inputs, q, k, pos, k_pos = _tokens(card, encoding)
    scores = _exact((len(q), len(pos), len(k_pos)), f"{card.name} scores")
    allowed = pos[:, None] >= k_pos[None, :]
    text, x = _text(card, encoding, inputs)
    inputs["scores"] = (scores, "scaled scores with all biases (n_heads, q_len, k_len)")
    inputs["allowed"] = (allowed, "true if a query may see a key (q_len, k_len); other scores are meaningless")
    if card.name == "dape":  # the inner bias has its own definition
        term = definition_of(encoding.encoding)
        assert term is not None
        first: tuple[Array, ...] = (term(pos, k_pos),)
    else:
        first = (q, k) if text is None else (text, pos)
    exact = np.where(allowed, define(scores, *first, allowed), 0.0)
    batch = (torch.from_numpy(t)[None] for t in (scores, q, k))
    ours = encoding.rescore(*batch, *_place(encoding, pos, k_pos, x), torch.from_numpy(allowed))[0].detach().numpy()
    said = "scores after the map (n_heads, q_len, k_len), 0 where not allowed"
    reads = {"dape": "bias inside", "grape_ap": "x, pos"}.get(card.name, "q, k")
    law = f"scores' = {card.name}(scores, {reads}), whole rows at once"
    return inputs, {"scores": (exact, said)}, {"scores": np.where(allowed, ours, 0.0)}, law
