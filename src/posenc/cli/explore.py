"""`posenc explore`: see positions in the browser. Only the arguments are read in this file."""

from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from posenc.cli import output

NEEDED = ("starlette", "uvicorn", "plotly", "scipy")  # the extra `web`


def explore(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="An encoding, a model as llama-3.1-8b, a config.json, a checkpoint in safetensors or its directory, "
            "or a study's directory.",
            show_default="rope",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="0 for any.", show_default="the first free from 8765")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="Let others in: 0.0.0.0 for all.", show_default="127.0.0.1"),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Say the address and open nothing.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE.html", help="Write one file that works offline, and end.", dir_okay=True
        ),
    ] = None,
) -> None:
    """See positions in the browser: waves, scores, similarity, bias, precision, extensions, models.

    A small server runs on this machine, for this machine alone, until Ctrl-C.
    Every number in the page is computed by the code that runs in models.
    """
    if export is not None and (port is not None or host is not None):
        raise typer.BadParameter("--export starts no server, so it takes no --port and no --host.", ctx=ctx)
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        raise ValueError(f"explore: needs what is not installed: {', '.join(missing)}; install posenc[web].")
    from posenc.explorer import launch

    if export is not None:
        launch.export(target, export)
        output.write(f"Wrote {export}.")
        return
    launch.explore(target, say=output.write, port=port, host=host, browser=not no_browser)
