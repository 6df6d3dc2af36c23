"""The command line: `posenc list`, `show`, `inspect`, `convert`, `study`, `bench`, `verify`, `identify`, `doctor`, ...

Nothing heavy is imported until a command runs, so that `posenc --help` answers at once. Exit codes:
0 fine, 1 findings, 2 wrong use, 3 cannot tell.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from posenc.cli import output
from posenc.needs import lacks_torch, no_torch

# the function of each command, or its own app of commands, and a line of help
COMMANDS = {
    "study": ("study:app", "Compare encodings on your own text and on tasks."),
    "bench": ("bench:app", "Measure on this machine what position costs."),
    "list": ("listing:list_encodings", "List the encodings."),
    "show": ("show:show_encoding", "Show one: formula, paper, options, picture."),
    "plot": ("plot:plot_encoding", "Draw a figure of one into a file."),
    "inspect": ("inspect:inspect_model", "Report what a model's configuration means for its positions."),
    "convert": ("convert:convert_weights", "Permute weights for the other pairing of lanes."),
    "verify": ("verify:verify_implementation", "Report what is wrong with position code."),
    "cases": ("verify:write_cases", "Write the questions of verify for a port on another machine."),
    "identify": ("identify:identify_implementation", "Report what code computes, without a spec."),
    "rule": ("rule:explain_rule", "Explain a code of verify."),
    "verify-config": ("verify_config:verify_config", "Check what a model's configuration says about positions."),
    "verify-model": ("verify_model:verify_model", "Compare a model's layers with its configuration."),
    "parity": ("parity:compare_stacks", "Compare what each stack makes of a configuration."),
    "plan": ("plan:plan_extension", "Compare the ways to make a model's context longer."),
    "write": ("write:write_context", "Write the keys or flags with which a stack reads longer texts."),
    "golden": ("golden:app", "Write exact numbers for ports, and check what a port wrote."),
    "explore": ("explore:explore", "See positions in the browser."),
    "doctor": ("doctor:examine_installation", "Report what is installed and what is missing."),
}

# Newer versions of typer carry their own copy of click, so its UsageError is found from here.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _print_version(wanted: bool) -> None:
    if wanted:
        import posenc

        output.write(f"posenc {posenc.__version__}")
        raise typer.Exit()


def _start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return an app of some commands; building all of them takes longer than many a command."""
    app = typer.Typer(
        name="posenc",
        help="Position encodings for Transformers: find, look at and compare them.",
        epilog="Exit codes: 0 fine, 1 findings, 2 wrong use, 3 cannot tell. Errors go to stderr.",
        add_completion=False,
        rich_markup_mode=None,  # plain help: starts without rich, and is the same in a pipe
        pretty_exceptions_enable=False,  # a bug shows Python's own traceback, without everybody's locals
    )
    app.callback(invoke_without_command=True)(_start)
    for name in names:
        place, said = COMMANDS[name]
        module, _, found = place.partition(":")
        command: Any = getattr(import_module(f"posenc.cli.{module}"), found)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, short_help=said)
        else:
            app.command(name, short_help=said)(command)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run the command line on `arguments` and return the exit code.

    What the library refuses becomes one line on stderr; a bug keeps its traceback.
    """
    asked = [name for name in arguments[:1] if name in COMMANDS]
    try:
        code = build(asked or COMMANDS)(args=list(arguments), prog_name="posenc", standalone_mode=False)
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
        if lacks_torch(error):
            output.complain(str(no_torch(f"`posenc {' '.join(arguments)}`")))
            return 2
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
