"""`posenc verify-model`: whether a model turns queries and keys as its configuration says, layer by layer."""

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
    help="Local directories with config.json, and safetensors or no weights.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--output-format", metavar="FORMAT", help=FORMATS_HELP, show_default="text")
@click.option("--small", is_flag=True, help="Build it small with random weights, even where there are weights.")
def verify_model(targets: tuple[str, ...], as_json: bool, output_format: str | None, small: bool) -> None:
    """Hold what a model's layers do to queries and keys against what its configuration says.

    transformers' own code runs here, offline; code and pickles of the directory never do. Weights beyond 1 GiB, or
    none, are replaced by random ones in a small model. Exit codes: 0 pass or equivalent, 1 fail, 2 wrong use,
    3 cannot tell.
    """
    wanted = format_of("verify-model", as_json, output_format)
    # set before transformers is imported, which reads them then
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
    """Return the verdict, what was run, the largest errors, and a line for each layer that is not merely right."""
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
    lines.append(f"  gain error           {'not seen' if gain is None else f'{gain:.3g}'}")
    scale = seen["scale_error"]
    lines.append(f"  score scale error    {'not seen' if scale is None else f'{scale:.3g}'}")
    curve = seen["mean_cos_by_position"]
    if curve:
        said = ", ".join(f"{position} {cosine:.4f}" for position, cosine in curve[:: max(1, len(curve) // 8)])
        lines.append(output.wrap(f"mean cos(angle error) by position: {said}", _WIDTH, "    ", "  "))
    lines += ["", *_layers(seen["layers"])]
    return "\n".join(sentences.printable(line) if "\n" not in line else line for line in lines)


def _layers(layers: list[dict[str, Any]]) -> list[str]:
    """Write one line for neighbours of which the same is said."""
    lines: list[tuple[int, int, str]] = []
    for one in layers:
        gain = "" if one["gain"] is None else f", gain {one['gain']:.4g}"
        said = f"{one['kind']}: {one['status']}{gain}" + (f": {one['said']}" if one["said"] else "")
        if lines and lines[-1][2] == said:
            lines[-1] = (lines[-1][0], one["layer"], said)
        else:
            lines.append((one["layer"], one["layer"], said))
    return [
        output.wrap(said, _WIDTH, "    ", f"  layer {a}  " if a == b else f"  layers {a} to {b}  ")
        for a, b, said in lines
    ]
