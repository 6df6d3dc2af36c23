"""The command line: `posenc list`, `show`, `inspect`, `convert`, `study`, `bench`, `verify`, `identify`, `doctor`, ...

Nothing heavy is imported until a command runs, so that `posenc --help` answers at once. Exit codes:
0 fine, 1 findings, 2 wrong use, 3 cannot tell.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from posenc.cli import (
    bench,
    convert,
    doctor,
    explore,
    golden,
    identify,
    inspect,
    listing,
    output,
    parity,
    plot,
    rule,
    show,
    study,
    verify,
    verify_config,
    verify_model,
)

app = typer.Typer(
    name="posenc",
    help="Position encodings for Transformers: find, look at and compare them.",
    epilog="Exit codes: 0 fine, 1 findings, 2 wrong use, 3 cannot tell. Errors go to stderr.",
    add_completion=False,
    rich_markup_mode=None,  # plain help: starts without rich, and is the same in a pipe
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback, without everybody's locals
)
app.command("list", short_help="List the encodings.")(listing.list_encodings)
app.command("show", short_help="Show one: formula, paper, options, picture.")(show.show_encoding)
app.command("plot", short_help="Draw a figure of one into a file.")(plot.plot_encoding)
app.command("inspect", short_help="Report what a model's configuration means for its positions.")(inspect.inspect_model)
app.command("convert", short_help="Permute weights for the other pairing of lanes.")(convert.convert_weights)
app.add_typer(study.app, name="study", short_help="Compare encodings on your own text and on tasks.")
app.add_typer(bench.app, name="bench", short_help="Measure on this machine what position costs.")
app.command("verify", short_help="Report what is wrong with position code.")(verify.verify_implementation)
app.command("cases", short_help="Write the questions of verify for a port on another machine.")(verify.write_cases)
app.command("identify", short_help="Report what code computes, without a spec.")(identify.identify_implementation)
app.command("rule", short_help="Explain a code of verify.")(rule.explain_rule)
app.command("verify-config", short_help="Check what a model's configuration says about positions.")(
    verify_config.verify_config
)
app.command("verify-model", short_help="Compare a model's layers with its configuration.")(verify_model.verify_model)
app.command("parity", short_help="Compare what each stack makes of a configuration.")(parity.compare_stacks)
app.add_typer(golden.app, name="golden", short_help="Write exact numbers for ports, and check what a port wrote.")
app.command("explore", short_help="See positions in the browser.")(explore.explore)
app.command("doctor", short_help="Report what is installed and what is missing.")(doctor.examine_installation)

# Newer versions of typer carry their own copy of click, so its UsageError is found from here.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _print_version(wanted: bool) -> None:
    if wanted:
        import posenc

        output.write(f"posenc {posenc.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command line on `arguments` and return the exit code.

    What the library refuses becomes one line on stderr; a bug keeps its traceback.
    """
    try:
        code = app(args=list(arguments), prog_name="posenc", standalone_mode=False)
    except _UsageError as error:
        output.complain(output.explain_usage(error))
        return 2
    except (ValueError, TypeError, NotImplementedError) as error:
        if not output.is_refusal(error):
            raise
        output.complain(str(error))
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "posenc").split(".")[0] == "posenc":
            raise
        output.complain(
            f"this needs the package {error.name!r}, which cannot be imported here. "
            "`posenc doctor` says what to install."
        )
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130  # as a shell reports a program that was interrupted
    return code or 0


def main() -> NoReturn:
    """Run the command line on the program's arguments and leave with its exit code."""
    output.prepare_streams()
    sys.path.append("")  # a class in the current folder can be named; last, so that it shadows nothing
    sys.exit(run(sys.argv[1:]))
