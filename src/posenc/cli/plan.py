"""`posenc plan`: the methods that can extend a model's context, and what each costs."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output
from posenc.cli.parameters import parameters

if TYPE_CHECKING:
    from posenc.extend.plan import Candidate, Plan

_WIDTH = 80
_NOTE = (
    "unseen: pairs that reach angles absent from training. closer: pairs with a smaller angle between "
    "neighbours. logits x: the factor on today's scores. Under distances: the mean over pairs of "
    "cos(angle difference) from today's rotation, in texts of today's lengths; 1 is no change."
)
_MEASURED = ("linear", "ntk", "dynamic", "yarn", "llama3")  # which `posenc evaluate` can measure


@click.command()
@click.argument("target", help="A config.json, a directory with one, or a known name.")
@click.option("--target-len", type=int, required=True, metavar="N", help="The wanted context length, in positions.")
@click.option(
    "--trained-len",
    type=int,
    metavar="N",
    help="The trained length, in positions.",
    show_default="that of the file",
)
@click.option("--train/--no-train", help="Whether you will train the model on longer texts.")
@click.option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter, passed to each method that has it; @FILE reads JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers and each configuration as JSON.")
def plan_extension(
    target: str, target_len: int, trained_len: int | None, train: bool, option: tuple[str, ...], as_json: bool
) -> None:
    """Compare the methods that extend a model's context: new angles, neighbours, temperature, short texts, stacks.

    The numbers follow from the configuration; no model is run. Exit codes: 0 success, 2 usage error.
    """
    from posenc.config.known import find
    from posenc.extend.plan import plan

    source, known = find(target, "plan")
    given, trained = parameters("plan", option), known if trained_len is None else trained_len
    try:
        found = plan(source, target_len, trained_len=trained, train=train, options=given)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    if as_json:
        output.write_json(_as_json(target, found, option))
    else:
        output.write("\n".join(_describe(target, found, option)))


def _as_json(target: str, found: "Plan", words: Sequence[str]) -> dict[str, Any]:
    """Return the plan with the keys that programs rely on."""
    from posenc.extend.published import DECIDES

    rotary = found.before.rotary
    return {
        "target": target,
        "layer_type": rotary.layer_type,
        "rope_type": rotary.rope_type,
        "trained_len": found.trained_len,
        "now_len": found.now_len,
        "target_len": found.target_len,
        "factor": found.factor,
        "train": found.train,
        "n_pairs": found.n_pairs,
        "full_turns": found.full_turns,
        "unseen_unchanged": found.unseen,
        "recommended": found.recommended and found.recommended.method.name,
        "reason": found.reason,
        "decides": DECIDES,
        "next": _next(target, found, words),
        "candidates": [_candidate(one) for one in found.candidates],
    }


def _candidate(one: "Candidate") -> dict[str, Any]:
    effect, published = one.effect, one.published
    return {
        "method": one.method.name,
        "title": one.method.title,
        "parameters": dict(one.parameters),
        "override": dict(one.stretched.override) if one.stretched else None,
        "refused": one.refused,
        "unseen": effect and effect.unseen,
        "unseen_pairs": effect and list(effect.unseen_pairs),
        "neighbours": effect and {"fastest": effect.fastest, "median": effect.median, "closer": effect.closer},
        "fixed": effect and effect.fixed,
        "gain": effect and effect.gain,
        "logits": effect and effect.logits,
        "short_logits": effect and effect.short_logits,
        "mean_cos": {str(distance): value for distance, value in effect.cos.items()} if effect else {},
        "stacks": dict(one.stacks),
        "published": {
            "untrained": published.untrained,
            "trained": published.trained,
            "for": {"says": published.good, "source": published.good_source},
            "against": {"says": published.bad, "source": published.bad_source},
        },
    }


def _describe(target: str, found: "Plan", words: Sequence[str]) -> list[str]:
    """List a row for each method, the evidence for each row, and the next commands."""
    from posenc.extend.published import DECIDES

    lines = [*_head(target, found), "", *_table(found), "", output.wrap(_NOTE, _WIDTH)]
    for one in found.candidates:
        lines += ["", *_detail(one, found)]
    best, how = found.recommended, "with" if found.train else "without"
    advice = f" {how} training: {best.method.name}: " if best else ": change nothing, because "
    lines += ["", output.wrap(f"Recommended{advice}{found.reason}", _WIDTH, "  ", "")]
    lines += [output.wrap(DECIDES, _WIDTH, "  ", "  "), "", "Next:"]
    return [*lines, *(f"  {line}" for line in _next(target, found, words))]


def _head(target: str, found: "Plan") -> Iterator[str]:
    rotary = found.before.rotary
    scaling = f", factor {rotary.factor:g}" if rotary.factor else ""
    yield output.wrap(
        f"{target}: {rotary.layer_type}, {rotary.rope_type}, base {rotary.base:,.10g}{scaling}; trained on "
        f"{found.trained_len:,} positions, {found.target_len:,} wanted: factor {found.factor:.4g}.",
        _WIDTH,
    )
    yield output.wrap(
        f"In training {found.full_turns} of {found.n_pairs} pairs of dimensions complete a period; without a change, "
        f"{found.unseen} would reach angles absent from training.",
        _WIDTH,
    )
    if found.now_len > found.trained_len:
        yield f"The scaling in its file already extends the model to {found.now_len:,} positions."
    kinds = {kind.rotary.layer_type for one in found.candidates if one.stretched for kind in one.stretched.before[1:]}
    if kinds:
        yield f"Layers of {', '.join(sorted(kinds))} are not changed."


def _table(found: "Plan") -> list[str]:
    distances = next((list(one.effect.cos) for one in found.candidates if one.effect), [])
    titles = ("method", "unseen", "closer", "logits x", *(f"{distance:,}" for distance in distances), "stacks")
    rows = [_row(one, len(titles)) for one in found.candidates]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return [_line(row, widths) for row in (titles, *rows)]


def _row(one: "Candidate", n: int) -> tuple[str, ...]:
    if (effect := one.effect) is None:
        return (one.method.name, *("-" for _ in range(n - 1)))
    logits = "-" if effect.logits is None else f"{effect.logits:.4f}"
    return (
        *(one.method.name, str(effect.unseen), str(effect.closer), logits),
        *(f"{value:.4f}" for value in effect.cos.values()),
        str(len(_runs(one))),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *numbers = (cell.rjust(n) for cell, n in zip(cells, widths, strict=True))
    return "  ".join([first.strip().ljust(widths[0]), *numbers]).rstrip()


def _detail(one: "Candidate", found: "Plan") -> Iterator[str]:
    """Describe the evidence for a method's row."""
    parameters = _parameters(one, found)
    yield output.wrap(
        f"{one.method.name}: {one.method.title}{f'; {parameters}' if parameters else ''}", _WIDTH, "    ", ""
    )
    facts: list[tuple[str, str]] = []
    if one.effect is None:
        facts.append(("not computed", f"{one.refused}"))
    else:
        facts.append(("angles", _angles(one, found)))
        facts.append(("temperature", _temperature(one)))
    facts.append(("for", f"{one.published.good} [{one.published.good_source}]"))
    facts.append(("against", f"{one.published.bad} [{one.published.bad_source}]"))
    if one.stacks:
        facts.append(("runs in", ", ".join(_runs(one)) or "none"))
    if cannot := [name for name, why in one.stacks.items() if why and one.stretched]:
        facts.append(("not in", f"{', '.join(cannot)} (posenc write --to NAME prints why)"))
    for label, text in facts:
        yield output.wrap(text, _WIDTH, "    ", f"  {label}: ")


