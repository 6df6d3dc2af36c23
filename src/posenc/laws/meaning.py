"""Laws about the results of an encoding: its definition, and the traits that it declares."""

import inspect
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import TypeCheckError
from numpy.typing import NDArray
from torch import Tensor

from posenc import character, positions, registry
from posenc.attention import attend
from posenc.defined import arguments, card_of, definition_of, matrices, of_text
from posenc.encoding import Encoding
from posenc.families import of_each_head
from posenc.laws import limits, promises
from posenc.laws.case import TOLERANCE, Case, Law, law

LAWS: list[Law] = []
RELATIVE = ("bias", "content_bias", "piecewise")
_Rotated = list[NDArray[np.float64]] | None  # queries (n_heads, n, head_dim) and keys (n_kv_heads, n, head_dim)


@law(LAWS, "definition")
def definition(case: Case) -> Iterable[str]:
    """All results, also rotated q and k, equal the float64 definition from the paper, computed one token at a time."""
    card, define = card_of(case.original), definition_of(case.original)
    if card is None or define is None:
        return
    yield from _compare(case, card, define.func, _places(case))
    learned = [p for p in case.encoding.parameters() if p.numel()]
    if (
        learned and case.dtype == torch.float64
    ):  # again with zeros: training starts from zeros, and weights decay to zero
        for p in learned:
            p.data = p.data * (case.normal(*p.shape) > -0.5)
        yield from (
            f"with zeros among the parameters it {m}" for m in _compare(case, card, define.func, [case.positions(19)])
        )


def _compare(case: Case, card: registry.Card, define: Any, places: Iterable[Tensor]) -> Iterable[str]:
    """Yield the differences from the definition at each set of positions that both accept."""
    images = 0
    for pos in places:
        if images:
            break
        n = len(pos)
        x, q = case.tokens(n, batch=1), case.normal(1, case.n_heads, n, case.head_dim)
        k = case.normal(1, case.n_kv_heads, n, case.head_dim)
        try:
            rotated = _rotate_both(card, define, case, pos, x, q, k)
            wanted = torch.from_numpy(_define(card, define, case, pos, x, q, k, rotated))
        except NotImplementedError:  # the short definition does not cover this option
            return
        except IndexError as error:  # no class token at that position, or a smaller window
            if limits.takes(case, pos):
                yield f"accepts positions that its definition refuses: {error}"
            continue
        images += n == 19 and pos.ndim > 1 and int(pos[0, 0]) == -1
        placed = case.place(pos, x)
        if card.family in ("additive", "embedded"):
            embedded = case.encoding.embed(x, placed)[0]
            yield from case.differ(embedded - x[0] if card.family == "additive" else embedded, wanted)
            continue
        yield from case.differ(case.scores(q, k, placed)[0], wanted)
        if _moves_values(case.encoding):
            v = case.normal(1, case.n_kv_heads, n, case.head_dim)
            out, mixed = attend(q, k, v, case.encoding, placed, causal=False)[0], _mixed(define, case, pos, wanted, v)
            yield from (f"the output {m}" for m in case.differ(out, mixed, wanted.abs().max()))
        if rotated is not None:  # caches hold rotated keys
            for name, got, side in zip("qk", case.encoding.rotate(q, k, placed), rotated, strict=True):
                yield from (f"rotated {name} {m}" for m in case.differ(got[0], torch.from_numpy(side)))


def _places(case: Case) -> Iterable[Tensor]:
    """Yield 19 near positions and, if accepted, 19 that half precision cannot represent, shuffled on each axis.

    Then the far ones in order, as in text; negative ones for relative encodings; and on two axes, positions of class
    tokens, each with a patch, and an image after one.
    """
    near = case.positions(19)
    for pos in (near, 7 * near + 259) if case.max_len is None else (near,):
        axes = pos[:, None] if pos.ndim == 1 else pos
        mixed = [axis[torch.randperm(19, generator=case.random)] for axis in axes.unbind(-1)]
        yield torch.stack(mixed, -1).view_as(pos)
    if case.encoding.n_axes == 1 and case.max_len is None:
        yield 7 * near + 259
    before = near - 9  # negative positions, if only distances matter
    if case.max_len is None and case.encoding.family in RELATIVE and limits.takes(case, before):
        yield before
    if case.encoding.n_axes == 2:  # class tokens have a position before the image, on both axes or on one
        yield from (near.new_tensor([[0, 0], place]) for place in ((-1, 0), (-1, 1), (-1, -2), (-2, 0)))
        yield from (
            torch.cat((near.new_tensor([first]), positions.grid(3, 6))) for first in ((-1, -1), (-1, 0), (1, 7))
        )


