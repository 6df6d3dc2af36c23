"""Extend small models without training them further, and write EXTEND.md and EXTEND.json next to this file.

    python benchmarks/extend_methods.py [--steps 800] [--seeds 3] [--keep DIR]

The study trains RoPE models on short texts, `posenc evaluate` reads longer ones with each method; about ten minutes.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from posenc.bench import machine
from posenc.extend.evaluate.command import evaluate
from posenc.extend.evaluate.plan import Options
from posenc.study.command import run
from posenc.study.config import make_config
from posenc.study.engines import Local
from posenc.study.measures import FLAT
from posenc.study.text import load

HERE = Path(__file__).parent
TRAINED, SIZE = 128, "128x3x4"
LENGTHS = [TRAINED * n for n in (1, 2, 4, 8)]
METHODS = ["linear", "ntk", "dynamic:1", "yarn"]  # dynamic's own factor multiplies the growth that it finds by itself
ORDER = "none and linear worse than NTK, NTK worse than YaRN"


def train(folder: Path, steps: int, seeds: int) -> tuple[list[str], Path]:
    """Train the models, and return their directories and the text that they have not seen."""
    config = make_config(["rope"], TRAINED, [TRAINED], seeds, None, steps, sizes=[SIZE])
    data = load((), config).data
    cut = len(data) * 9 // 10
    (folder / "train.txt").write_bytes(data[:cut])
    (folder / "test.txt").write_bytes(data[cut:])
    if run(config, [str(folder / "train.txt")], str(folder / "study"), Local(1)):
        raise SystemExit("the study did not finish")
    return [str(folder / "study" / "cells" / cell.name) for cell in config.cells()], folder / "test.txt"


def page(found: dict, steps: int, seeds: int) -> str:
    """Return EXTEND.md."""
    bits, longest = found["bits"], str(LENGTHS[-1])

    def ends(one: dict, sign: str = "") -> str:
        return f"{one['mean']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]"

    seen = [one["verdict"] for one in found["expected"]]
    came = "came out" if set(seen) == {"seen"} else "did not come out as a whole"
    lines = [
        "# Longer contexts without training",
        "",
        f"Written by `python benchmarks/extend_methods.py` on {datetime.now(UTC):%Y-%m-%d}. {seeds} seeds of a RoPE "
        f"model ({SIZE}: width, layers, heads), {steps} steps on {TRAINED} bytes of the prose that Python carries; "
        f"`posenc evaluate` on prose that they have not seen. Machine: {machine.sentence(machine.examine())}",
        "",
        f"The published order, {ORDER}, {came} at {LENGTHS[-1] // TRAINED} times the trained length.",
        "",
        "Bits per byte of the same bytes by length of context, with 95 % bootstrap intervals over seeds and pieces:",
        "",
        "| method | " + " | ".join(f"{n} ({n // TRAINED}×)" for n in LENGTHS) + " |",
        "|---|" + "---|" * len(LENGTHS),
        *(f"| {name} | " + " | ".join(ends(bits[name][str(n)]) for n in LENGTHS) + " |" for name in found["order"]),
        "",
        f"| published, at {LENGTHS[-1] // TRAINED}× | bits by which the first is worse | seeds | verdict |",
        "|---|---|---|---|",
    ]
    for one in found["expected"]:
        gap = one["difference"]
        share = f"{sum(value > 0 for value in gap['models'])} of {len(gap['models'])}"
        row = (f"{one['worse']} worse than {one['better']}", ends(gap, "+"), share, one["verdict"])
        lines.append(f"| {' | '.join(row)} |")
    short = ", ".join(f"{name} {verdict}" for name, verdict in found["short_texts"].items())
    lines += ["", f"Texts of up to {TRAINED} bytes, with the factor of {LENGTHS[-1] // TRAINED}: {short}.", ""]
    lines += [f"| bits that a needle saves at {longest} bytes | " + " | ".join(found["needles"]["gain"]) + " |"]
    lines += ["|---|" + "---|" * len(found["needles"]["gain"])]
    for name in found["order"]:
        cells = [ends(kind[name][longest], "+") for kind in found["needles"]["gain"].values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    helps = [f"{kind} with {name}" for kind, by_name in found["needles"]["gain"].items()
             for name, by_length in by_name.items() if by_length[longest]["low"] > FLAT]  # fmt: skip
    exact = found["needles"]["exact"].values()
    best = max(one["mean"] for by_name in exact for by_length in by_name.values() for one in by_length.values())
    said = ", ".join(helps) or "none"
    lines += ["", f"Needles that surely save {FLAT:g} bits there: {said}."]
    lines[-1] += f" At any length at most {best:.0%} of the answers are right."
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a directory for the models and the report")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models, text = train(folder, given.steps, given.seeds)
        options = Options(models, str(text), LENGTHS, METHODS, pieces=32, trials=4, out=str(folder / "evaluation"))
        code, found = evaluate(options, print)
    if code:
        raise SystemExit("the evaluation did not finish")
    (HERE / "EXTEND.md").write_text(page(found, given.steps, given.seeds))
    (HERE / "EXTEND.json").write_text(json.dumps(found | {"machine": machine.examine()}) + "\n")


if __name__ == "__main__":
    main()
