"""`posenc parity`: how each inference stack reads a model's configuration, and how far that is from its meaning."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.parity.compare import Compared, Meaning, Parity
    from posenc.parity.flags import Given
    from posenc.parity.rules import Rules

_WIDTH = 110
_LONGEST = 10**12
_NOTE = (
    "Numbers under distances: the mean over pairs of cos(angle difference) from the meaning; 1 is no difference. "
    "logits x: the factor on the scores. same: frequencies and logits agree within one part in a million."
)


@click.command()
@click.argument("target", required=False, help="A config.json, a directory with one, or a known name such as kimi-k2.")
@click.option(
    "--stack", metavar="NAMES", help="Stacks and versions: hf5,vllm@0.33.0,...", show_default="the newest of each"
)
@click.option("--at", default="100,1000,8000", metavar="DISTANCES", help="Distances in positions.")
@click.option("--length", type=int, metavar="N", help="The length of the text to serve, in positions.")
@click.option(
    "--override",
    metavar="JSON|FLAGS",
    help="Fields that each stack merges into the file in its own way, or the flags of one stack.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers and keys as JSON.")
@click.option("--list", "list_stacks", is_flag=True, help="List the stacks and versions that have rules.")
def compare_stacks(
    target: str | None,
    stack: str | None,
    at: str,
    length: int | None,
    override: str | None,
    as_json: bool,
    list_stacks: bool,
) -> None:
    """Report how each stack reads a configuration: frequencies, gain, length, and the keys that it does not read.

    Exit codes: 0 all agree, 1 some differ, 2 usage error, 3 nothing differs but something is unknown.
    """
    if list_stacks:
        _list(as_json)
        return
    from posenc.config.known import find
    from posenc.parity.compare import compare
    from posenc.parity.loading import choose

    if target is None:
        raise ValueError("parity: TARGET is missing. Give one, or --list to list the stacks.")
    stacks, distances = choose(stack), _distances(at)
    if length is not None and not 1 <= length <= _LONGEST:
        raise ValueError(f"parity: --length must be from 1 to {_LONGEST}; got {length}.")
    given = _given(override, stacks)
    try:
        found = compare(
            find(target, "parity")[0],
            stacks,
            override=given.fields,
            flags=given.flags,
            distances=distances,
            length=length or given.length,
            target=target,
        )
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    if as_json:
        output.write_json(_as_json(found))
    else:
        output.write("\n".join(_describe(found)))
    states = {one.status for one in found.stacks}
    if code := 1 if states & {"differs", "error"} else 3 if "unknown" in states else 0:
        raise click.exceptions.Exit(code)


def _list(as_json: bool) -> None:
    from posenc.parity.loading import known

    rows = [{"stack": one.stack, "version": one.version, "project": one.project} for one in known().values()]
    if as_json:
        output.write_json(rows)
    else:
        output.write("\n".join(f"{row['stack']}@{row['version']}".ljust(22) + row["project"] for row in rows))


def _distances(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part[:14]) <= _LONGEST for part in parts) or len(parts) > 64:
        raise ValueError(
            f"parity: --at must be distances such as 100,1000,8000, each from 1 to {_LONGEST}; got {text[:60]!r}."
        )
    return sorted({int(part) for part in parts})


def _given(override: str | None, stacks: "Sequence[Rules]") -> "Given":
    """Parse an override: a JSON object for all stacks, or flags of one."""
    from posenc.parity import flags

    if override is None:
        return flags.Given()
    if override.lstrip()[:1] in ("", "{", "["):
        return flags.Given(_fields(override))
    if len(stacks) > 1:
        raise ValueError(
            "parity: --override must be a JSON object, or flags of the one stack that --stack names; got "
            f"{override[:60]!r} for {len(stacks)} stacks."
        )
    return flags.parse(override, stacks[0].stack)


def _fields(text: str) -> dict[str, Any]:
    """Parse the fields of an override, within the limits on configurations."""
    from posenc.config import reading

    if len(data := text.encode()) > reading.MAX_BYTES:
        raise ValueError(f"parity: --override must be at most {reading.MAX_BYTES} bytes; got {len(data)}.")
    fields = reading.parse(data, "--override")
    if not isinstance(fields, dict):
        raise ValueError(f"parity: --override must be a JSON object; got {type(fields).__name__}.")
    return reading.read(fields)


def _as_json(found: "Parity") -> dict[str, Any]:
    """Return the comparison with the keys that programs rely on."""
    first, *others = (_meaning(one, found.length) for one in found.meanings)
    return {
        "target": found.target,
        "meaning": first | {"other_kinds": others},
        "stacks": [
            {
                "stack": one.rules.stack,
                "version": one.rules.version,
                "status": one.status,
                "gain": one.gain,
                "score_factor": one.score_factor,
                "max_len": one.max_len,
                "mean_cos": {str(distance): value for distance, value in one.mean_cos.items()},
                "logits": one.logits,
                "keys": [{"key": key.key, "use": key.use, "source": key.source} for key in one.keys],
            }
            for one in found.stacks
        ],
    }


def _meaning(one: "Meaning", length: int | None) -> dict[str, Any]:
    rotary, found = one.rotary, one.at(length or one.rotary.max_len or 1)
    return {
        "layer_type": rotary.layer_type,
        "rope_type": rotary.rope_type,
        "base": rotary.base,
        "rotary_dim": rotary.rotary_dim,
        "factor": rotary.factor,
        "original_max_len": rotary.original_max_len,
        "max_len": rotary.max_len,
        "gain": found.gain,
        "score_factor": found.score_factor,
        "inv_freq": found.inv_freq.tolist(),
    }


def _describe(found: "Parity") -> list[str]:
    """List the meaning, then a row for each stack with the keys that it does not simply read."""
    lines = [f"{found.target}: {_summary(one, found.length)}" for one in found.meanings]
    distances = [f"{distance:,}" for distance in found.stacks[0].mean_cos]
    titles = ("stack", "status", *distances, "logits x", "gain", "scores x", "longest")
    rows = [_row(one) for one in found.stacks]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines += ["", _line(titles, widths)]
    for one, row in zip(found.stacks, rows, strict=True):
        lines.append(_line(row, widths))
        for key in one.keys:
            if key.use != "read":
                lines.append(f"    {key.key}: {key.use}{f', {key.said}' if key.said else ''}")
                lines.append(output.wrap(key.source, _WIDTH, " " * 10, " " * 8))
    return [*lines, "", output.wrap(_NOTE, _WIDTH)]


def _summary(one: "Meaning", length: int | None) -> str:
    rotary, found = one.rotary, one.at(length or one.rotary.max_len or 1)
    facts = [f"{rotary.layer_type}, {rotary.rope_type}", f"base {rotary.base:,.10g}"]
    facts += [f"factor {rotary.factor:g}"] if rotary.factor else []
    lengths = ((rotary.original_max_len, "trained"), (rotary.max_len, "declared"))
    facts += [f"{value:,} {word}" for value, word in lengths if value]
    score = f", scores x {found.score_factor:.6g}" if found.score_factor != 1 else ""
    return f"{', '.join(facts)}; gain {found.gain:.6g}{score}"


def _row(one: "Compared") -> tuple[str, ...]:
    angles = ["-" if value is None else f"{value:.4f}" for value in one.mean_cos.values()]
    numbers = ["-" if value is None else f"{value:.4f}" for value in (one.logits, one.gain, one.score_factor)]
    longest = "-" if one.max_len is None else f"{one.max_len:,}"
    return (f"{one.rules.stack} {one.rules.version}", one.status, *angles, *numbers, longest)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Lay out a row: words left-aligned, numbers right-aligned."""
    both = list(zip(cells, widths, strict=True))
    words, numbers = both[:2], both[2:]
    return "  ".join([*(cell.ljust(n) for cell, n in words), *(cell.rjust(n) for cell, n in numbers)]).rstrip()
