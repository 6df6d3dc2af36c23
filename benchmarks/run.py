"""Measure this machine and write RESULTS.md, ATTEND.md and ROTARY.md: ratios to a copy, to plain attention, to peers.

`python benchmarks/run.py results` (or `attend`, `rotary`) writes one of them alone; `attend_page.py --keep FOLDER`
goes on with ATTEND.md where it was stopped.

All candidates of a table run interleaved, round after round, and a round's ratios are taken within
it; the table holds their medians and their middle half. (In ATTEND.md peers have rounds of their own.) Peers that are
not installed are named.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attend_page
import torch
import torch.nn.functional as F

import posenc
from posenc import memory, positions
from posenc.bench import machine, rotary, rotary_rows, rotary_text
from posenc.bench.measure import compare

HERE = Path(__file__).parent
Candidates = dict[str, Callable[[], object]]
ROUNDS = 15


def tables() -> Candidates:
    """Make the tables of 1,048,576 positions at head_dim 128."""
    n = 2**20
    pos, rope = positions.arange(n), posenc.RoPE(head_dim=128)
    table = torch.empty(2, n, 64)
    candidates: Candidates = {
        "fill of given memory": lambda: table.fill_(1.0),
        "fill of new memory": lambda: torch.empty(2, n, 64).fill_(1.0),
        "posenc place": lambda: rope.place(pos),
    }
    with suppress(ImportError):
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = LlamaConfig(hidden_size=128, num_attention_heads=1, max_position_embeddings=n)
        peer, x = LlamaRotaryEmbedding(config), torch.zeros(1, 1, 1)
        candidates["transformers LlamaRotaryEmbedding"] = lambda: peer(x, pos[None])
    return candidates


def reusing() -> str:
    """Return the same table from a process whose allocator gives freed memory out again, with its pages in place."""
    title = "The same, where the allocator keeps freed memory (GLIBC_TUNABLES for mmap_max and trim_threshold)"
    goal = "at most 6 fills: as above, without what the system asks for fresh pages."
    code = f"import run; print(run.table({title!r}, {goal!r}, run.tables(), quiet=True))"
    told = reuse(code, capture_output=True).stdout
    print(told, flush=True)
    return told.strip()


def reuse(code: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run code in a process that keeps the memory that it frees."""
    environment = os.environ | {"GLIBC_TUNABLES": memory.TUNABLES}
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd=HERE, text=True, check=True, **options)


