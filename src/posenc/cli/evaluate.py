"""`posenc evaluate`: how well a model handles texts longer than its training texts."""

import click

from posenc.cli import output
from posenc.cli.study import split_list


@click.command()
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="A model with safetensors, or a study's cell; several are seeds of the same model.",
)
@click.option("--text", required=True, metavar="FILE", help="A long text that the model was not trained on.")
@click.option(
    "--lengths",
    multiple=True,
    metavar="N,...",
    help="Context lengths in tokens.",
    show_default="1, 2, 4 and 8 times the trained length",
)
@click.option(
    "--method",
    multiple=True,
    metavar="NAME,...",
    show_default="none",
    help="linear, ntk, dynamic, yarn, llama3; yarn:4 sets this method's own factor. none is always measured.",
)
@click.option(
    "--factor",
    type=float,
    metavar="F",
    help="The factor of all methods.",
    show_default="longest length / trained length",
)
@click.option(
    "--trained-len",
    type=int,
    metavar="N",
    help="The trained length, in tokens.",
    show_default="that of the configuration",
)
@click.option("--pieces", default=16, metavar="N", help="The number of text pieces whose last tokens are scored.")
@click.option("--trials", default=4, metavar="N", help="Needles for each kind, depth and length; 0 measures none.")
@click.option("--device", default="", metavar="NAME", help="cpu, cuda, ...", show_default="a GPU")
@click.option("--out", default="evaluation", metavar="DIR", help="The directory of the report.")
@click.option("--force", is_flag=True, help="Replace the report of another evaluation there.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON; progress goes to stderr.")
def evaluate_models(
    directories: tuple[str, ...],
    text: str,
    lengths: tuple[str, ...],
    method: tuple[str, ...],
    factor: float | None,
    trained_len: int | None,
    pieces: int,
    trials: int,
    device: str,
    out: str,
    force: bool,
    as_json: bool,
) -> None:
    """Measure loss by position, sliding perplexity, needles and short texts with each context extension method.

    After an interruption, the same command resumes. Exit codes: 0 success, 1 a cell failed, 2 usage error.
    """
    from posenc.extend.evaluate.command import evaluate
    from posenc.extend.evaluate.plan import Options

    numbers = split_list(lengths)
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise ValueError(
            f"evaluate: --lengths must be whole numbers, separated by commas; got {', '.join(numbers)[:60]}."
        )
    options = Options(
        paths=directories,
        text=text,
        lengths=[int(number) for number in numbers],
        methods=split_list(method),
        factor=factor,
        trained_len=trained_len,
        pieces=pieces,
        trials=trials,
        device=device,
        out=out,
        force=force,
    )
    code, found = evaluate(options, lambda line: click.echo(line, err=as_json))
    if as_json:
        output.write_json(found)
    raise click.exceptions.Exit(code)
