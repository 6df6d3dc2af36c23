"""`posenc verify-model`: check, layer by layer, that a model rotates queries and keys as its configuration says."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posenc.cli import output
from posenc.cli.verify import FORMATS_HELP, conclude, format_of

if TYPE_CHECKING:
    from posenc.verify.formats import Result
    from posenc.verify.report import Report

_WIDTH = 100


@click.command()
@click.argument(
    "targets",
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="Local directories with config.json and, optionally, safetensors.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP, show_default="text")
@click.option("--small", is_flag=True, help="Test a small model with random weights, even if there are weights.")
def verify_model(targets: tuple[str, ...], as_json: bool, output_format: str | None, small: bool) -> None:
    """Check that a model's layers rotate queries and keys as its configuration says.

    Runs the code of transformers, offline, and neither code nor pickles of the directory. Without weights, or with
    more than 1 GiB of them, tests a small model with random weights. Exit codes: 0 pass or equivalent, 1 fail,
    2 usage error, 3 cannot tell.
    """
    wanted = format_of("verify-model", as_json, output_format)
    # before the import of transformers, which reads them once
    os.environ.update(dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1"))
    conclude(wanted, [_verify(target, small) for target in targets])


def _verify(target: str, small: bool) -> "Result":
    output.complain(
        f"verify-model runs transformers' code for {target} in this process, offline; no code of the directory runs."
    )
    from posenc.verify import formats, models

    found = models.verify_model(Path(target), small=small)
    return formats.of_report(found, target, file=str(Path(target) / "config.json"), text=_text(found, target))


def _text(found: "Report", target: str) -> str:
    """Return the verdict, what was run, the largest errors, and lines for the layers."""
    from posenc.verify import sentences

    lines: list[str] = [sentences.text(found, target, _WIDTH)]
    seen = found.measured
    if "layers" not in seen:
        return "\n".join(lines)
    weights = seen["weights"] + (f", because {seen['weights_because']}" if seen["weights_because"] else "")
    lines += ["", f"  {seen['model_type']}, weights {weights}; {seen['tokens']} tokens"]
    lines[-1] += f", positions up to {seen['longest_position']}"
    first = seen["first_wrong_layer"]
    lines.append(f"  first wrong layer    {'none' if first is None else first}")
    largest = seen["largest_angle_error"]
    if largest is not None:
        lines.append(f"  largest angle error  {largest:.3g} rad, in layer {seen['largest_angle_error_layer']}")
    gain = seen["gain_error"]
    lines.append(f"  gain error           {'not measured' if gain is None else f'{gain:.3g}'}")
    scale = seen["scale_error"]
    lines.append(f"  score scale error    {'not measured' if scale is None else f'{scale:.3g}'}")
    curve = seen["mean_cos_by_position"]
    if curve:
        shown = ", ".join(f"{position} {cosine:.4f}" for position, cosine in curve[:: max(1, len(curve) // 8)])
        lines.append(output.wrap(f"mean cos(angle error) by position: {shown}", _WIDTH, "    ", "  "))
    lines += ["", *_layers(seen["layers"])]
    return "\n".join(sentences.printable(line) if "\n" not in line else line for line in lines)


def _layers(layers: list[dict[str, Any]]) -> list[str]:
    """Return one line for each run of layers with the same result."""
    lines: list[tuple[int, int, str]] = []
    for one in layers:
        gain = "" if one["gain"] is None else f", gain {one['gain']:.4g}"
        text = f"{one['kind']}: {one['status']}{gain}" + (f": {one['said']}" if one["said"] else "")
        if lines and lines[-1][2] == text:
            lines[-1] = (lines[-1][0], one["layer"], text)
        else:
            lines.append((one["layer"], one["layer"], text))
    return [
        output.wrap(text, _WIDTH, "    ", f"  layer {a}  " if a == b else f"  layers {a} to {b}  ")
        for a, b, text in lines
    ]