def attention(dtype: torch.dtype) -> Candidates:
    """Attend causally with every encoding, forwards, at length 1,024."""
    q, k, v = (torch.randn(1, 8, 1024, 64).to(dtype) for _ in range(3))
    pos = positions.arange(1024)
    dims = posenc.Dims(d_model=512, n_heads=8, head_dim=64, max_len=1024)
    candidates: Candidates = {"plain causal SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)}
    for name in ("nope", "rope", "xpos", "alibi", "t5", "kerple", "relative_bias", "transformer_xl"):
        encoding = posenc.create(name, dims=dims)
        placed = encoding.place(pos)
        candidates[f"posenc attend, {name}"] = no_grad(
            lambda encoding=encoding, placed=placed: posenc.attend(q, k, v, encoding, placed)
        )
    with suppress(ImportError):
        from transformers import T5Config
        from transformers.models.t5.modeling_t5 import T5Attention

        peer = T5Attention(T5Config(num_heads=8, is_decoder=True), has_relative_attention_bias=True)
        unseen = torch.full((1024, 1024), -torch.inf).triu(1)
        candidates["transformers T5 compute_bias and SDPA"] = no_grad(
            lambda: F.scaled_dot_product_attention(
                q, k, v, attn_mask=(peer.compute_bias(1024, 1024) + unseen).to(dtype), scale=1.0
            )
        )
    return candidates


def no_grad(run: Callable[[], object]) -> Callable[[], object]:
    """Return `run` without gradients."""
    return torch.no_grad()(run)


def table(title: str, goal: str, candidates: Candidates, *, quiet: bool = False) -> str:
    """Return one table as Markdown, printed as well unless `quiet`."""
    baseline = next(iter(candidates))
    rows = [f"## {title}", "", f"Goal: {goal}", "", "| what | ratio | middle half |", "|---|---|---|"]
    for name, found in compare(candidates, baseline, rounds=ROUNDS).items():
        if isinstance(found, str):
            rows.append(f"| {name} | not measured: {found} | |")
        else:
            rows.append(f"| {name} | {found.ratio.middle:.2f} | {found.ratio.low:.2f} .. {found.ratio.high:.2f} |")
    if not quiet:
        print("\n".join(rows), flush=True)
    return "\n".join(rows)


def write_results() -> None:
    """Measure tables and short attention, and write RESULTS.md."""
    torch.manual_seed(0)
    plans = (
        ("Tables for 1,048,576 positions, head_dim 128", "at most 6 fills of memory in the same state.", tables()),
        ("Causal attention, float32, (1, 8, 1024, 64)", "none yet: a bias is a dense mask.", attention(torch.float32)),
        ("Causal attention, bfloat16, (1, 8, 1024, 64)", "none yet, as above.", attention(torch.bfloat16)),
    )
    parts = [
        "# Measured\n\nRatios to the first row of each table, interleaved in one run: median of "
        f"{ROUNDS} rounds, and the middle half of them. Written by `make bench` on {datetime.now(UTC):%Y-%m-%d}.\n\n"
        f"Machine: {machine.sentence(machine.examine())}.",
        *(table(*plan) + ("\n\n" + reusing() if "Tables" in plan[0] else "") for plan in plans),
    ]
    missing = [name for name in ("transformers",) if name not in sys.modules]
    if missing:
        parts.append(f"Peers not installed, so not measured: {', '.join(missing)}.")
    (HERE / "RESULTS.md").write_text("\n\n".join(parts) + "\n")


def write_rotary() -> None:
    """Measure what `posenc bench rotary` does, and what makes new memory once more in a process that keeps its pages.

    The page is written anew after each row: about twenty minutes.
    """
    chosen = rotary_rows.choose()
    report = rotary.begin(chosen)
    versions = [f"{name} {version or 'not installed'}" for name, version in report["machine"]["versions"].items()]
    head = [
        f"# Turning queries and keys, measured\n\n{rotary_text.NOTE}",
        f"Machine: {machine.sentence(report['machine'])}; measured on {datetime.now(UTC):%Y-%m-%d} by "
        f"`python benchmarks/run.py rotary`. Peers: {', '.join(versions)}.",
        "docs/speed.md says how to read this page. GPUs: not measured.",
    ]
    sections: list[tuple[str, list[rotary.Found]]] = [("Stock allocator", report["rows"])]

    def write() -> None:
        parts = [*head, *(rotary_text.markdown(found, title) for title, found in sections)]
        (HERE / "ROTARY.md").write_text("\n\n".join(parts) + "\n")

    for row in chosen:
        report["rows"].append(rotary.measure_row(row))
        print("\n".join(rotary_text.row_lines(report["rows"][-1])), flush=True)
        write()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        reuse(f"import run; run.keep_pages({str(path)!r})")
        sections.append(("Reused pages (GLIBC_TUNABLES for mmap_max and trim_threshold)", json.loads(path.read_text())))
    write()


def keep_pages(path: str) -> None:
    """Measure the rows of which the outputs are large, in this process, and write them as JSON."""
    found = []
    for row in rotary_rows.choose():
        if row.length > 1 and not row.is_model:
            found.append(rotary.measure_row(row))
            print("\n".join(rotary_text.row_lines(found[-1])), flush=True)
    Path(path).write_text(json.dumps(found))


def main() -> int:
    """Write the pages that were named, or all."""
    pages = {"results": write_results, "attend": partial(attend_page.main, ()), "rotary": write_rotary}
    for name in sys.argv[1:] or ("results", "attend", "rotary"):
        pages[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
