"""The command line: `posenc list`, `show`, `inspect`, `convert`, `study`, `bench`, `verify`, `identify`, `doctor`, ...

A command's module is imported only when the command runs, so `posenc --help` prints at once. Exit codes:
0 success, 1 findings, 2 usage error, 3 cannot tell.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from posenc.cli import output
from posenc.needs import lacks_torch, no_torch
from posenc.raised import describe, own_line

# Each command's module and function, and its line of help.
COMMANDS = {
    "study": ("study:study_encodings", "Compare encodings on your own text and on tasks."),
    "bench": ("bench:bench", "Measure the time and memory of encodings on this machine."),
    "list": ("listing:list_encodings", "List the encodings."),
    "show": ("show:show_encoding", "Show one encoding: formula, paper, options, picture."),
    "plot": ("plot:plot_encoding", "Draw a figure of an encoding to a file."),
    "inspect": ("inspect:inspect_model", "Explain what a model's configuration says about positions."),
    "convert": ("convert:convert_weights", "Permute weights to the other pairing of dimensions."),
    "verify": ("verify:verify_implementation", "Test position code and report what is wrong with it."),
    "cases": ("verify:write_cases", "Write the test inputs of verify for a port on another machine."),
    "identify": ("identify:identify_implementation", "Report what position code computes, without a specification."),
    "rule": ("rule:explain_rule", "Explain an error code that verify reports."),
    "verify-config": (
        "verify_config:verify_config",
        "Check a model's configuration for errors in its position fields.",
    ),
    "verify-model": ("verify_model:verify_model", "Check that a model's layers rotate as its configuration says."),
    "parity": ("parity:compare_stacks", "Compare how inference stacks read a configuration."),
    "plan": ("plan:plan_extension", "Compare the methods that extend a model's context."),
    "write": ("write:write_context", "Write the keys or flags that extend the context in a stack."),
    "evaluate": ("evaluate:evaluate_models", "Measure a model on texts longer than its training texts."),
    "golden": ("golden:write_golden", "Write reference numbers for ports, and check a port's output."),
    "explore": ("explore:explore", "Explore encodings in the browser."),
    "doctor": ("doctor:examine_installation", "Report what is installed and what is missing."),
}


class _Commands(click.Group):
    """The group of commands; it imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return a command.

        Raises:
            NoSuchCommand: None has this name.
        """
        if cmd_name not in COMMANDS:
            raise click.NoSuchCommand(cmd_name, possibilities=COMMANDS, ctx=ctx)
        path, summary = COMMANDS[cmd_name]
        module, _, function = path.partition(":")
        command: click.Command = getattr(import_module(f"posenc.cli.{module}"), function)
        command.short_help = summary
        return command


def _print_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        import posenc

        output.write(f"posenc {posenc.__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    epilog="Exit codes: 0 success, 1 findings, 2 usage error, 3 cannot tell. Errors go to stderr.",
    context_settings={"show_default": True},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Print the version.")  # fmt: skip
@click.pass_context
def app(ctx: click.Context) -> None:
    """Find, inspect, compare and test position encodings for Transformers."""
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command line on `arguments` and return the exit code.

    An error that the library raises on purpose, or the code that a command names, becomes one line on stderr; a bug
    keeps its traceback.
    """
    try:
        code = app(args=list(arguments), prog_name="posenc", standalone_mode=False)
    except click.UsageError as error:
        output.complain(output.explain_usage(error))
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "posenc").split(".")[0] == "posenc":
            raise
        if lacks_torch(error):
            output.complain(str(no_torch(f"`posenc {' '.join(arguments)}`")))
            return 2
        fix = "`posenc doctor` says what to install"
        if error.name == "transformers":
            fix = "Install it: pip install 'posenc[hf]'"
        output.complain(f"this needs the package {error.name!r}, which cannot be imported here. {fix}.")
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130  # as a shell reports a program that was interrupted
    except Exception as error:
        if isinstance(error, (ValueError, TypeError, NotImplementedError)) and output.is_refusal(error):
            output.complain(str(error))
        elif any(":" in argument for argument in arguments) and own_line(error):  # module:Class, which a user wrote
            output.complain(f"the code that the command names raised {describe(error)}.")
        else:
            raise
        return 2
    return code or 0


def main() -> NoReturn:
    """Run the command line on the program's arguments and exit with its code."""
    output.prepare_streams()
    sys.path.append("")  # makes classes in the current folder importable; last, so that it shadows nothing
    sys.exit(run(sys.argv[1:]))
