"""`posenc verify-config`: what is wrong or odd in a configuration, and how to fix it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posenc.cli import output
from posenc.cli.verify import CODES, format_of

if TYPE_CHECKING:
    from posenc.verify.configs import Finding, Judgement

_WIDTH = 100


def verify_config(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A config.json, a directory with one, or a name as llama-3.1-8b.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output-format json.")] = False,
    output_format: Annotated[
        str | None, typer.Option("--output-format", metavar="FORMAT", help="text, json or github.")
    ] = None,
    pairing: Annotated[
        str | None, typer.Option("--pairing", help="half or interleaved, for a model type that posenc does not know.")
    ] = None,
) -> None:
    """Judge what a model's configuration says of positions.

    Each finding has a code, the key, its value, what is allowed, what each spelling would mean, and how to fix it.
    Exit codes: 0 nothing found, 1 findings, 2 wrong use, 3 cannot tell (the model type is not known).
    """
    wanted = format_of("verify-config", as_json, output_format)
    if pairing not in (None, "half", "interleaved"):
        raise ValueError(f"verify-config: --pairing must be half or interleaved; got {pairing}.")
    from posenc.verify import configs

    try:
        found = configs.judge(target, pairing=pairing)  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise ValueError(
            f"verify-config: no configuration is at {target!r}, and no known model is called so. "
            f"Name a config.json, a directory that holds one, or one of: {', '.join(configs.known_models())}."
        ) from error
    if wanted == "json":
        output.write_json(found.to_dict())
    elif wanted == "github":
        if lines := _annotate(found):
            output.write("\n".join(lines))
    else:
        output.write("\n".join(_describe(found)))
    if code := CODES[found.status]:
        raise typer.Exit(code)


def _describe(found: "Judgement") -> list[str]:
    """Write the findings as text for a person."""
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
        said = "; ".join(found.not_judged)
        lines += [*([""] if found.findings or found.because else []), output.wrap(f"not judged: {said}.", _WIDTH)]
    return lines


def _value(one: "Finding") -> str:
    if one.value is None:
        return " is not in the file" if one.key != "(file)" else ""
    return f" = {json.dumps(one.value)}"


def _annotate(found: "Judgement") -> list[str]:
    """Write the findings as commands of GitHub Actions, at the line of the file where the key stands."""
    from posenc.verify import sentences

    path, text = _file(found.target)
    lines = []
    for one in found.findings:
        place = {"file": path, "line": _line(text, one.key), "title": one.code}
        said = f"{one.message} Allowed: {one.allowed}. {one.fix}"
        lines.append(sentences.command(one.level, place, said))
    if found.status == "cannot_tell":
        lines.append(sentences.command("notice", {"file": path, "title": "cannot_tell"}, found.because))
    return lines


def _file(target: str) -> tuple[str | None, str]:
    path = Path(target)
    try:
        path = path / "config.json" if path.is_dir() else path
        return str(path), path.read_text("utf-8") if path.stat().st_size <= 1 << 20 else ""
    except (OSError, ValueError):
        return None, ""


def _line(text: str, key: str) -> int | None:
    """Return the number of the first line that holds a key, None where none does."""
    wanted = json.dumps(key.rsplit(".", 1)[-1])
    return next((i for i, line in enumerate(text.splitlines(), 1) if wanted in line), None)
