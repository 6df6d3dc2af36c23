"""`posenc golden`: reference inputs and outputs for ports in other languages, and the check of a port's output."""

from typing import Any

import click

from posenc.cli import output
from posenc.cli.verify import FORMATS_HELP, conclude, format_of

_PAIRINGS = (None, "half", "interleaved")


@click.group(invoke_without_command=True)
@click.option("--out", metavar="DIR", help="A directory that is new, empty, or written by this command.")
@click.option(
    "--config",
    metavar="MODEL",
    help="A config.json, a directory with one, or a known name such as llama-3.1-8b: write this model's numbers.",
    show_default="every encoding",
)
@click.option("--positions", metavar="P,P,..", help="With --config: positions.", show_default="near and far ones")
@click.option("--seq-len", type=int, metavar="N", help="With --config: the text's length, if frequencies depend on it.")
@click.option(
    "--format",
    "form",
    metavar="NAME",
    help='With --config: safetensors, npz, npy or json: {"cos": {"dtype": "float32", "shape": [26, 64], "data": [...]}}'
    ", not nested.",
    show_default="safetensors",
)
@click.option(
    "--pairing", help="With --config: half or interleaved, for a model type unknown to posenc, or params.json."
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
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
    """Write reference numbers for ports in other languages, with a manifest.json that describes each array.

    With --config: the numbers of one model, for each kind of layer: frequencies, angles, rotated queries and keys,
    biases; of T5 the buckets of relative_positions (key - query) and the bias_indices of q_positions and k_positions.
    Without: inputs and float64 outputs of every encoding, in one safetensors file each.
    """
    if ctx.invoked_subcommand is not None:
        return
    from posenc import golden

    if out is None:
        raise ValueError("golden: --out DIR is missing. Give a new or empty directory.")
    if config is None:
        given = {"--positions": positions, "--seq-len": seq_len, "--format": form, "--pairing": pairing}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"golden: {wrong[0]} needs --config. Give both, or neither.")
        manifest = golden.write(out)
        n_cases = sum(len(entry["cases"]) for entry in manifest["encodings"])
        summary = f"{len(manifest['encodings'])} encodings, {n_cases} cases, schema {manifest['schema']}"
    else:
        if pairing not in _PAIRINGS:
            raise ValueError(f"golden: --pairing must be half or interleaved; got {pairing}.")
        at = None if positions is None else _read_positions(positions)
        options: dict[str, Any] = {"positions": at, "seq_len": seq_len, "pairing": pairing}
        manifest = golden.write_config(config, out, form=form or "safetensors", **options)
        summary = ", ".join(f"{layer['kind']} ({len(layer['files'])} arrays)" for layer in manifest["layers"])
    for line in manifest.get("warnings", ()):
        output.complain(f"golden: warning: {line}")
    if as_json:
        output.write_json({"out": out, **manifest})
    else:
        output.write(f"{out}: {summary}; {golden.MANIFEST} describes each {'tensor' if config is None else 'array'}")


def _read_positions(text: str) -> list[int]:
    try:
        return [int(word) for word in text[:100_000].split(",")]
    except ValueError:
        raise ValueError(
            f"golden: --positions must be whole numbers separated by commas, as 0,1,4096; got {text!r:.60}."
        ) from None


@write_golden.command("check", short_help="Compare a port's output with golden vectors of a configuration.")
@click.argument("directory", metavar="DIR", help="The directory that `posenc golden --config` wrote.")
@click.option("--against", required=True, metavar="DIR", help="The port's output: files of the same names and formats.")
@click.option(
    "--dtype",
    metavar="NAME",
    help="The dtype of the port's arithmetic: float32 or bfloat16.",
    show_default="that of each file",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP, show_default="text")
def check_port(directory: str, against: str, dtype: str | None, as_json: bool, output_format: str | None) -> None:
    """Report what is wrong in a port's output: the first wrong position, and the one cause that explains it.

    Missing files are not judged. Exit codes: 0 pass or equivalent, 1 fail, 2 usage error, 3 cannot tell.
    """
    from posenc import golden
    from posenc.verify import formats

    wanted = format_of("golden check", as_json, output_format)
    conclude(wanted, [formats.of_report(golden.check(directory, against, dtype=dtype), against)])
