"""`posenc golden`: exact inputs and outputs for ports in other languages, and the check of what a port wrote."""

from typing import Any

import click

from posenc.cli import output
from posenc.cli.verify import FORMATS_HELP, conclude, format_of

_PAIRINGS = (None, "half", "interleaved")


@click.group(invoke_without_command=True)
@click.option("--out", metavar="DIR", help="New, empty, or written by this command before.")
@click.option(
    "--config",
    metavar="MODEL",
    help="A config.json, a directory with one, or a name as llama-3.1-8b: numbers of this model.",
    show_default="every encoding",
)
@click.option("--positions", metavar="P,P,..", help="With --config: at these positions.", show_default="near and far")
@click.option(
    "--seq-len", type=int, metavar="N", help="With --config: for a text so long, where frequencies depend on it."
)
@click.option(
    "--format", "form", metavar="NAME", help="With --config: safetensors, npz, npy, json.", show_default="safetensors"
)
@click.option("--pairing", help="With --config: half or interleaved, for a model type that posenc does not know.")
@click.option("--json", "as_json", is_flag=True, help="What was written, as JSON.")
@click.pass_context
def write_golden(
    ctx: click.Context,
    out: str | None,
    config: str | None,
    positions: str | None,
    seq_len: int | None,
    form: str | None,
    pairing: str | None,
    as_json: bool,
) -> None:
    """Write exact numbers for ports in other languages, with a manifest.json that says what each is.

    With --config those of one model, for each kind of layer: frequencies, angles, rotated queries and keys, biases.
    Without it inputs and float64 outputs of every encoding, one safetensors file each.
    """
    if ctx.invoked_subcommand is not None:
        return
    from posenc import golden

    if out is None:
        raise ValueError("golden: --out DIR must say where to write. Name a new or empty directory.")
    if config is None:
        given = {"--positions": positions, "--seq-len": seq_len, "--format": form, "--pairing": pairing}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"golden: {wrong[0]} belongs to --config. Give both, or neither.")
        manifest = golden.write(out)
        n_cases = sum(len(entry["cases"]) for entry in manifest["encodings"])
        said = f"{len(manifest['encodings'])} encodings, {n_cases} cases, schema {manifest['schema']}"
    else:
        if pairing not in _PAIRINGS:
            raise ValueError(f"golden: --pairing must be half or interleaved; got {pairing}.")
        at = None if positions is None else _read_positions(positions)
        options: dict[str, Any] = {"positions": at, "seq_len": seq_len, "pairing": pairing}
        manifest = golden.write_config(config, out, form=form or "safetensors", **options)
        said = ", ".join(f"{layer['kind']} ({len(layer['files'])} arrays)" for layer in manifest["layers"])
    if as_json:
        output.write_json({"out": out, **manifest})
    else:
        output.write(f"{out}: {said}; {golden.MANIFEST} says what each {'tensor' if config is None else 'array'} is")


def _read_positions(said: str) -> list[int]:
    try:
        return [int(word) for word in said[:100_000].split(",")]
    except ValueError:
        raise ValueError(
            f"golden: --positions must be whole numbers with commas, as 0,1,4096; got {said!r:.60}."
        ) from None


@write_golden.command("check", short_help="Compare what a port wrote with golden vectors of a configuration.")
@click.argument("directory", metavar="DIR", help="What `posenc golden --config` has written.")
@click.option(
    "--against", required=True, metavar="DIR", help="What the port wrote: files of the same names and formats."
)
@click.option(
    "--dtype", metavar="NAME", help="In which the port computes: float32 or bfloat16.", show_default="that of each file"
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP, show_default="text")
def check_port(directory: str, against: str, dtype: str | None, as_json: bool, output_format: str | None) -> None:
    """Report what is wrong in what a port wrote: the first wrong position, and the one cause that explains it.

    Exit codes: 0 pass or equivalent, 1 fail, 2 wrong use, 3 cannot tell. Files that are missing are not judged.
    """
    from posenc import golden
    from posenc.verify import formats

    wanted = format_of("golden check", as_json, output_format)
    conclude(wanted, [formats.of_report(golden.check(directory, against, dtype=dtype), against)])
