"""Train the study that docs/guide/choosing.md cites, and write EVIDENCE.md: published outcomes next to ours.

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
OPTIONS = "--encodings nope,alibi,t5,rope,sinusoidal,kerple,learned,xpos --seeds 3 --steps 2000"


def study(folder: Path) -> tuple[dict, list[dict]]:
    """Run the study, or finish it; return its record and its cells."""
    subprocess.run([sys.executable, "-m", "posenc", "study", *OPTIONS.split(), "--out", str(folder)], check=True)
    page = (folder / "report.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="posenc-data">(.*?)</script>', page, re.DOTALL)[1])
    return data["run"], data["cells"]


def tables(run: dict, cells: list[dict]) -> list[str]:
    """Return a table of the numbers for each length and encoding, and one of the claims that the study can weigh."""
    found = Measures(run, cells)
    lines = ["| encoding | " + " | ".join(f"{n} ({found.times(n)})" for n in found.lengths) + " |"]
    lines += ["|---" * (len(found.lengths) + 1) + "|"]
    ranked = sorted(found.encodings.values(), key=lambda e: e.by_length[found.longest].mean)
    lines += [f"| {e.name} | " + " | ".join(with_spread(e.by_length[n]) for n in found.lengths) + " |" for e in ranked]
    lines += ["", "| published | source | seen here if | measured here | verdict |", "|---|---|---|---|---|"]
    for claim in weigh_claims(run, cells):
        if not claim.measured.startswith("not run"):
            row = (claim.claim, f"{claim.source}, arXiv:{claim.arxiv}", claim.rule, claim.measured, claim.verdict)
            lines.append(f"| {' | '.join(row)} |")
    return lines


def main() -> None:
    """Run the study and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("evidence"))
    run, cells = study(parser.parse_args().out)
    lines = [
        "# Encodings beyond the trained length",
        "",
        f"Written by `python benchmarks/evidence.py` from `posenc study {OPTIONS}` of {run['created'][:10]}: bits per "
        "byte, mean over seeds ± half their range, by the length of the context. The first length is the trained one. "
        f"Machine: {machine.sentence(machine.examine())}.",
        "",
        *tables(run, cells),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