def _define(
    card: registry.Card, define: Any, case: Case, pos: Tensor, x: Tensor, q: Tensor, k: Tensor, rotated: _Rotated
) -> NDArray[np.float64]:
    """Return the definition's result: vectors or tokens (n, d_model), or scores (n_heads, n, n)."""
    encoding, family = case.encoding, card.family
    options = arguments(define, encoding, head_dim=case.head_dim)
    p, queries = _array(pos), _array(q[0])
    keys = np.repeat(_array(k[0]), case.n_heads // case.n_kv_heads, axis=0)
    scale = _scale(card, encoding, case.head_dim)
    product = scale * np.einsum("hid,hjd->hij", queries, keys)
    if family == "additive":
        return np.asarray(define(p, **options))
    if family == "embedded":
        return np.asarray(define(_array(x[0]), p, **options))
    if family == "piecewise":  # whole scores
        return np.asarray(define(queries, _array(k[0]), p, p, **options))
    if rotated is not None:
        each = np.repeat(rotated[1], case.n_heads // case.n_kv_heads, axis=0)
        return np.asarray(scale * np.einsum("hid,hjd->hij", rotated[0], each))
    if family == "rotary":  # the rotation is not linear in the content
        return np.asarray(scale * define(queries, _array(k[0]), p, p, **options))
    if family == "bias":
        return np.asarray(product + _term(define, encoding, x, p))
    if family == "content_bias":
        return np.asarray(product + define(queries, keys, p, p, **options))
    if family == "values":  # the scores are plain
        return np.asarray(product)
    if family == "score_map":
        return _rescored(define, encoding, options, product, queries, keys, x, p)
    return np.asarray(define(queries, keys, **options))


def _scale(card: registry.Card, encoding: Encoding, head_dim: int) -> float:
    """Return the factor of q·k: from the options, or from the number of products that a definition adds up."""
    options = encoding.options()
    products = {"tupe": 2, "deberta": 1 + len(options.get("terms", ()))}.get(card.name, 1)
    stated = options.get("score_scale") or (products * head_dim) ** -0.5
    return float(stated * options.get("score_factor", 1.0))


def _rescored(
    define: Any,
    encoding: Any,
    options: dict[str, Any],
    scores: NDArray[np.float64],
    queries: NDArray[np.float64],
    keys: NDArray[np.float64],
    x: Tensor,
    p: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return a definition's new scores without a mask; it counts columns, so they are passed in order of position."""
    known = inspect.signature(define).parameters
    in_order = "pos" in known or p.ndim > 1  # such a definition sees which keys stand later
    order = np.arange(len(p)) if in_order else p.argsort()
    given = {
        "scores": scores[..., order],
        "q": queries,
        "k": keys[:, order],
        "allowed": np.full(scores.shape[1:], True),
        "x": _array(x[0]),
        "pos": p,
    }
    if "bias" in known:  # the bias of the inner encoding
        term = definition_of(encoding.encoding)
        if term is None:
            raise NotImplementedError
        given["bias"] = _term(term.func, encoding.encoding, x, p)[..., order]
    found = define(**{name: value for name, value in given.items() if name in known}, **options)
    return np.asarray(found[..., order.argsort()])


def _term(define: Any, encoding: Encoding, x: Tensor, p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bias of a definition, from positions or from tokens."""
    given = of_text(define, _array(x[0]), p) if encoding.reads_x else (p, p)
    return np.asarray(define(*given, **arguments(define, encoding)))


def _rotate_both(
    card: registry.Card, define: Any, case: Case, pos: Tensor, x: Tensor, q: Tensor, k: Tensor
) -> _Rotated:
    """Return queries and keys, rotated by the definition's matrices; None if the definition has no matrices."""
    if card.family != "rotary" or "q_pos" in inspect.signature(define).parameters:
        return None
    with_options = partial(define, **arguments(define, case.encoding, head_dim=case.head_dim))
    sides = matrices(with_options, _array(pos), _array(x[0]) if case.encoding.reads_x else None)
    return [
        np.stack([_rotate(side[i], _array(t[0])[:, i]) for i in range(len(side))], 1)
        for side, t in zip(sides, (q, k), strict=True)
    ]


def _mixed(define: Any, case: Case, pos: Tensor, scores: Tensor, v: Tensor) -> Tensor:
    """Return the output for scores (n_heads, n, n), by a definition that rotates values and outputs."""
    options, p = arguments(define, case.encoding, head_dim=case.head_dim), _array(pos)
    sides = [define(float(t) if p.ndim == 1 else t, **options)[-2:] for t in p]  # after those of q and k, if any
    of_v, of_out = (np.stack(side) for side in zip(*sides, strict=True))
    rotated = np.repeat(np.einsum("nde,hne->hnd", of_v, _array(v[0])), case.n_heads // case.n_kv_heads, axis=0)
    return torch.from_numpy(np.einsum("nde,hne->hnd", of_out, scores.softmax(-1).numpy() @ rotated))


def _moves_values(encoding: Encoding) -> bool:
    """Whether an encoding, and its definition, transforms values and outputs itself."""
    return encoding.family in ("rotary", "values") and type(encoding).rotate_v is not Encoding.rotate_v


def _rotate(matrices: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate (n_heads, head_dim) by one matrix, or by one for each key head."""
    each = matrices if matrices.ndim == 3 else matrices[None]
    return np.asarray(np.einsum("hde,he->hd", np.repeat(each, len(x) // len(each), axis=0), x))


@law(LAWS, "traits")
def traits(case: Case) -> Iterable[str]:
    """Shift invariance, real positions, limits and dependence on distance are as declared, in every variant."""
    card = card_of(case.original)
    if card is None:
        return
    change = character.shift_change(case)
    moved = change is not None and change > TOLERANCE[case.dtype]
    if moved and card.traits["shift_invariant"]:
        yield f"declared shift_invariant, but moving all positions changes scores or values by {change:.2g} of them"
    shown = {repr(example.eval()) for example in card.examples()}  # with other options positions may have no effect
    if not moved and card.traits["shift_invariant"] is False and repr(case.original) in shown:
        yield "declared not shift_invariant, but moving all positions changes nothing"
    yield from limits.declared(case, card)
    yield from promises.missing(case, card)
    accepts = character.accepts_real(case)
    # an encoding made of others accepts what they do
    as_its_class = case.encoding.accepts_real == type(case.encoding).accepts_real
    if as_its_class and accepts != card.traits["real_positions"]:
        yield f"declared real_positions={card.traits['real_positions']}, but {'accepts' if accepts else 'refuses'} them"
    elif accepts and card.family != "none":
        x, pos = case.tokens(9), case.positions(9)
        if not list(case.differ(case.layer(x, pos.double() * 1.5), case.layer(x, pos), case.largest(x, pos))):
            yield "accepts real positions but ignores their fractions"


@law(LAWS, "integer kinds")
def integer_kinds(case: Case) -> Iterable[str]:
    """Positions may have any integer dtype, with the same result."""
    x, pos = case.tokens(9), case.positions(9)
    wanted = case.layer(x, pos, causal=False)  # with distances of both signs
    for dtype in (torch.int32, torch.int16, torch.uint8):
        if not torch.equal(case.layer(x, pos.to(dtype), causal=False), wanted):
            yield f"{dtype} positions give another result than int64"


@law(LAWS, "inverse")
def inverse(case: Case) -> Iterable[str]:
    """The inverse rotation restores q and k; values rotated and rotated back at the same positions are restored."""
    x, pos, k_pos = case.tokens(9), case.positions(9), case.positions(9, start=4)
    encoding, placed = case.encoding.layer(case.index, case.place(pos, x))
    k_placed = case.encoding.layer(case.index, case.place(k_pos, x))[1]
    q, k = case.normal(2, case.n_heads, 9, case.head_dim), case.normal(2, case.n_kv_heads, 9, case.head_dim)
    rotated = encoding.rotate(q, k, placed, k_placed)
    v = case.normal(2, case.n_kv_heads, 9, case.head_dim)
    of_v = encoding.unrotate_out(of_each_head(encoding.rotate_v(v, placed), case.n_heads), placed)
    back = (*encoding.rotate(*rotated, placed, k_placed, inverse=True), of_v)
    for name, got, wanted in zip("qkv", back, (q, k, of_each_head(v, case.n_heads)), strict=True):
        yield from (f"{name} {m}" for m in case.differ(got, wanted))


@law(LAWS, "sincere errors", by_dtype=False)
def sincere_errors(case: Case) -> Iterable[str]:
    """Each invalid argument raises its documented error, which names the encoding and shows what it got."""
    pos = case.positions(5)
    wrong_axes = pos.new_zeros(5, 1, 1, case.encoding.n_axes + 1)
    bad: list[tuple[str, type[Exception], Any]] = [
        ("half-precision positions", TypeError, lambda: case.encoding.place(pos.bfloat16())),
        ("float16 positions", TypeError, lambda: case.encoding.place(pos.half())),
        ("boolean positions", TypeError, lambda: case.encoding.place(pos.bool())),
        ("a list for positions", TypeError, lambda: case.encoding.place([0, 1])),  # type: ignore[arg-type]
        ("a pos of other axes", ValueError, lambda: case.encoding.place(wrong_axes)),
        ("half-precision tables", ValueError, lambda: case.encoding.place(pos, dtype=torch.bfloat16)),
        *_family_errors(case, pos),
    ]
    for what, kind, call in bad:
        try:
            call()
        except TypeCheckError:  # in our own tests jaxtyping's shape checks raise first
            continue
        except kind as error:
            if not (str(error).startswith(case.encoding.name) and "got" in str(error)):
                yield f"{what}: the message does not name the encoding or does not show what it got: {error}"
        except Exception as error:
            yield f"{what}: raised {type(error).__name__} instead of {kind.__name__}: {error}"
        else:
            yield f"{what}: raised nothing"
    yield from limits.inconsistencies(case)


def _family_errors(case: Case, pos: Tensor) -> Iterable[tuple[str, type[Exception], Any]]:
    encoding, family = case.encoding, case.encoding.family
    placed = case.place(pos, case.tokens(5))
    q = case.normal(1, case.n_heads, 5, case.head_dim)
    if family in ("additive", "embedded"):
        yield "tokens of another width", ValueError, lambda: encoding.embed(case.normal(1, 5, 3), placed)
    if family in ("additive", "embedded"):
        yield "tokens without positions", ValueError, lambda: encoding.embed(case.tokens(1), placed)
    if family == "rotary":
        yield "q without positions", ValueError, lambda: encoding.rotate(q[:, :, :1], q[:, :, :1], placed)
    if family == "rotary" and hasattr(encoding, "head_dim"):
        yield "q of another head_dim", ValueError, lambda: encoding.rotate(q[..., :3], q[..., :3], placed)
    if _moves_values(encoding):
        yield "v without positions", ValueError, lambda: encoding.rotate_v(q[:, :, :1], placed)
        yield "out without positions", ValueError, lambda: encoding.unrotate_out(q[:, :, :1], placed)
    if _moves_values(encoding) and hasattr(encoding, "head_dim"):  # else values may have any width
        yield "v of another head_dim", ValueError, lambda: encoding.rotate_v(q[..., :3], placed)
    if family in ("bias", "content_bias") and hasattr(encoding, "n_heads"):
        more = torch.cat((q, q), 1)
        yield "q of other heads", ValueError, lambda: encoding.bias(more, more, placed, placed)
    if family in ("content_bias", "piecewise") and hasattr(encoding, "head_dim"):
        other = q[..., :3]
        yield "q of another head_dim", ValueError, lambda: encoding.bias(other, other, placed, placed)
    if family == "score_map" and (hasattr(encoding, "head_dim") or hasattr(encoding, "n_heads")):
        odd = q[..., :3] if hasattr(encoding, "head_dim") else torch.cat((q, q), 1)
        yield "q of another shape", ValueError, lambda: encoding.rescore(odd @ odd.mT, odd, odd, placed, placed, None)
    for what, call in limits.refused(case):
        yield what, ValueError, call


def _array(t: Tensor) -> NDArray[np.float64]:
    return t.detach().double().numpy()
