"""Train the studies that docs/guide/choosing.md cites, and write EVIDENCE.md: published outcomes next to ours.

    python benchmarks/evidence.py [--out DIR]

A study that was interrupted goes on; one that is complete is only read.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from posenc.bench import machine
from posenc.study.claims import weigh_claims
from posenc.study.measures import Measures, with_spread

PAGE = Path(__file__).with_name("EVIDENCE.md")
STUDIES = {
    "text": "--encodings nope,alibi,t5,rope,sinusoidal,kerple,learned,xpos --seeds 3 --steps 2000",
    "copy": "--task copy --encodings nope,alibi,t5,rope,sinusoidal --seeds 3 --steps 3000",
}


def study(task: str, options: str, folder: Path) -> tuple[dict, list[dict]]:
    """Run a study, or finish it; return its record and its cells."""
    command = [sys.executable, "-m", "posenc", "study", *options.split(), "--out", str(folder / task)]
    subprocess.run(command, check=True)
    page = (folder / task / "report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="posenc-data">(.*?)</script>', page, re.DOTALL)[1])
    return data["run"], data["cells"]


def section(task: str, options: str, run: dict, cells: list[dict]) -> list[str]:
    """Return the part of one study: a number for each length and encoding, and the claims that it can weigh."""
    found = Measures(run, cells, task)
    what = "Bits per byte" if task == "text" else "Share of lines without an error"
    lines = [f"## {task}", "", f"`posenc study {options}`, {run['created'][:10]}. {what}, mean over {found.seed_count} "
             "seeds ± half their range, by length; trained up to the first one.", ""]  # fmt: skip
    lengths = [length for length in found.lengths if length >= found.base]
    lines += ["| encoding | " + " | ".join(f"{n} ({found.times(n)})" for n in lengths) + " |"]
    lines += ["|---" * (len(lengths) + 1) + "|"]
    ranked = sorted(found.encodings.values(), key=lambda e: e.by_length[lengths[-1]].mean, reverse=task != "text")
    lines += [f"| {e.name} | " + " | ".join(with_spread(e.by_length[n]) for n in lengths) + " |" for e in ranked]
    lines += ["", "| published | source | seen here if | measured here | verdict |", "|---|---|---|---|---|"]
    for claim in weigh_claims(run, cells):
        if not claim.measured.startswith("not run"):
            row = (claim.claim, f"{claim.source}, arXiv:{claim.arxiv}", claim.rule, claim.measured, claim.verdict)
            lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def main() -> None:
    """Run the studies and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("evidence"))
    folder = parser.parse_args().out
    lines = ["# Encodings beyond the trained length", ""]
    lines += [f"Written by `python benchmarks/evidence.py`. Machine: {machine.sentence(machine.examine())}.", ""]
    for task, options in STUDIES.items():
        lines += section(task, options, *study(task, options, folder))
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
