"""The command line: `posenc list`, `show`, `inspect`, `convert`, `study`, `bench`, `verify`, `identify`, `doctor`, ...

Nothing heavy is imported until a command runs, so that `posenc --help` answers at once. Exit codes:
0 fine, 1 findings, 2 wrong use, 3 cannot tell.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from posenc.cli import output
from posenc.needs import lacks_torch, no_torch

# where each command stands, and a line of help
COMMANDS = {
    "study": ("study:study_encodings", "Compare encodings on your own text and on tasks."),
    "bench": ("bench:bench", "Measure on this machine what position costs."),
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
    "evaluate": ("evaluate:evaluate_models", "Measure how well a model reads longer texts."),
    "golden": ("golden:write_golden", "Write exact numbers for ports, and check what a port wrote."),
    "explore": ("explore:explore", "See positions in the browser."),
    "doctor": ("doctor:examine_installation", "Report what is installed and what is missing."),
}


class _Commands(click.Group):
    """The commands; the module of one is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of their help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return a command.

        Raises:
            NoSuchCommand: None has this name.
        """
        if cmd_name not in COMMANDS:
            raise click.NoSuchCommand(cmd_name, possibilities=COMMANDS, ctx=ctx)
        place, said = COMMANDS[cmd_name]
        module, _, found = place.partition(":")
        command: click.Command = getattr(import_module(f"posenc.cli.{module}"), found)
        command.short_help = said
        return command


def _print_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        import posenc

        output.write(f"posenc {posenc.__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    epilog="Exit codes: 0 fine, 1 findings, 2 wrong use, 3 cannot tell. Errors go to stderr.",
    context_settings={"show_default": True},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Print the version.")  # fmt: skip
@click.pass_context
def app(ctx: click.Context) -> None:
    """Position encodings for Transformers: find, look at and compare them."""
    if ctx.invoked_subcommand is None:
        output.write(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command line on `arguments` and return the exit code.

    What the library refuses becomes one line on stderr; a bug keeps its traceback.
    """
    try:
        code = app(args=list(arguments), prog_name="posenc", standalone_mode=False)
    except click.UsageError as error:
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
    except (KeyboardInterrupt, click.Abort):
        return 130  # as a shell reports a program that was interrupted
    return code or 0


def main() -> NoReturn:
    """Run the command line on the program's arguments and leave with its exit code."""
    output.prepare_streams()
    sys.path.append("")  # a class in the current folder can be named; last, so that it shadows nothing
    sys.exit(run(sys.argv[1:]))
