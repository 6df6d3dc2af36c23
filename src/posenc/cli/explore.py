"""`posenc explore`: explore encodings in the browser. This file only reads the arguments."""

from importlib import util
from pathlib import Path

import click

from posenc import languages
from posenc.cli import output

NEEDED = ("starlette", "uvicorn", "plotly", "scipy")  # the extra `web`


@click.command()
@click.argument(
    "target",
    required=False,
    help="An encoding, a known model such as llama-3.1-8b, a config.json, a safetensors checkpoint or its directory, "
    "or a study's directory.  [default: (rope)]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="0 for any free port.", show_default="the first free from 8765"
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="The address to listen on; 0.0.0.0 admits other machines.",
    show_default="127.0.0.1",
)
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write one file that works offline, and exit.",
)
@click.option(
    "--lang",
    "language",
    type=click.Choice(languages.LANGUAGES),
    help="The language in which the page opens.",
    show_default="the browser's",
)
@click.pass_context
def explore(
    ctx: click.Context,
    target: str | None,
    port: int | None,
    host: str | None,
    no_browser: bool,
    export: Path | None,
    language: str | None,
) -> None:
    """Explore encodings in the browser: waves, scores, similarity, bias, precision, extensions, models.

    A small server runs until Ctrl-C; only this machine can reach it, unless
    --host is given. The code that runs in models computes every number.
    """
    if export is not None and (port is not None or host is not None):
        raise click.BadParameter("--export starts no server. Leave out --port and --host.", ctx=ctx)
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"explore: these packages are not installed: {', '.join(missing)}. Install them: pip install 'posenc[web]'."
        )
    from posenc.explorer import launch

    if export is not None:
        launch.export(target, export, language)
        output.write(f"Wrote {export}.")
        return
    launch.explore(target, say=output.write, port=port, host=host, browser=not no_browser, language=language)
