"""`posenc verify-config`: errors and oddities in a configuration's position fields, and how to fix them."""

import json
from typing import TYPE_CHECKING

import click

from posenc.cli import output
from posenc.cli.verify import FORMATS_HELP, conclude, format_of

if TYPE_CHECKING:
    from posenc.verify.configs import Finding, Judgement
    from posenc.verify.formats import Result

_WIDTH = 100


@click.command()
@click.argument(
    "targets",
    nargs=-1,
    required=True,
    metavar="TARGET...",
    help="A config.json, a directory with one, or a known name such as llama-3.1-8b.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output-format json.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP)
@click.option("--pairing", help="half or interleaved, for a model type unknown to posenc, or params.json.")
def verify_config(targets: tuple[str, ...], as_json: bool, output_format: str | None, pairing: str | None) -> None:
    """Check models' configurations for errors in their position fields.

    Each finding has a code, the key, its value, the allowed values, the meaning of each spelling, and a fix.
    Exit codes: 0 nothing found, 1 findings, 2 usage error, 3 cannot tell (unknown model type).
    """
    wanted = format_of("verify-config", as_json, output_format)
    if pairing not in (None, "half", "interleaved"):
        raise ValueError(f"verify-config: --pairing must be half or interleaved; got {pairing}.")
    conclude(wanted, [_judge(target, pairing) for target in targets])


def _judge(target: str, pairing: str | None) -> "Result":
    from posenc.config.known import not_found
    from posenc.verify import configs, formats

    try:
        found = configs.judge(target, pairing=pairing)  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise not_found(target, "verify-config") from error
    return formats.of_judgement(found, "\n".join(_describe(found)))


def _describe(found: "Judgement") -> list[str]:
    """Return the findings as lines of text."""
    kinds = ", ".join(found.layers) or "no layers"
    n = len(found.findings)
    ends = {
        "pass": f"nothing found ({kinds})",
        "fail": f"{n} finding{'s' if n > 1 else ''}",
        "cannot_tell": "cannot tell",
    }
    lines = [f"{found.target}: {ends[found.status]}"]
    for one in found.findings:
        lines += ["", f"{one.level}: {one.code}: {one.key}{_value(one)}"]
        lines.append(output.wrap(one.message, _WIDTH, "  "))
        lines.append(output.wrap(one.allowed, _WIDTH, "           ", "  allowed: "))
        for i, (spelling, meaning) in enumerate(one.meanings):
            lines.append(
                output.wrap(f"{spelling}: {meaning}", _WIDTH, "             ", ("           ", "  means:   ")[i == 0])
            )
        lines.append(output.wrap(one.fix, _WIDTH, "           ", "  fix:     "))
    if found.because:
        lines += ["", output.wrap(found.because, _WIDTH)]
    if found.not_judged:
        unjudged = "; ".join(found.not_judged)
        lines += [*([""] if found.findings or found.because else []), output.wrap(f"not judged: {unjudged}.", _WIDTH)]
    return lines


def _value(one: "Finding") -> str:
    if one.value is None:
        return " is not in the file" if one.key != "(file)" else ""
    return f" = {json.dumps(one.value)}"
