"""What a convention asks: measured from the calls that a check makes of the right program in `examples`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.verify import family_of, guard, values
from posenc.verify import spec as specs
from posenc.verify.conventions import CONVENTIONS
from posenc.verify.engine import Case
from posenc.verify.engine.judge import settle
from posenc.verify.engine.observe import observe
from posenc.verify.examples import EXAMPLES

MOST = 3  # cases of a kind that are listed by their words
AT = ("positions", "position_ids", "offset", "q_idx", "kv_idx", "relative_position")  # arguments that are positions
LENGTHS = ("seq", "total", "h", "w", "n", "end", "q_len", "kv_len", "kv_idx", "cu_seqlens")  # axes and arguments
LATER = {  # kinds of cases after other calls, or after cached tokens
    *("single", "offsets", "cached", "beyond", "chunk", "decode", "turns", "tail", "outputs", "back", "again"),
    *("after_half", "after_half_short", "last"),
}


@dataclass(frozen=True)
class Call:
    """One call of the program.

    Args:
        kind: The kind of the case.
        case: The case in words.
        args: Arguments by name.
        grad: Whether gradients were kept.
    """

    kind: str
    case: str
    args: Mapping[str, Any]
    grad: bool


@dataclass(frozen=True)
class Explanation:
    """A convention.

    Args:
        convention: Its name.
        call: How it is called.
        words: The words of a specification that it reads, and what each may be.
        spec: The specification of the right program.
        covers: The lengths, offsets, dtypes, batches, masks and caches of all calls.
        arguments: For each argument, the dtypes, sizes and values of all calls.
        cases: For each kind of case, what it is and how many calls it needs.
        not_asked: What calls do not vary, and what a check with this specification does not judge.
    """

    convention: str
    call: str
    words: Mapping[str, str]
    spec: Mapping[str, Any]
    covers: Mapping[str, str]
    arguments: Mapping[str, str]
    cases: Mapping[str, str]
    not_asked: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation ready for JSON."""
        return asdict(self)


def explain(convention: str) -> Explanation:
    """Return what a convention reads and asks.

    >>> explain("slopes_fn").arguments
    {'n_heads': '8 to 16'}
    """
    row, words = CONVENTIONS[convention], {word: values_of(word, convention) for word in words_of(convention)}
    if convention not in EXAMPLES:  # encodings of this library: their laws
        from posenc import laws

        return Explanation(convention, row.call, words, {}, {}, {}, {n: law.text for n, law in laws.LAWS.items()}, ())
    spec, build = EXAMPLES[convention]
    calls, left = _asked(convention, spec, build())
    kinds = {kind: _kind([c for c in calls if c.kind == kind]) for kind in dict.fromkeys(c.kind for c in calls)}
    covers, arguments = _covers(convention, calls, spec), _arguments(convention, calls)
    same = tuple(_constant(calls, CONVENTIONS[convention].axes))
    return Explanation(convention, row.call, words, spec, covers, arguments, kinds, (*same, *left))


def words_of(convention: str) -> list[str]:
    """Return the words of a specification that a convention reads."""
    return list(dict.fromkeys(("encoding", *specs.READS[convention].split())))


def values_of(word: str, convention: str = "") -> str:
    """Return what a word of a specification may be.

    >>> values_of("layout"), values_of("next_after")
    ('half, interleaved', 'all_axes, sides')
    """
    from posenc.families.resizing import RULES_2D
    from posenc.verify.families import builders, pictures, trained

    own = CONVENTIONS[convention].encodings if convention else ""
    known: Mapping[str, Iterable[str]] = {
        "encoding": own.split() or (*sorted(specs.ENCODINGS), "or a name of `posenc list`"),
        "scaling": (*sorted(specs.SCALINGS), "or a dict of rope_type and its parameters"),
        "layout": sorted(specs.LAYOUTS),
        "variant": [*specs.FORMULAS.split(), *([] if convention else values.allowed("variant", "bias_fn")[0])],
        "order": ("sin_cos", "cos_sin")
        if convention == "additive_module"
        else ("xy", "yx", "sin_cos", "cos_sin", "any"),
        "ladder": pictures.LADDERS,
        "coordinates": pictures.COORDINATES,
        "next_after": builders.AFTER,
        "interpolation": trained.STRETCHED if convention == "additive_module" else (*RULES_2D, "or a dict of mode, .."),
    }
    names, kind = values.allowed(word, convention)
    if word in ("variant", "order") and names:
        return ", ".join(names)
    return ", ".join(known.get(word, names if kind in ("", "a word") else [*names, kind])) or "a word"


