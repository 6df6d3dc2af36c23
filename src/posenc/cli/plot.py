"""`posenc plot`: draw a figure of an encoding to a file."""

import ast
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from posenc import languages
from posenc.cli import output
from posenc.replacing import replaced

SEED = 0
# As in posenc.figures.KINDS, copied here because posenc.figures imports matplotlib.
KINDS = (
    "bias",
    "bias-matrix",
    "distances",
    "heatmap",
    "lanes",
    "points",
    "dot",
    "similarity",
    "wavelengths",
    "profile",
    "precision",
)
_DIMS: dict[str, Any] = {"d_model": 128, "n_heads": 8, "head_dim": 64, "max_len": 512}


@click.command()
@click.argument("name", help="A name, an alias, or package.module:Class.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write: FILE.svg, .png, .pdf, ...",
)
@click.option("--kind", help=f"{', '.join(KINDS)}.", show_default="by encoding")
@click.option(
    "--with",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An argument of the constructor, such as base=500000; may be repeated.",
)
@click.option(
    "--lang",
    "language",
    type=click.Choice(languages.LANGUAGES),
    default="en",
    help="The labels' language; zh needs a font with Chinese glyphs.",
)
def plot_encoding(name: str, out: Path, kind: str | None, options: tuple[str, ...], language: str) -> None:
    """Draw a figure of an encoding to a file.

    Sizes default to those of a small model (d_model=128, n_heads=8, head_dim=64); --with sets others.
    """
    figures = _load_figures()
    suffix = check_suffix(out)
    encoding = construct(name, read_options(options))
    random = import_module("torch").random.fork_rng(devices=[])
    with random, languages.use(language), warnings.catch_warnings(record=True) as caught:
        figure = figures.draw(encoding, kind, seed=SEED)
    for warning in caught:
        output.complain(f"plot: {str(warning.message).removeprefix('posenc.figures: ')}")
    save(figure, out, suffix)
    output.write(f"{out}: {figures.kind_of(encoding, kind)} of {figures.label_of(encoding)}")


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Read OPTION=VALUE, where a value is a Python literal or a word.

    Raises:
        ValueError: There is no equals sign.

    >>> read_options(["base=5e5", "pairing=half"])
    {'base': 500000.0, 'pairing': 'half'}
    """
    read: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"plot: --with must be OPTION=VALUE, such as base=500000; got {option!r}.")
        try:
            read[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            read[key] = value
    return read


def construct(name: str, options: Mapping[str, Any]) -> Any:
    """Construct an encoding with the sizes of a small model, or with its card's example where these do not suffice.

    Sizes do not suffice where options are required, and where there is nothing to draw: a graph or cameras are missing.

    Raises:
        ValueError: The name is unknown, or an option has a wrong value.
        TypeError: An option is unknown or of a wrong type.
    """
    from posenc import registry

    torch = import_module("torch")  # by name: posenc.cli itself must start without it
    cls = registry.find_class(name)
    card = registry.card_of(cls)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            encoding = registry.create(name, dims=registry.Dims(**_DIMS), **options)
            if card is None or _load_figures().kinds_of(encoding):
                return encoding.eval()
        except (ValueError, TypeError):
            if card is None:
                raise
        torch.manual_seed(SEED)
        return registry.create(name, **{**card.example, **options}).eval()


def check_suffix(out: Path) -> str:
    """Return the format that a file name's suffix selects.

    Raises:
        ValueError: matplotlib cannot write that format.
    """
    known = import_module("matplotlib.figure").Figure().canvas.get_supported_filetypes()
    writable = sorted(set(known) - {"pgf"})  # pgf needs LaTeX
    suffix = out.suffix[1:].lower()
    if suffix not in writable:
        raise ValueError(
            f"plot: the file name must end in one of .{', .'.join(writable)}; got {str(out)!r}. "
            "Use .svg for web pages, .pdf for papers, .png for anything else."
        )
    return suffix


def save(figure: Any, out: Path, suffix: str) -> None:
    """Write a figure to a file atomically.

    Raises:
        ValueError: The file cannot be written.
    """
    try:
        with replaced(out) as aside:
            figure.savefig(aside, format=suffix)
    except OSError as error:
        raise ValueError(f"plot: cannot write {str(out)!r}: {error.strerror or error}. Choose another path.") from error


def _load_figures() -> Any:
    """Import the figures, or report in one line what is missing."""
    try:
        return import_module("posenc.figures")
    except ModuleNotFoundError:
        raise  # such as torch, which the command line reports
    except ImportError as error:
        output.complain(f"plot: {error}")
        raise click.exceptions.Exit(2) from None
