"""The commands' output: text and JSON on stdout, one line for each error on stderr."""

import codecs
import dis
import json
import math
import os
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# How to write the signs of formulas if the stream's encoding lacks them.
_SPELLINGS = str.maketrans(
    {"·": "*", "−": "-", "–": "-", "—": "-", "√": "sqrt ", "ᵀ": "^T", "…": "...", "≥": ">=", "≤": "<="}
    | {"“": '"', "”": '"', "‘": "'", "’": "'", "→": "->", "×": "x", "∞": "inf"}
)


def prepare_streams() -> None:
    """Let stdout and stderr accept any character; those that their encoding lacks are spelt out."""
    codecs.register_error("posenc.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None if the caller closed it
            stream.reconfigure(errors="posenc.spell")


def write(text: str) -> None:
    """Write lines to stdout; exit quietly if the reader closed the pipe."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        raise click.exceptions.Exit(0) from None
    except OSError as error:
        _discard_stdout()
        complain(f"cannot write to stdout: {error.strerror}.")
        raise click.exceptions.Exit(2) from None


def write_json(value: Any) -> None:
    """Write a value as JSON; numbers that are not finite become null, since JSON has none."""
    write(json.dumps(_finite(value), indent=2, ensure_ascii=not encodes("ω"), allow_nan=False))


def write_rich(*renderables: "RenderableType", width: int | None = None) -> None:
    """Write rich's renderables, in colour if stdout is a terminal that supports it."""
    canvas = console(width)
    with canvas.capture() as captured:
        for renderable in renderables:
            canvas.print(renderable)
    write("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def complain(message: str) -> None:
    """Write an error as one line to stderr."""
    if sys.stderr is not None:
        sys.stderr.write(f"posenc: {' '.join(message.split())}\n")


def console(width: int | None = None) -> "Console":
    """Return rich's console on stdout; NO_COLOR switches off bold as well as colours."""
    from rich.console import Console

    return Console(
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        width=width,
    )


def encodes(characters: str) -> bool:
    """Return whether stdout's encoding has these characters."""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def wrap(text: str, width: int, indent: str = "", first: str | None = None) -> str:
    """Break text into lines of at most `width`, the later ones indented; words and hyphens are never broken."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def explain_usage(error: Any) -> str:
    """Return click's message about wrong arguments, and how to get help."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "posenc"
    message = error.format_message().strip()
    return f"{message}{'' if message[-1:] in '.?!' else '.'} See `{command} --help`."


def is_refusal(error: Exception) -> bool:
    """Return whether posenc raised the error on purpose, by a `raise` statement of its own.

    The same kinds of error also come from bugs (a call of None is a TypeError), and those must not
    lose their traceback.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    instruction = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return module.split(".")[0] == "posenc" and dis.opname[instruction] == "RAISE_VARARGS"


def _discard_stdout() -> None:
    """Discard the buffered output, or Python would report the broken pipe again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(_spell_character, characters)), error.end


def _spell_character(character: str) -> str:
    spelt = character.translate(_SPELLINGS)
    if not spelt.isascii():
        name = unicodedata.name(character, "")
        greek = name.startswith("GREEK SMALL LETTER ")
        spelt = name.split()[3].lower() if greek else unicodedata.normalize("NFKD", character)
    return spelt.encode("ascii", "ignore").decode() or "?"
