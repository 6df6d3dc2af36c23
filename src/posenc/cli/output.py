"""What the commands write: text and JSON on stdout, one line for each error on stderr."""

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

# How a formula's signs are written where the stream has no letters for them.
_SPELLINGS = str.maketrans(
    {"·": "*", "−": "-", "–": "-", "—": "-", "√": "sqrt ", "ᵀ": "^T", "…": "...", "≥": ">=", "≤": "<="}
    | {"“": '"', "”": '"', "‘": "'", "’": "'", "→": "->", "×": "x", "∞": "inf"}
)


def prepare_streams() -> None:
    """Let stdout and stderr take any character, spelt out where their encoding lacks it."""
    codecs.register_error("posenc.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None where the caller closed it
            stream.reconfigure(errors="posenc.spell")


def write(text: str) -> None:
    """Write lines to stdout; end quietly if nobody reads them any more."""
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
    """Write a value as JSON; what is not finite becomes null, since JSON has no word for it."""
    write(json.dumps(_finite(value), indent=2, ensure_ascii=not encodes("ω"), allow_nan=False))


def write_rich(*renderables: "RenderableType", width: int | None = None) -> None:
    """Write what rich lays out, in colour where stdout is a terminal that wants it."""
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
    """Tell whether stdout's encoding has these characters."""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def wrap(text: str, width: int, indent: str = "", first: str | None = None) -> str:
    """Break text into lines of at most `width`, the later ones indented; formulas keep their words."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def explain_usage(error: Any) -> str:
    """Return what click found wrong with the arguments, and where help is."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "posenc"
    said = error.format_message().strip()
    return f"{said}{'' if said[-1:] in '.?!' else '.'} `{command} --help` shows what it takes."


def is_refusal(error: Exception) -> bool:
    """Tell whether posenc itself raised the error on purpose, by a `raise` statement of its own.

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
    """Send what is still buffered nowhere, or Python complains of it once more at exit."""
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
