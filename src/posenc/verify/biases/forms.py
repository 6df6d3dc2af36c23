"""What known faults make of a linear bias, and whether one of them is what was measured."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.verify.biases.calls import Probe, Seen

Predict = Callable[[Probe, Tensor], Tensor]


class Form(NamedTuple):
    """One way to get a linear bias wrong: of a call and the slopes, the bias (heads, q_len, k_len)."""

    code: str
    words: str
    mend: str
    predict: Predict


class Fit(NamedTuple):
    """A bias taken as linear in the distance, on each side.

    Args:
        back: Slopes for keys behind, (heads,).
        ahead: Slopes for keys ahead; those of `back` where they were not looked at.
        linear: Whether it is linear, to rounding.
    """

    back: Tensor
    ahead: Tensor
    linear: bool


def shown(seen: Seen, causal: bool) -> Tensor:
    """Return which keys a query should see, (q_len, k_len)."""
    d = seen.probe.distance()
    return ((d >= 0) | (not causal)) & (d.abs() < (seen.window or d.numel() + 1))


def hidden(seen: Seen) -> Tensor:
    """Return which keys the bias hides, (heads, q_len, k_len)."""
    return seen.bias <= seen.hides_at


def centred(t: Tensor, see: Tensor) -> Tensor:
    """Take each row's mean over the keys that it sees away: what a softmax does with a constant."""
    kept = torch.where(see, t, 0.0)
    return torch.where(see, kept - kept.sum(-1, keepdim=True) / see.sum(-1, keepdim=True).clamp(min=1), 0.0)


def fit(seen: Seen, causal: bool) -> Fit:
    """Return the slopes that explain most of a bias, whatever is added to its rows; keys that it hides have no part."""
    see = shown(seen, causal) & ~hidden(seen).any(0)
    d = seen.probe.distance().double()
    b = centred(seen.bias, see)
    sides = [centred(d.clamp(min=0), see), centred((-d).clamp(min=0), see)][: 1 if causal else 2]
    x = torch.stack([s.flatten() for s in sides], 1)
    slopes = torch.linalg.lstsq(x, -b.flatten(1).T).solution
    rest = b.flatten(1).T + x @ slopes
    size = torch.where(see, seen.bias, 0.0).abs().max()
    return Fit(slopes[0], slopes[-1], bool(rest.abs().max() <= 16 * seen.eps * size + 1e-9))


def same_scores(seen: Seen, want: Tensor, causal: bool) -> bool:
    """Say whether a bias is the wanted one but for a constant in each row, to the rounding of its numbers."""
    return bool((_off(seen, want, causal) <= 0).all())


def same(seen: Seen, want: Tensor, causal: bool) -> bool:
    """Say whether a bias is the wanted one where keys are seen."""
    see = shown(seen, causal)
    off = torch.where(see, (seen.bias - want).abs() - 4 * seen.eps * want.abs(), -1.0)
    return bool((off <= 1e-6).all())


def worst(seen: Seen, want: Tensor, causal: bool) -> tuple[float, tuple[int, int, int]]:
    """Return the largest difference in a row's biases, against its last seen key, and its head, query and key."""
    off = _off(seen, want, causal)
    at = int(off.argmax())
    _, q_len, k_len = off.shape
    size = _against_last(seen.bias - want, shown(seen, causal)).abs()
    h, i, j = at // (q_len * k_len), at // k_len % q_len, at % k_len
    return float(size[h, i, j]), (h, i, j)


def _against_last(t: Tensor, see: Tensor) -> Tensor:
    last = (see * torch.arange(1, see.shape[-1] + 1)).argmax(-1)
    ref = t.gather(-1, last[None, :, None].expand(len(t), -1, 1))
    return torch.where(see, t - ref, 0.0)


