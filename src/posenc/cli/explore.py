"""`posenc explore`: see positions in the browser. Only the arguments are read in this file."""

from importlib import util
from pathlib import Path

import click

from posenc.cli import output

NEEDED = ("starlette", "uvicorn", "plotly", "scipy")  # the extra `web`


@click.command()
@click.argument(
    "target",
    required=False,
    help="An encoding, a model as llama-3.1-8b, a config.json, a checkpoint in safetensors or its directory, "
    "or a study's directory.  [default: (rope)]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="0 for any.", show_default="the first free from 8765")
@click.option("--host", metavar="ADDRESS", help="Let others in: 0.0.0.0 for all.", show_default="127.0.0.1")
@click.option("--no-browser", is_flag=True, help="Say the address and open nothing.")
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE.html", help="Write one file that works offline, and end."
)
@click.pass_context
def explore(
    ctx: click.Context, target: str | None, port: int | None, host: str | None, no_browser: bool, export: Path | None
) -> None:
    """See positions in the browser: waves, scores, similarity, bias, precision, extensions, models.

    A small server runs on this machine, for this machine alone, until Ctrl-C.
    Every number in the page is computed by the code that runs in models.
    """
    if export is not None and (port is not None or host is not None):
        raise click.BadParameter("--export starts no server, so it takes no --port and no --host.", ctx=ctx)
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        raise ValueError(f"explore: needs what is not installed: {', '.join(missing)}; install posenc[web].")
    from posenc.explorer import launch

    if export is not None:
        launch.export(target, export)
        output.write(f"Wrote {export}.")
        return
    launch.explore(target, say=output.write, port=port, host=host, browser=not no_browser)
