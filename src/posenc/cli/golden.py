"""`posenc golden`: inputs and exact outputs of every encoding, for ports in other languages."""

from typing import Annotated

import typer

from posenc.cli import output


def write_golden(
    out: Annotated[str, typer.Option(metavar="DIR", help="New, empty, or written by this command before.")],
    as_json: Annotated[bool, typer.Option("--json", help="What was written, as JSON.")] = False,
) -> None:
    """Write inputs and exact float64 outputs of every encoding, one safetensors file each, and manifest.json."""
    from posenc import golden

    manifest = golden.write(out)
    if as_json:
        output.write_json({"out": out, **manifest})
        return
    n_cases = sum(len(entry["cases"]) for entry in manifest["encodings"])
    output.write(
        f"{out}: {len(manifest['encodings'])} encodings, {n_cases} cases, schema {manifest['schema']}; "
        f"{golden.MANIFEST} says what each tensor is"
    )