def _off(seen: Seen, want: Tensor, causal: bool) -> Tensor:
    """Return by how much differences to a row's last seen key are beyond what rounding allows (<= 0: not at all)."""
    see = shown(seen, causal)
    size = torch.where(see, seen.bias.abs(), 0.0)
    last = (see * torch.arange(1, see.shape[-1] + 1)).argmax(-1)
    ref = size.gather(-1, last[None, :, None].expand(len(size), -1, 1))
    allowed = 4 * seen.eps * (size + ref + want.abs()) + 1e-6
    return _against_last(seen.bias - want, see).abs() - torch.where(see, allowed, 0.0)


def explaining(forms: Iterable[Form], seen: list[Seen], slopes: Callable[[int], Tensor], causal: bool) -> Form | None:
    """Return the first form that predicts all that was measured."""
    for form in forms:
        if all(same_scores(s, form.predict(s.probe, slopes(s.probe.heads)), causal) for s in seen):
            return form
    return None


def right(probe: Probe, slopes: Tensor) -> Tensor:
    """Return -slope * |distance|."""
    return -slopes[:, None, None] * probe.distance().abs()


def cached_forms() -> Iterator[Form]:
    """Yield what goes wrong once there are more keys than queries."""
    cache = "Form the bias over all keys, with the queries at the last q_len of them: k_len - q_len + arange(q_len)."

    def local(probe: Probe) -> Tensor:
        return torch.arange(probe.q_len)[:, None] - torch.arange(probe.k_len)

    def zero_if(when: Callable[[Probe], bool]) -> Predict:
        return lambda p, m: right(p, m) * (0.0 if when(p) else 1.0)

    words = "as soon as there are more keys than queries the bias is the same for all keys"
    yield Form("alibi.kv_cache.bias_zero", words, cache, zero_if(lambda p: p.cached))
    words = "for a single query the bias is the same for all keys"
    yield Form("alibi.kv_cache.bias_zero", words, cache, zero_if(lambda p: p.cached and p.q_len == 1))
    ahead = "so that a cached key counts as one ahead"
    for start, words, code in (
        (
            0,
            f"the first rows of a bias are taken, or queries counted from 0 in place of k_len - q_len, {ahead}",
            "alibi.buffer_slice_shifted",
        ),
        (
            -1,
            f"queries are counted from k_len - q_len - 1, one too low, {ahead}",
            "alibi.kv_cache.query_off_by_one",
        ),
    ):

        def distance(p: Probe, start: int = start) -> Tensor:
            d = p.distance() if start and p.cached else local(p)
            return d + start if p.cached else d

        for form in (torch.abs, lambda t: t.clamp(min=0)):
            yield Form(
                code,
                words,
                cache,
                lambda p, m, d=distance, form=form: -m[:, None, None] * form(d(p)),  # type: ignore[misc]
            )


def shifted(seen: list[Seen], slopes: Callable[[int], Tensor], causal: bool) -> Form | None:
    """Return the form of a bias that is cut out of a larger one at the wrong place: each call has its own shift."""

    def at(p: Probe, m: Tensor, place: int, form: Callable[[Tensor], Tensor]) -> Tensor:
        d = torch.arange(place, place + p.q_len)[:, None] - torch.arange(p.k_len)
        return -m[:, None, None] * form(d)

    for form in (torch.abs, lambda t: t.clamp(min=0)):
        found: dict[Probe, int] = {}
        for s in seen:
            home, m = s.probe.k_len - s.probe.q_len, slopes(s.probe.heads)
            places = sorted(range(-40, 41), key=lambda t, home=home: abs(t - home))  # type: ignore[misc]
            place = next((t for t in places if same_scores(s, at(s.probe, m, t, form), causal)), None)
            if place is None:
                break
            found[s.probe] = place
        else:
            wrong = [(p, t) for p, t in found.items() if t != p.k_len - p.q_len]
            if wrong:
                p, t = wrong[0]
                words = (
                    f"rows and keys are cut out of a bias at places that do not belong together: query 0 of {tuple(p)}"
                )
                words += f" counts as standing at {t}, not at {p.k_len - p.q_len}"
                mend = "Slice the last q_len rows and the first k_len columns of one matrix over k_len positions."
                return Form(
                    "alibi.buffer_slice_shifted",
                    words,
                    mend,
                    lambda p, m: at(p, m, found[p], form),  # noqa: B023
                )
    return None


