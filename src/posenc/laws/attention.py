"""Laws about attention: caches, packing, padding, order, and the backends."""

import itertools
from collections.abc import Iterable
from typing import Any

import torch

from posenc import positions
from posenc.attention import attend, explain
from posenc.compose import Compose
from posenc.encoding import Encoding
from posenc.families import of_each_head
from posenc.laws.case import Case, Law, law

LAWS: list[Law] = []


@law(LAWS, "permutation")
def permutation(case: Case) -> Iterable[str]:
    """Permuting the tokens together with their positions permutes the output."""
    x, pos = case.tokens(11), case.positions(11)
    order = torch.randperm(11, generator=case.random)
    got = case.layer(x[:, order], pos[order], causal=False)
    yield from case.differ(got, case.layer(x, pos, causal=False)[:, :, order], case.largest(x, pos))


@law(LAWS, "cache")
def cache(case: Case) -> Iterable[str]:
    """Rows computed with a cache equal those of one pass, for any chunks."""
    x, pos = case.tokens(12), case.positions(12, start=3)
    largest = case.largest(x, pos)
    seen = torch.rand(12, 12, generator=case.random) > 0.3
    for options in ({}, {"window": 5}, {"document_ids": torch.arange(12) // 5}, {"mask": seen}):
        wanted = case.layer(x, pos, **options)
        for chunks in ((5, 7), (4, 1, 1, 6), *(() if options else ((11, 1), (1,) * 12, (0, 3, 0, 9)))):
            got = case.cached(x, pos, chunks, **options)
            yield from (f"in chunks {chunks} with {list(options)} it {m}" for m in case.differ(got, wanted, largest))


@law(LAWS, "packing")
def packing(case: Case) -> Iterable[str]:
    """Documents packed into one sequence give the same results as separate sequences."""
    lengths = (5, 1, 6)
    x, ids = (
        case.tokens(sum(lengths)),
        torch.repeat_interleave(torch.tensor([7, 2, 5]), torch.tensor(lengths)),
    )
    pos = positions.on_each_axis(positions.packed(ids), case.encoding.n_axes)
    largest = case.largest(x, case.positions(sum(lengths)))
    for causal in (True, False):
        packed = case.layer(x, pos, document_ids=ids, causal=causal)
        apart = [case.layer(part, case.positions(part.shape[1]), causal=causal) for part in x.split(lengths, 1)]
        yield from case.differ(packed, torch.cat(apart, 2), largest)


@law(LAWS, "left padding")
def left_padding(case: Case) -> Iterable[str]:
    """Padding on the left or in a gap changes no result, even with NaN in padded slots; padded queries get zeros."""
    x, pad = case.tokens(9), 3
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, :pad] = False
    pos = positions.on_each_axis(positions.left_padded(real), case.encoding.n_axes)
    padded = x.masked_fill(
        ~real[..., None] & (torch.arange(x.shape[-1]) % 3 > 0), torch.nan
    )  # some dimensions stay finite
    largest = case.largest(x, case.positions(9))
    masks = {"boolean": real[:, None, None, :]}
    masks["floating"] = torch.zeros(2, 1, 1, 9, dtype=case.dtype).masked_fill(~masks["boolean"], -torch.inf)
    for kind, mask in masks.items():
        got = case.layer(padded, pos, mask=mask)
        yield from (f"unpadded row: {m}" for m in case.differ(got[:1], case.layer(x[:1], case.positions(9)), largest))
        alone = case.layer(x[1:, pad:], case.positions(9 - pad))
        yield from (f"with a {kind} mask it {m}" for m in case.differ(got[1:, :, pad:], alone, largest))
        if bool(got[1, :, :pad].ne(0).any()):
            yield f"with a {kind} mask the padded rows are not zero"
    real[1] = (torch.arange(9) < 4) | (torch.arange(9) > 5)  # a gap, as between the messages of a chat
    padded = x.masked_fill(~real[..., None] & (torch.arange(x.shape[-1]) % 3 > 0), torch.nan)
    pos = positions.on_each_axis(positions.left_padded(real), case.encoding.n_axes)
    got = case.layer(padded, pos, mask=real[:, None, None, :])
    alone = case.layer(x[1:, real[1]], case.positions(7))
    yield from (f"around a gap it {m}" for m in case.differ(got[1:, :, real[1]], alone, largest))


@law(LAWS, "padding in gradients", by_dtype=False)
def padding_in_gradients(case: Case) -> Iterable[str]:
    """NaN in padded slots reaches no gradient, in any backend."""
    n, pad = 9, 3
    real = torch.arange(n) >= pad
    heads = {"q": case.n_heads, "k": case.n_kv_heads, "v": case.n_kv_heads}
    encoding, placed = case.encoding.layer(case.index, case.place(case.positions(n), case.tokens(n, batch=1)))
    options: dict[str, Any] = {"mask": real[None, None, None]}
    qkv = {of: case.normal(1, h, n, case.head_dim) for of, h in heads.items()}
    given = {of: t.masked_fill(~real[:, None], torch.nan).requires_grad_() for of, t in qkv.items()}
    q, k, v = given.values()
    for name in _able(q, k, v, encoding, placed, **options):
        out = attend(q, k, v, encoding, placed, backend=name, **options)
        learned = {of: p for of, p in encoding.named_parameters() if p.requires_grad}
        wanted = {**given, **learned}
        loss = out[:, :, pad:].square().sum()
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, retain_graph=True)
        for of, gradient in zip(wanted, found, strict=True):
            if gradient is not None and not bool(gradient.isfinite().all()):
                yield f"{name}: the gradient of {of} is not finite"