def _asked(convention: str, spec: Mapping[str, Any], subject: Any) -> tuple[list[Call], list[str]]:
    """Return the calls of a check, and what it does not judge."""
    family, calls, now = family_of(convention, spec), list[Call](), Case("")
    calls_of = re.findall(r"\w+\(([\w, ]+)\)", CONVENTIONS[convention].call)
    by_count = {len(names): names for names in (args.split(", ") for args in calls_of)}

    def marked() -> Iterator[Case]:
        nonlocal now
        for case in family.cases():
            now = case
            yield case
        now = Case("last", words="the first call again, after all others")

    def hear(args: tuple[Any, ...], options: dict[str, Any], grad: bool) -> None:
        names = by_count.get(len(args) + len(options), next(iter(by_count.values())))
        given = dict(zip(names, args, strict=False)) | options
        calls.append(Call(now.kind, now.words, given, grad))

    token = guard.LISTENER.set(hear)
    try:
        found = observe(family, subject, marked())
    finally:
        guard.LISTENER.reset(token)
    settle(family, found.seen)  # what is not judged may depend on the verdict
    return calls, [*found.not_judged, *family.not_judged(found.seen)]


def _covers(convention: str, calls: list[Call], spec: Mapping[str, Any]) -> dict[str, str]:
    """Return which lengths, offsets, dtypes, batches, masks and caches the calls have."""
    axes = CONVENTIONS[convention].axes
    given = [(name, value) for call in calls for name, value in call.args.items()]
    tensors = [(name, value) for name, value in given if isinstance(value, Tensor)]
    sizes: dict[str, list[Any]] = {name: [] for name in ("batch", *LENGTHS)}
    for name, t in tensors:
        for axis, n in zip(axes.get(name, ()), t.shape, strict=False):
            sizes.get(axis, []).append(n)
    for name, value in given:
        if name in sizes and (isinstance(value, int) or (isinstance(value, Tensor) and value.numel())):
            sizes[name].append(int(value if isinstance(value, int) else value.max()))
    ends = [f(t).item() for name, t in tensors if name in AT and t.numel() for f in (torch.min, torch.max)]
    at = [*ends, *(value for name, value in given if name in AT and isinstance(value, int))]
    after = {_keys(call.args) - call.args["q_len"] for call in calls if "q_len" in call.args}
    mask = [t for name, t in tensors if name == "attention_mask"]
    first, last = ([m[:, end] > 0 for m in mask] for end in (0, -1))
    pairs = [*zip(first, last, strict=True)]
    sides = {"left": any((~a & b).any() for a, b in pairs), "right": any((a & ~b).any() for a, b in pairs)}
    hidden = {"causal": spec.get("causal"), f"a window of {spec.get('window')} keys": spec.get("window")}
    masks = [f"padding on the {side}" for side, found in sides.items() if found] + [w for w, on in hidden.items() if on]
    later = dict.fromkeys(call.kind for call in calls if call.kind in LATER)
    return {
        "lengths": ", ".join(f"{name} {_range(found)}" for name, found in sizes.items() if found and name != "batch"),
        "offsets": _offsets(at, after),
        "dtypes": ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for _, t in tensors)),
        "batch": _range(sizes["batch"]) if sizes["batch"] else "",
        "masks": ", ".join(masks),
        "caches": f"cases {', '.join(later)}",
    }


def _keys(args: Mapping[str, Any]) -> int:
    """Return the number of keys of a call, or of the columns of its mask."""
    return int(args["kv_len"] if "kv_len" in args else args["attention_mask"].shape[-1])


def _offsets(at: list[Any], after: set[int]) -> str:
    if after:
        return f"queries after {_range(after)} keys"
    return f"positions {_range(at)}" if at else "calls begin at position 0"


