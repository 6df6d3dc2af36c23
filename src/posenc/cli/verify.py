"""`posenc verify`: test an implementation of a position encoding and report what is wrong with it."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.verify.child import Outcome
    from posenc.verify.child.target import Target
    from posenc.verify.formats import Result

FORMATS_HELP = "text, json, github, sarif or junit."
_SHOWN = 20  # lines shown of the output of the user's code


@click.command()
@click.argument(
    "targets",
    nargs=-1,
    metavar="[TARGET]...",
    help="FILE.py or package.module:OBJECT; a file has build(). Or a directory with recorded answers.",
)
@click.option(
    "--convention", metavar="NAME", help="Its calling convention: rope_fn, hf_rope, ...", show_default="STYLE, or found"
)
@click.option("--spec", metavar="FILE", help="The specification, as JSON; - is stdin.", show_default="the file's SPEC")
@click.option("--exec", "command", metavar="COMMAND", help="Test this program, in any language, over JSON lines.")
@click.option("--array-files", is_flag=True, help="With --exec: pass arrays as .npy files in $POSENC_ARRAYS.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP, show_default="text")
@click.option("--in-process", is_flag=True, help="Run the code in this process, without limits on time and memory.")
@click.option("--explain", metavar="CONVENTION", help="Print what a convention reads and asks; no TARGET.")
def verify_implementation(
    targets: tuple[str, ...],
    convention: str | None,
    spec: str | None,
    command: str | None,
    array_files: bool,
    as_json: bool,
    output_format: str | None,
    in_process: bool,
    explain: str | None,
) -> None:
    """Report what position code computes and what it should compute; if they differ, the one cause and its fix.

    The code is imported and run. Exit codes: 0 pass or equivalent, 1 fail, 2 usage error, 3 cannot tell.
    """
    from posenc.verify import conventions

    wanted = format_of("verify", as_json, output_format)
    if explain is not None:
        _explain(conventions.named(explain, "--explain"), wanted, bool(targets or command))
        return
    asked = None if spec is None else _read_spec(spec)
    named = None if asked is None else asked.pop("convention", None)
    convention = convention or named
    if convention is not None:
        conventions.named(convention, "--convention" if named is None else "convention")
    if (command is None) == (not targets):
        raise ValueError("verify: give either TARGET or --exec COMMAND.")
    if command is not None:
        results = [_run_program(command, convention, asked, array_files)]
    elif len(targets) == 1:
        results = [_verify_target(targets[0], convention, asked, in_process)]
    else:
        results = _verify_several(targets, convention, asked, in_process)
    conclude(wanted, results, refused=len(targets) > len(results))


def _explain(convention: str, wanted: str, has_target: bool) -> None:
    from posenc.verify import explain

    if has_target or wanted not in ("text", "json"):
        raise ValueError("verify: --explain prints a convention as text or JSON. Give no TARGET and no other format.")
    found = explain.explain(convention)
    if wanted == "json":
        output.write_json(found.to_dict())
    else:
        output.write(explain.text(found))


def _verify_several(
    targets: Sequence[str], convention: str | None, spec: dict[str, Any] | None, in_process: bool
) -> "list[Result]":
    """Judge each target; one that cannot be judged is reported on stderr, and the others are judged nevertheless."""
    from posenc.verify.child.target import parse

    for target in targets:  # a target that does not exist is wrong use: nothing runs
        if not Path(target).is_dir():
            parse(target)
    results = []
    for target in targets:
        try:
            results.append(_verify_target(target, convention, spec, in_process))
        except (ValueError, TypeError, NotImplementedError) as error:
            if not output.is_refusal(error):
                raise
            output.complain(f"{target}: {error}")
    return results


def _verify_target(target: str, convention: str | None, spec: dict[str, Any] | None, in_process: bool) -> "Result":
    """Judge a Python object, or the recorded answers in a directory."""
    from posenc.verify import check, child, formats, remote
    from posenc.verify.child.target import parse

    where = None if Path(target).is_dir() else parse(target)
    if where is None:
        convention = _known(convention, target)
        recording = remote.subject(convention, remote.Recording(Path(target)))
        return formats.of_report(check(recording, convention=convention, spec=spec), target)
    announce("verify", target, in_process, child.TIME_LIMIT, child.MEMORY_LIMIT)
    found = (run_here if in_process else child.run)(where, convention=convention, spec=spec)
    repeat(found.printed)
    if found.report is None:
        raise ValueError(found.refused)
    file = None if where.path is None else str(where.path)
    return formats.of_report(found.report, target, file=file, line=_line_of_build(where))


def _run_program(command: str, convention: str | None, spec: dict[str, Any] | None, files: bool) -> "Result":
    """Judge a program in any language."""
    from posenc.verify import check, child, formats, remote

    convention = _known(convention, "--exec")
    output.complain(
        f"verify runs {command} ({child.TIME_LIMIT:g} s, {child.MEMORY_LIMIT / 2**30:g} GiB); run only what you trust."
    )
    with remote.Program(
        command, seconds=child.TIME_LIMIT, memory=child.MEMORY_LIMIT, files=files, warn=output.complain
    ) as program:
        report = check(remote.subject(convention, program), convention=convention, spec=spec)
    repeat(program.text())
    unseen = "whether the program writes into its arguments"
    return formats.of_report(replace(report, not_judged=(*report.not_judged, unseen)), command)


def _known(convention: str | None, where: str) -> str:
    """Return the convention, which cannot be detected without a Python object."""
    from posenc.verify import conventions

    if convention is None:
        raise ValueError(f'verify: {where} needs a convention. Give --convention, or "convention" in --spec.')
    return conventions.named(convention, "convention")


@click.command()
@click.option("--spec", required=True, metavar="FILE", help="The specification, as JSON; - is stdin.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The directory for questions.jsonl."
)
@click.option("--convention", metavar="NAME", help="The port's calling convention.", show_default="that of the spec")
def write_cases(spec: str, out: Path, convention: str | None) -> None:
    """Write the test inputs of `posenc verify` as JSON lines, for a port on another machine.

    Put its answers into DIR/answers.jsonl; `posenc verify DIR --spec FILE` judges them.
    """
    from posenc.verify import family_of, remote

    asked = _read_spec(spec)
    named = asked.pop("convention", None)
    name = _known(convention or named, "cases")
    count = remote.write_questions(family_of(name, asked), out)
    output.write(f"{out / 'questions.jsonl'}: {count:,} calls by {name}. Write answers.jsonl next to it.")


def format_of(command: str, as_json: bool, named: str | None) -> str:
    """Return the format that --json and --output-format select."""
    from posenc.verify.formats import FORMATS

    if named is not None and named not in FORMATS:
        raise ValueError(f"{command}: --output-format must be {FORMATS_HELP[:-1]}; got {named}.")
    if as_json and named not in (None, "json"):
        raise ValueError(f"{command}: --json and --output-format {named} exclude each other. Give one.")
    return "json" if as_json else named or "text"


def conclude(wanted: str, results: "Sequence[Result]", *, refused: bool = False) -> None:
    """Write results as one document, and exit.

    The code is 2 if a target was refused, else 1 if one fails, else 3 if one cannot be decided.
    """
    from posenc.verify import formats

    document = formats.document(wanted, results)
    if not isinstance(document, str):
        output.write_json(document)
    elif document:
        output.write(document)
    ends = {result.status for result in results}
    if code := 2 if refused else 1 if "fail" in ends else 3 if "cannot_tell" in ends else 0:
        raise click.exceptions.Exit(code)


def _read_spec(source: str) -> dict[str, Any]:
    """Read a specification, within the limits on configurations."""
    from posenc.config import reading

    try:
        if source == "-":
            data = sys.stdin.buffer.read(reading.MAX_BYTES + 1)
            if len(data) > reading.MAX_BYTES:
                raise ValueError(f"stdin holds over {reading.MAX_BYTES} bytes; a specification must be smaller.")
            fields = reading.parse(data, "stdin")
            if not isinstance(fields, dict):
                raise ValueError(f"a specification must be a JSON object; got {type(fields).__name__}.")
            return reading.read(fields)
        if Path(source).is_dir():
            raise ValueError(f"{source!r} is a directory. Give a JSON file, or - for stdin.")
        return reading.read(source)
    except FileNotFoundError:
        raise ValueError(f"verify: --spec: there is no file {source!r}. Give a JSON file, or - for stdin.") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"verify: --spec: {str(error).removeprefix('config.read: ')}") from None


def announce(command: str, target: str, in_process: bool, seconds: float, memory: int) -> None:
    """Print, before any import, that the user's code will run."""
    if in_process:
        how = "in this process, without limits"
    else:
        how = f"in a child process ({seconds:g} s, {memory / 2**30:g} GiB; --in-process runs it here)"
    output.complain(f"{command} imports and runs the code of {target} {how}; run only code that you trust.")


def run_here(where: "Target", *, convention: str | None, spec: dict[str, Any] | None, task: str = "check") -> "Outcome":
    """Check or identify in this process; the code's output goes to stderr, since stdout is for the report."""
    from posenc.verify import child
    from posenc.verify.child.inside import examine

    with contextlib.redirect_stdout(sys.stderr):
        return child.outcome_of(examine(where, convention, spec, task), task)


def repeat(printed: str) -> None:
    """Repeat on stderr what the code printed, with a mark that distinguishes it from our messages."""
    from posenc.verify.sentences import printable

    lines = printed.rstrip("\n").split("\n") if printed.strip() else []
    for line in lines[:_SHOWN]:
        sys.stderr.write(f"| {printable(line.rstrip())}\n")
    if len(lines) > _SHOWN:
        sys.stderr.write(f"| ({len(lines) - _SHOWN} more lines)\n")


def _line_of_build(where: "Target") -> int | None:
    """Return the line at which a file defines its subject, for the annotation."""
    if where.path is None:
        return None
    name = (where.name or "build").split(".")[0]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for number, line in enumerate(where.path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith((f"def {name}(", f"class {name}(", f"class {name}:", f"{name} =")):
                return number
    return None