def _able(*call: Any, **options: Any) -> list[str]:
    """Return the backends that accept a call; a backend that must be requested by name has separate tests."""
    return [v.backend for v in explain(*call, **options) if v.verdict in ("taken", "would run")]


def _calls(case: Case, n: int) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield kinds of attention over n keys, by name, with their options."""
    seen = torch.rand(case.batch, case.n_heads, n, n, generator=case.random) > 0.3
    ids = torch.arange(n) // 4
    yield "causal", {}
    yield "bidirectional", {"causal": False}
    yield "window", {"window": 3}
    yield "window both ways", {"window": 3, "causal": False}
    yield "documents", {"document_ids": ids}
    yield "documents by row", {"document_ids": torch.stack((ids, ids.flip(0)))}
    yield "boolean mask", {"mask": seen, "causal": False}
    yield "mask by query", {"mask": seen[0, 0]}
    yield "floating mask", {"mask": case.normal(n, n)}
    yield "scale", {"scale": 0.3}


@law(LAWS, "backends")
def backends(case: Case) -> Iterable[str]:
    """Every backend that accepts a call equals the reference in float64."""
    x, pos = case.tokens(13), case.positions(13)
    largest = case.largest(x, pos)
    placed = case.place(pos, x)
    q, k, v = case.project(x, placed)
    encoding, placed = case.encoding.layer(case.index, placed)
    rotates = (
        encoding.rotate_v(v, placed) is not v
    )  # then values have a fixed width; otherwise every second call has wider ones
    widths = itertools.cycle((v,) if rotates else (v, torch.cat((v, v), -1)))
    for (kind, options), values in zip(_calls(case, 13), widths, strict=False):
        wanted = attend(q, k, values, encoding, placed, backend="reference-float64", **options)
        for name in _able(q, k, values, encoding, placed, **options):
            got = attend(q, k, values, encoding, placed, backend=name, **options)
            yield from (f"{name}, {kind}: {m}" for m in case.differ(got, wanted, largest))


@law(LAWS, "values")
def values(case: Case) -> Iterable[str]:
    """An output is the weighted sum of values, rotated at the key's position and rotated back at the query's."""
    x, pos = case.tokens(11), case.positions(11, start=3)
    placed = case.place(pos, x)
    q, k, v = case.project(x, placed)
    weights = case.scores(q, k, placed).softmax(-1)
    encoding, placed = case.encoding.layer(case.index, placed)
    rotated = encoding.rotate_v(v, placed)
    of_heads = of_each_head(rotated, case.n_heads)
    each = [encoding.unrotate_out(of_heads[:, :, j : j + 1].expand_as(of_heads), placed) for j in range(11)]
    wanted = torch.stack([weights[..., j, None] * got for j, got in enumerate(each)]).sum(0)
    for given, done in (((q, k, v), False), ((*encoding.rotate(q, k, placed), rotated), True)):
        got = attend(*given, encoding, placed, rotated=done, causal=False)
        yield from case.differ(got, wanted, case.largest(x, pos))


@law(LAWS, "nothing there")
def nothing_there(case: Case) -> Iterable[str]:
    """An empty sequence and an empty batch give empty results."""
    for batch, seq_len in ((2, 0), (0, 5)):
        out = case.layer(case.tokens(seq_len, batch), case.positions(seq_len))
        if out.shape != (batch, case.n_heads, seq_len, case.head_dim):
            yield f"batch {batch}, {seq_len} tokens: got shape {tuple(out.shape)}"


@law(LAWS, "compose")
def compose(case: Case) -> Iterable[str]:
    """Compose with NoPE, on either side, changes nothing."""
    x, pos = case.tokens(9), case.positions(9)
    wanted = case.layer(x, pos)
    for names, both in (("e, NoPE", (case.encoding, Encoding())), ("NoPE, e", (Encoding(), case.encoding))):
        composed = Case(Compose(*both), case.dtype)
        composed.encoding.load_state_dict(
            {f"encodings.0.{name}": value for name, value in case.encoding.state_dict().items()}
        )
        composed.projections = case.projections
        if not torch.equal(composed.layer(x, pos), wanted):
            yield f"Compose({names}) gives another result"


@law(LAWS, "no memory")
def no_memory(case: Case) -> Iterable[str]:
    """A short sequence gives bitwise the same result before and after a long one."""
    x, n = case.tokens(40), 7
    first = case.layer(x[:, :n], case.positions(n))
    case.layer(x, case.positions(40))
    if not torch.equal(case.layer(x[:, :n], case.positions(n)), first):
        yield "the second short sequence gives another result than the first"


@law(LAWS, "untouched inputs")
def untouched_inputs(case: Case) -> Iterable[str]:
    """No argument and no parameter is modified."""
    x, pos = case.tokens(9), case.positions(9)
    placed = case.place(pos, x)
    q, k, v = case.project(x, placed)
    encoding, placed = case.encoding.layer(case.index, placed)
    given = {"x": x, "pos": pos, "q": q, "k": k, "v": v, **dict(case.encoding.named_parameters())}
    before = {name: (t._version, t.detach().clone()) for name, t in given.items()}
    case.layer(x, pos)
    encoding.rotate(q, k, placed)
    attend(q, k, v, encoding, placed)
    for name, t in given.items():
        if t._version != before[name][0] or not torch.equal(t, before[name][1]):
            yield f"{name} was written to"
