"""Rows of a table for distances in a window: every distance (dy, dx) must have a row of its own, and only one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.verify.biases.calls import invoke
from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause, Findings, first

WINDOWS = ((3, 5), (5, 3), (2, 7), (4, 4), (1, 4), (4, 1))
MEND = "Take row (dy + h - 1) * (2 w - 1) + (dx + w - 1) of (2 h - 1) (2 w - 1), with token n at (n // w, n % w)."


class Window:
    """The distances in one window, as numbers of their classes.

    Args:
        h: Its height.
        w: Its width.
        by_columns: Tokens are numbered down the columns.
    """

    def __init__(self, h: int, w: int, by_columns: bool = False) -> None:
        self.h, self.w = h, w
        self.rows = (2 * h - 1) * (2 * w - 1)
        n = torch.arange(h * w)
        y, x = (n % h, n // h) if by_columns else (n // w, n % w)
        self.dy, self.dx = y[:, None] - y, x[:, None] - x
        self.row = (self.dy + h - 1) * (2 * w - 1) + self.dx + w - 1

    def splits(self, index: Tensor) -> Tensor:
        """Return pairs of tokens whose distance has another row elsewhere."""
        first_of = torch.zeros(self.rows, dtype=torch.long)
        first_of[self.row.flatten().flip(0)] = index.flatten().flip(0)
        return index != first_of[self.row]

    def collisions(self, index: Tensor) -> Tensor:
        """Return pairs of tokens whose row belongs to another distance too."""
        of_row: dict[int, int] = {}
        flat = [
            of_row.setdefault(r, d) != d
            for r, d in zip(index.flatten().tolist(), self.row.flatten().tolist(), strict=True)
        ]
        return torch.tensor(flat).reshape(index.shape)

    def one_to_one(self, index: Tensor) -> bool:
        """Say whether rows and distances are in one-to-one correspondence."""
        return not bool(self.splits(index).any()) and not bool(self.collisions(index).any())


def check(subject: Any, spec: Mapping[str, Any]) -> Findings:
    """Judge `index(h, w)`."""
    asked = _asked(spec)
    found: dict[tuple[int, int], Tensor] = {}
    for size in [*([asked] if asked else []), *(s for s in WINDOWS if s != asked)]:
        try:
            found[size] = _index(subject, *size)
        except SubjectError:
            if size == asked or (asked is None and 1 not in size):
                raise
    table_rows = spec.get("table_rows")
    findings = Findings(definitions=["swin"])
    windows = {size: Window(*size) for size in found}
    limits = {s: int(table_rows) if table_rows and s == asked else windows[s].rows for s in found}
    largest = asked or ((max(map(max, found)),) * 2 if table_rows else None)
    if largest and _one_table(found, largest):  # smaller windows are parts of it
        rows = limits[asked] if asked else int(table_rows or 0)
        limits = {s: rows if s[0] <= largest[0] and s[1] <= largest[1] else n for s, n in limits.items()}
    findings.causes = first(judge(found, windows, limits, asked))
    if findings.causes or all(torch.equal(i, windows[s].row) for s, i in found.items()):
        return findings
    size, index = next((s, i) for s, i in found.items() if not torch.equal(i, windows[s].row))
    words = _line(index, windows[size]) or "a renumbering"
    findings.equivalent = f"every distance has one row of its own, in another order ({words} for a window of {size}): "
    findings.equivalent += "a table that is trained so is as good, one from elsewhere has its rows moved"
    if asked and asked[0] == asked[1] and any(not windows[s].one_to_one(i) for s, i in found.items()):
        findings.equivalent += "; for windows that are not square the axes are exchanged"
    return findings


def _one_table(found: Mapping[tuple[int, int], Tensor], asked: tuple[int, int]) -> bool:
    """Say whether every distance has one row, the same in the window that is asked for and in all smaller ones."""
    rows: dict[tuple[int, int], int] = {}
    for size in (s for s in found if s[0] <= asked[0] and s[1] <= asked[1]):
        window = Window(*size)
        for row, dy, dx in zip(*(t.flatten().tolist() for t in (found[size], window.dy, window.dx)), strict=True):
            if rows.setdefault((dy, dx), row) != row:
                return False
    return True


def judge(
    found: dict[tuple[int, int], Tensor],
    windows: dict[tuple[int, int], Window],
    limits: dict[tuple[int, int], int],
    asked: tuple[int, int] | None,
) -> list[Cause]:
    """Return what is wrong with row numbers: exchanged axes, shared rows, several rows, rows out of the table."""
    bad = sorted((s for s in found if not windows[s].one_to_one(found[s])), key=lambda s: s[0] * s[1])
    out = [s for s in found if int(found[s].min()) < 0 or int(found[s].max()) >= limits[s]]
    if bad and all(Window(*s, by_columns=True).one_to_one(i) for s, i in found.items()):
        if asked and asked[0] == asked[1]:
            return []
        return [
            _pair("swin.index.axes_swapped", "tokens are taken to run down the columns of the window", found, bad[0])
        ]
    split = [s for s in bad if bool(windows[s].splits(found[s]).any())]
    causes = []
    if split:
        causes.append(_pair("swin.index.not_by_distance", "a distance has several rows", found, split[0]))
    elif bad:
        words = "distances share a row"
        if all(_signless(found[s], windows[s]) for s in bad):
            words += ", since the sign of a distance is lost"
        causes.append(_pair("swin.index.collision", words, found, bad[0]))
    if out:
        s = min(out, key=lambda s: s[0] * s[1])
        low, high = int(found[s].min()), int(found[s].max())
        message = f"index{s} has rows from {low} to {high}, and its table {limits[s]}, from 0 to {limits[s] - 1}"
        line = _line(found[s], windows[s])
        message += f" (it is {line})." if line else "."
        beyond = float(max(high - limits[s] + 1, -low))
        causes.append(Cause("swin.index.out_of_table", message, beyond, {"h": s[0], "w": s[1]}, MEND))
    return causes


def _pair(code: str, words: str, found: dict[tuple[int, int], Tensor], size: tuple[int, int]) -> Cause:
    """Return a cause with two pairs of tokens that show it."""
    index, window = found[size], Window(*size)
    shared = code == "swin.index.collision"
    wrong = window.collisions(index) if shared else window.splits(index)
    if not bool(wrong.any()):
        wrong, shared = window.collisions(index), True
    i, j = (int(v) for v in wrong.nonzero()[0])
    same = (index == index[i, j]) & (window.row != window.row[i, j]) if shared else window.row == window.row[i, j]
    other = same & (index != index[i, j]) if not shared else same
    a, b = (int(v) for v in other.nonzero()[0])
    here, there = ((int(window.dy[p]), int(window.dx[p])) for p in ((i, j), (a, b)))
    message = f"{words[:1].upper()}{words[1:]}: in index{size} "
    if shared:
        message += f"(dy, dx) = {there} and {here} both have row {int(index[i, j])}"
    else:
        message += (
            f"(dy, dx) = {here} has row {int(index[i, j])} for tokens {i}, {j} and {int(index[a, b])} for {a}, {b}"
        )
    line = _line(index, window)
    message += f"; it is {line}, where a step of {2 * window.w - 1} rows per dy keeps them apart." if line else "."
    case = {"h": size[0], "w": size[1], "tokens": [i, j], "and": [a, b]}
    return Cause(code, message, float(wrong.double().mean()), case, MEND)


def _signless(index: Tensor, window: Window) -> bool:
    """Say whether rows are in one-to-one correspondence with (|dy|, |dx|)."""
    pairs = torch.stack([index, window.dy.abs() * window.w + window.dx.abs()], -1).flatten(0, 1)
    kinds = len(pairs.unique(dim=0))
    return kinds == len(pairs[:, 0].unique()) == len(pairs[:, 1].unique())


def _line(index: Tensor, window: Window) -> str | None:
    """Return row numbers as a straight line in dy and dx, in words."""
    x = torch.stack([window.dy, window.dx, torch.ones_like(window.dy)], -1).flatten(0, 1).double()
    keep = [c for c in range(3) if c == 2 or bool(x[:, c].any())]
    found = torch.linalg.lstsq(x[:, keep], index.flatten().double()[:, None]).solution[:, 0].round()
    if bool((x[:, keep] @ found - index.flatten()).abs().max() > 1e-6):
        return None
    named = [(v, ("dy", "dx", "")[c]) for v, c in zip(found.tolist(), keep, strict=True) if v]
    parts = [name if name and v == 1 else f"{v:g} {name}".strip() for v, name in named] or ["0"]
    return " + ".join(parts).replace("+ -", "- ")


def _asked(spec: Mapping[str, Any]) -> tuple[int, int] | None:
    window = spec.get("window")
    if window is None:
        return None
    return (int(window), int(window)) if isinstance(window, int) else (int(window[0]), int(window[1]))


def _index(subject: Any, h: int, w: int) -> Tensor:
    """Return what index(h, w) returns, as long of (h w, h w).

    Raises:
        SubjectError: It cannot be used.
    """
    what, n = f"index({h}, {w})", h * w
    told = invoke(subject, h, w, what=what)
    if not isinstance(told, Tensor) or told.numel() != n * n:
        got = tuple(told.shape) if isinstance(told, Tensor) else type(told).__name__
        message = f"{what} must return a tensor of shape {(n, n)}; got {got}"
        raise SubjectError(Cause("subject.shape", message, 1.0, {"h": h, "w": w}, "Return one row per pair of tokens."))
    whole = told.detach().reshape(n, n)
    if whole.is_floating_point() and not bool((whole == whole.round()).all()):
        message = f"{what} returns row numbers that are not whole."
        raise SubjectError(Cause("swin.index.not_integer", message, 1.0, {"h": h, "w": w}, "End with .long()."))
    return whole.long()