def _kind(calls: list[Call]) -> str:
    """Return the cases of a kind in words, and how many calls they need."""
    words = [text for text in dict.fromkeys(call.case for call in calls) if text]
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    said = f"{'; '.join(words[:MOST])}{more}"
    return f"{said}{': ' * bool(said)}{len(calls)} call{'s' * (len(calls) > 1)}"


def _arguments(convention: str, calls: list[Call]) -> dict[str, str]:
    """Return what the values of each argument are."""
    given: dict[str, list[Any]] = {}
    for call in calls:
        for name, value in call.args.items():
            given.setdefault(name, []).append(value)
    axes = CONVENTIONS[convention].axes
    return {name: _values(found, axes.get(name, ())) for name, found in given.items()}


def _values(found: list[Any], axes: tuple[str, ...]) -> str:
    tensors = [value for value in found if isinstance(value, Tensor)]
    if not tensors:
        numbers = [n for n in found if isinstance(n, int | float)]
        return _range(numbers) if len(numbers) == len(found) else f"{len({str(f) for f in found})} different ones"
    parts = [" or ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))]
    sizes = [t.shape for t in tensors]
    if axes and all(len(size) == len(axes) for size in sizes):
        named = zip(axes, zip(*sizes, strict=True), strict=True)
        parts.append(", ".join(f"{axis} {_range(n)}" for axis, n in named if not axis.isdigit()))
    elif any(sizes):
        parts.append(f"{_range([t.numel() for t in tensors])} numbers")
    if not any(t.is_floating_point() or t.is_complex() for t in tensors):
        parts.append(f"values {_range([int(f(t)) for t in tensors if t.numel() for f in (torch.min, torch.max)])}")
    parts += ["also views that are not contiguous"] if not all(t.is_contiguous() for t in tensors) else []
    return "; ".join(parts)


def _range(numbers: Iterable[Any]) -> str:
    low, high = min(numbers := [*numbers], default=0), max(numbers, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _constant(calls: list[Call], axes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield what no call varies."""
    given = [(name, value) for call in calls for name, value in call.args.items() if isinstance(value, Tensor)]
    floats = [t for _, t in given if t.is_floating_point()]
    if floats and not any(call.grad for call in calls):
        yield "gradients"
    if floats and {t.dtype for t in floats} == {torch.float32}:
        yield "vectors in other dtypes than float32"
    if floats and all(t.is_contiguous() for t in floats):
        yield "views that are not contiguous"
    whole = [t for name, t in given if not t.is_floating_point() and name in AT]
    if whole and {t.dtype for t in whole} == {torch.int64}:
        yield "positions in other dtypes than int64"
    at = [name for name in AT if any(name in call.args for call in calls)]
    has_batch = any("batch" in of for of in axes.values())
    if has_batch and at and not any(t.ndim > 1 and bool((t != t[:1]).any()) for t in whole):
        yield "rows of a batch with other positions"
    sizes = [(call.args["q_len"], call.args["kv_len"]) for call in calls if {"q_len", "kv_len"} <= set(call.args)]
    if sizes and all(q == k for q, k in sizes):
        yield "fewer queries than keys"


def text(found: Explanation) -> str:
    """Return an explanation in lines."""
    from posenc.verify.sentences import wrapped

    def table(rows: Mapping[str, str]) -> list[str]:
        width = max(map(len, rows), default=0) + 2
        said = {name: wrapped(words or "-", 100, " " * (4 + width), 0).lstrip() for name, words in rows.items()}
        return [f"    {name:{width}}{words}" for name, words in said.items()]

    lines = [found.convention, wrapped(found.call, 100, "  "), "", "  words of a specification:"]
    lines += table(found.words)
    if found.spec:
        lines += ["", wrapped(f"asked, if the specification is {dict(found.spec)}:", 100, "  "), *table(found.covers)]
        lines += ["", "  arguments:", *table(found.arguments)]
    lines += ["", "  cases:", *table(found.cases)]
    if found.not_asked:
        lines += ["", "  not asked, or not judged with this specification:"]
    return "\n".join([*lines, *(wrapped(said, 100, "    ") for said in found.not_asked)])
