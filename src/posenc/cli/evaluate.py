"""`posenc evaluate`: how well a model reads texts that are longer than those of its training."""

import click

from posenc.cli import output
from posenc.cli.study import split_list


@click.command()
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="A model with safetensors, or a study's cell; several are seeds of one.",
)
@click.option("--text", required=True, metavar="FILE", help="Long prose that the model was not trained on.")
@click.option(
    "--lengths",
    multiple=True,
    metavar="N,...",
    help="Of context, in tokens.",
    show_default="1, 2, 4 and 8 times the trained length",
)
@click.option(
    "--method",
    multiple=True,
    metavar="NAME,...",
    show_default="none",
    help="linear, ntk, dynamic, yarn, llama3; yarn:4 has a factor of its own. none is always measured.",
)
@click.option("--factor", type=float, metavar="F", help="Of all methods.", show_default="longest over trained length")
@click.option(
    "--trained-len",
    type=int,
    metavar="N",
    help="The length of the texts of training.",
    show_default="as the configuration names it",
)
@click.option("--pieces", default=16, metavar="N", help="Pieces of text whose last tokens are scored.")
@click.option("--trials", default=4, metavar="N", help="Needles of each kind, depth and length; 0: none.")
@click.option("--device", default="", metavar="NAME", help="cpu, cuda, ...", show_default="a GPU")
@click.option("--out", default="evaluation", metavar="DIR", help="Where the report goes.")
@click.option("--force", is_flag=True, help="Replace the report of another evaluation in it.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON; progress goes to stderr.")
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
    """Measure loss by position, sliding perplexity, needles and short texts, with each method of stretching.

    The same command goes on where it was stopped. Exit codes: 0 fine, 1 a cell failed, 2 wrong use.
    """
    from posenc.extend.evaluate.command import evaluate
    from posenc.extend.evaluate.plan import Options

    numbers = split_list(lengths)
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise ValueError(f"evaluate: --lengths are whole numbers with commas between; got {', '.join(numbers)[:60]}.")
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