def distance_forms(seen: list[Seen], slopes: Callable[[int], Tensor], causal: bool) -> Iterator[Form]:
    """Yield biases that are not linear, or not with one slope for all lengths."""
    longest = max(seen, key=lambda s: s.probe.k_len)
    share = "Take the distance itself: the penalty of a key must not depend on how long the text is."
    for words, part in (
        ("k_len", lambda p: p.k_len),
        ("k_len - 1", lambda p: max(p.k_len - 1, 1)),
        ("q_len", lambda p: p.q_len),
    ):
        yield Form(
            "alibi.distance.normalised",
            f"the distance is divided by {words}",
            share,
            lambda p, m, part=part: right(p, m) / part(p),  # type: ignore[misc]
        )
    for shift in (1, -1):
        for form in (torch.abs, lambda t: t.clamp(min=0)):
            yield Form(
                "alibi.distance.shifted",
                f"the distance is off by one: {'|query - key' if form is torch.abs else 'max(query - key'}"
                f" {'+' if shift > 0 else '-'} 1{'|' if form is torch.abs else ', 0)'}",
                "Take |query - key|; only where keys ahead are hidden and no |.| is taken does a shift not matter.",
                lambda p, m, shift=shift, form=form: -m[:, None, None] * form(p.distance() + shift),  # type: ignore[misc]
            )
    limit = _limit(longest, slopes(longest.probe.heads), causal)
    if limit:
        yield Form(
            "alibi.distance.clamped",
            f"distances above {limit} all count as {limit}",
            "Let the penalty grow without end.",
            lambda p, m: -m[:, None, None] * p.distance().abs().clamp(max=limit),
        )
    yield from _rounded_forms()


def _rounded_forms() -> Iterator[Form]:
    for kind in (torch.bfloat16, torch.float16):
        name = str(kind).removeprefix("torch.")

        def r(t: Tensor, kind: torch.dtype = kind) -> Tensor:
            return t.float().to(kind).double()

        def ends(p: Probe, r: Callable[[Tensor], Tensor] = r) -> tuple[Tensor, Tensor]:
            return r(torch.arange(p.k_len - p.q_len, p.k_len))[:, None], r(torch.arange(p.k_len))

        mend = "Form the bias in float32, and round the scores if at all."
        words = f"positions are rounded to {name}, which has whole numbers only up to {256 if name[0] == 'b' else 2048}"
        for inner in (lambda t: t, r):
            yield Form(
                "alibi.precision.positions_bf16" if name[0] == "b" else "alibi.precision.positions_fp16",
                words,
                mend,
                lambda p, m, e=ends, i=inner: -m[:, None, None] * i(e(p)[0] - e(p)[1]).abs(),  # type: ignore[misc]
            )
        code, words = "alibi.precision.product_bf16", f"the bias is rounded to {name}"
        for predict in (
            lambda p, m, r=r: r(right(p, m)),
            lambda p, m, r=r: r(r(m)[:, None, None] * r(right(p, torch.ones_like(m)))),
            lambda p, m, r=r: r(r(m)[:, None, None] * torch.arange(p.k_len)).expand(*p),
            lambda p, m, r=r: r(r(m)[:, None, None] * r(torch.arange(p.k_len))).expand(*p),
            lambda p, m, r=r: r(r(m)[:, None, None] * r(torch.arange(1 - p.k_len, 1))).expand(*p),
        ):
            yield Form(code, words, mend, predict)


def _limit(seen: Seen, slopes: Tensor, causal: bool) -> int | None:
    """Return the distance from which a bias stays as it is, if it does."""
    d = seen.probe.distance()
    row = (seen.bias[0, -1] - seen.bias[0, -1, -1]) / -slopes[0]
    grown = row[(d[-1] >= 0) & shown(seen, causal)[-1]].flip(0)
    if not bool(grown.isfinite().all()):
        return None
    most = int(grown.max().round())
    return most if 0 < most < len(grown) - 1 and abs(float(grown[-1]) - most) < 0.25 else None