def _runs(one: "Candidate") -> list[str]:
    """Return the stacks that run it, each with how to do so if no configuration expresses it."""
    if one.stretched is None:
        return [f"{name} ({how})" for name, how in one.stacks.items()]
    return [name for name, why in one.stacks.items() if not why]


def _angles(one: "Candidate", found: "Plan") -> str:
    effect = one.effect
    assert effect is not None
    unseen = "none is new"
    if pairs := effect.unseen_pairs:
        unseen = f"{len(pairs)} of {found.n_pairs} pairs reach new ones, from pair {min(pairs)} to {max(pairs)}"
    near = (
        f"between neighbours x {effect.fastest:.4g} for the fastest pair, x {effect.median:.4g} for the median, "
        f"smaller for {effect.closer}"
    )
    if not effect.closer:
        near = "between neighbours as today"
    mapped = {
        "dual-chunk": "distances beyond a chunk are mapped to its length or less",
        "self-extend": "beyond the window neighbours share positions in groups",
    }.get(one.method.name)
    changing = "" if effect.fixed else "they change with the length, but cached keys do not"
    return "; ".join(part for part in (unseen, near, mapped, changing) if part)


def _temperature(one: "Candidate") -> str:
    effect = one.effect
    assert effect is not None
    if effect.logits is None:
        return "scores x 1 + c ln(times); c is fitted after recalibration, 0.412 and 0.103 in the paper"
    if abs(effect.logits - 1) < 1e-6 and abs((effect.short_logits or 1) - 1) < 1e-6:
        return "as today"
    return f"gain {effect.gain:.6g}; scores x {effect.logits:.5g}, for short texts x {effect.short_logits:.5g}"


def _parameters(one: "Candidate", found: "Plan") -> str:
    """List the parameters that the method adds."""
    listed = []
    for key, value in one.parameters.items():
        if key in ("rope_type", "original_max_position_embeddings") or (key, value) == ("rope_theta", _base(found)):
            continue
        if isinstance(value, (list, tuple)):
            listed.append(f"{key} {len(value)} numbers from {min(value):g} to {max(value):g}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            listed.append(f"{key} {value:,.10g}")
        else:
            listed.append(f"{key} {value}")
    return ", ".join(listed)


def _base(found: "Plan") -> float:
    from posenc.extend.stretch import plain_base

    return plain_base(found.before.rotary)


def _next(target: str, found: "Plan", words: Sequence[str]) -> list[str]:
    """Return the commands that write and measure the first candidate that a configuration can express."""
    place = shlex.quote(target) if Path(target).is_dir() else "DIR"
    if found.settled:
        return [f"posenc evaluate {place} --text FILE --lengths {found.target_len}"]
    best = next((one for one in found.candidates if one.stretched), None)
    if best is None:
        return []
    method, runs = best.method, _runs(best)
    own = [word for word in words if word.partition("=")[0] in (*method.needs, *method.takes)]
    needs = [key for key in method.needs if not any(word.startswith(f"{key}=") for word in own)]
    own += [f"{key}={json.dumps(best.parameters[key])}" for key in needs]
    to = "vllm" if "vllm" in runs else runs[0] if runs else "hf5"
    length = f"--target-len {found.target_len} --trained-len {found.trained_len}"
    lines = [shlex.join(["posenc", "write", target, "--method", method.name, "--to", to]) + f" {length}"]
    lines[0] += "".join(f" --option {shlex.quote(word)}" for word in own)
    if method.name in _MEASURED:
        how = f"--method {method.name} --factor {found.factor:.6g} --trained-len {found.trained_len}"
        lines.append(f"posenc evaluate {place} --text FILE {how}")
    return lines
