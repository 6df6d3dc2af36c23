"""`posenc inspect`: what a model's configuration says about positions."""

import math
from typing import Any

import click

from posenc.cli import output

_LABEL = 17  # characters of the column of labels
_LAYOUTS = {
    "blocks": "one block after the other",
    "interleaved": "interleaved",
    "time_last": "the others interleaved, then time",
    "doubled": "sections of a doubled table, so the two dimensions of a pair read different axes",
}


@click.command()
@click.argument("target", help="A config.json, a directory with one, or a known name such as llama-3.1-8b.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON, with every frequency.")
@click.option("--pairing", help="half or interleaved, for a model type unknown to posenc, or params.json.")
def inspect_model(target: str, as_json: bool, pairing: str | None) -> None:
    """Describe each kind of layer: encoding, frequencies, scaling, and the wavelengths of its pairs of dimensions.

    Exit code 1 if there are warnings; the model may run all the same.
    """
    from posenc import inspection
    from posenc.config.known import not_found

    if pairing not in (None, "half", "interleaved"):
        raise ValueError(f"inspect: --pairing must be half or interleaved; got {pairing}.")
    try:
        found = inspection.inspect(target, pairing=pairing)  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise not_found(target, "inspect") from error
    if as_json:
        output.write_json(found)
    else:
        blocks = [_describe(layer) for layer in found["layers"]]
        blocks += [[f"warning: {w['message']} ({w['code']})"] for w in found["warnings"]]
        output.write("\n\n".join("\n".join(block) for block in blocks))
    if found["warnings"]:
        raise click.exceptions.Exit(1)


def _describe(layer: dict[str, Any]) -> list[str]:
    """Describe one kind of layer: facts, then a line for some of its pairs."""
    count = "" if layer["count"] is None else f", {layer['count']} layers"
    named = {**layer.get("also", {}), layer["encoding"]: layer.get("options", {})}
    title = f"{layer['kind']}{count}: {' and '.join(_call(name, options) for name, options in named.items())}"
    if layer["encoding"] != "rope":
        return [title]
    lines = [f"{label:<{_LABEL}}{fact}" for label, fact in _facts(layer).items() if fact]
    return [title, *(f"  {line}" for line in lines), *_list_pairs(layer)]


def _call(name: str, options: dict[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{name}({given})" if given else name


def _facts(layer: dict[str, Any]) -> dict[str, str]:
    from posenc import frequencies

    pairs, negative = layer["pairs"], layer["first_negative"]
    rotated = f"{layer['rotary_dim']} of {layer['head_dim']} dimensions, {layer['pairing']}"
    scaling, base = layer["rope_type"] + (f", factor {layer['factor']:g}" if layer["factor"] else ""), layer["base"]
    if layer["rope_type"] == "ntk_alpha":  # HunYuan's alpha changes the base, and nothing else
        base = round(frequencies.ntk_base(base, width=layer["rotary_dim"], factor=layer["factor"]))
        scaling = f"none besides the base, which is {layer['base']:,.10g} stretched by alpha {layer['factor']:,g}"
    score = f"; scores times {layer['score_factor']:.6g}" if layer["score_factor"] != 1 else ""
    never = "" if pairs["never_full_turn"] is None else f"; {pairs['never_full_turn']} complete no period in training"
    lengths = [f"{layer[key]:,} {word}" for key, word in (("original_max_len", "trained"), ("max_len", "declared"))
               if layer[key]]  # fmt: skip
    errors = layer["phase_error"] or {}
    sections = ", ".join(map(str, layer["sections"] or ()))
    return {
        "rotated": rotated,
        "axes": f"{layer['axes']}, with {sections} pairs, {_LAYOUTS[layer['layout']]}" if sections else "",
        "base": f"{base:,.10g}",
        "scaling": scaling,
        "attention factor": f"{layer['attention_factor']:.6g}{score}",
        "positions": ", ".join(lengths),
        "window": f"{layer['window']:,}" if layer["window"] else "",
        "pairs": f"{pairs['kept']} kept, {pairs['blended']} blended, {pairs['divided']} divided{never}",
        "critical dim": f"{layer['critical_dim']} dimensions complete a period in training (Liu 2023)"
        if layer["critical_dim"]
        else "",
        "sum of cosines": f"negative from distance {_distance(negative['rotated'])} over rotated pairs, "
        f"{_distance(negative['all'])} over all (Men 2024; below the length in shipped models)",
        "phase error": ", ".join(f"{error:.2g} in {name}" for name, error in errors.items())
        + (" radians, at the last position" if errors else ""),
    }


def _distance(distance: int | None) -> str:
    return "none" if distance is None else f"{distance:,}"


def _list_pairs(layer: dict[str, Any]) -> list[str]:
    """List the wavelength and the number of periods of a few pairs, fast to slow."""
    pairs, n = layer["pairs"], len(layer["inv_freq"])
    shown = sorted({round(i * (n - 1) / 8) for i in range(9)})
    rows: list[tuple[str, ...]] = [("pair", "wavelength", "periods in training", "periods in the longest text")]
    for k in shown:
        periods = [pairs[key][k] if pairs[key] else None for key in ("turns_trained", "turns_max")]
        wavelength = pairs["wavelength"][k]
        rows.append((str(k), _number(math.inf if wavelength is None else wavelength), *map(_number, periods)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["", *("  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows)]


def _number(value: float | None) -> str:
    if value is None or math.isinf(value):
        return "-"
    return f"{value:,.2f}" if value < 1e5 else f"{value:,.0f}"
