"""Measure turning queries and keys on this machine's GPU and write ROTARY_GPU.md; without a GPU, say so and exit 2.

Long shapes: calls one after another for 10 ms, then one wait; candidates by turns, round after round, and a ratio is
taken within its round. Decoding: what a call costs on the host, where nothing waits, and what it costs on the device,
of a CUDA graph that holds it many times. Memory is (batch, seq, heads, head_dim) handed over transposed, as models do.
Peers that are not installed are named.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import posenc
from posenc import kernels, positions
from posenc.bench.measure import Timing, compare
from posenc.kernels.jobs import Job

PAGE = Path(__file__).parent / "ROTARY_GPU.md"
ROUNDS, HEADS, KV_HEADS, HEAD_DIM = 15, 32, 8, 128
LONG = ((1, 32768), (8, 4096))
DECODE = (64, 1)
IN_GRAPH = 50
Work = Callable[[], object]
Candidates = dict[str, Work]


class Setting(NamedTuple):
    """Queries, keys and their tables; outs to write to, and gradients to go backwards with."""

    q: Tensor
    k: Tensor
    outs: tuple[Tensor, Tensor]
    grads: tuple[Tensor, Tensor]
    rope: posenc.RoPE
    placed: posenc.Placed

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (1, 1, seq, n_pairs)."""
        cos, sin = self.placed.parts
        return cos[None, None], sin[None, None]

    def wide_tables(self) -> tuple[Tensor, Tensor]:
        """Return them as transformers has them: (1, seq, head_dim), in the dtype of q."""
        cos, sin = (torch.cat((t, t), -1)[None].to(self.q.dtype) for t in self.placed.parts)
        return cos, sin


def make(batch: int, seq: int) -> Setting:
    """Draw queries and keys in bfloat16."""

    def normal(heads: int) -> Tensor:
        return torch.randn(batch, seq, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    pairs = [(normal(HEADS), normal(KV_HEADS)) for _ in range(3)]
    rope = posenc.RoPE(head_dim=HEAD_DIM)
    return Setting(*pairs[0], pairs[1], pairs[2], rope, rope.place(positions.arange(seq, device="cuda")))


def rotations(s: Setting) -> dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Return what makes turned queries and keys of given ones, each (q, k) -> (q, k)."""
    cos, sin = s.tables()

    def formula(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        turned = [kernels.eager.rotate(x, cos, sin, pairing="half") for x in (q, k)]
        return turned[0], turned[1]

    compiled = torch.compile(formula, fullgraph=True, dynamic=False)
    found = {
        "posenc rotate, fresh": lambda q, k: s.rope.rotate(q, k, s.placed),
        "torch.compile of the plain formula, fresh": lambda q, k: compiled(q, k, cos, sin),
    }
    wide = s.wide_tables()
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as theirs
    except ImportError:
        pass
    else:
        found["transformers apply_rotary_pos_emb, fresh"] = lambda q, k: theirs(q, k, *wide)
        fused = torch.compile(theirs, fullgraph=True, dynamic=False)
        found["torch.compile of transformers' function, fresh"] = lambda q, k: fused(q, k, *wide)
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb as liger
    except ImportError:
        pass
    else:
        found["Liger-Kernel, in place"] = lambda q, k: liger(q, k, *wide)
    return found


def forwards(s: Setting) -> Candidates:
    """Return the copy, which comes first, and all that turns."""
    source = torch.cat([x.transpose(1, 2).flatten() for x in (s.q, s.k)])
    target = torch.empty_like(source)
    found: Candidates = {
        "copy of as much memory": lambda: target.copy_(source),
        "posenc rotate_, in place": lambda: s.rope.rotate_(s.q, s.k, s.placed),
        "posenc rotate, out= given": lambda: s.rope.rotate(s.q, s.k, s.placed, out=s.outs),
    }
    interleaved = posenc.RoPE(head_dim=HEAD_DIM, pairing="interleaved")
    found["posenc rotate_, in place, interleaved"] = lambda: interleaved.rotate_(s.q, s.k, s.placed)
    found |= {name: (lambda run=run: run(s.q, s.k)) for name, run in rotations(s).items()}
    return {name: torch.no_grad()(run) for name, run in found.items()}


def with_gradients(s: Setting) -> Candidates:
    """Return two copies, and all that turns forwards and gradients backwards."""
    source = torch.cat([x.transpose(1, 2).flatten() for x in (s.q, s.k)])
    target = torch.empty_like(source)
    found: Candidates = {"two copies of as much memory": lambda: (target.copy_(source), source.copy_(target))}
    q, k = (x.detach().clone().requires_grad_() for x in (s.q, s.k))
    for name, run in rotations(s).items():
        found[name] = lambda run=run: torch.autograd.grad(run(q, k), (q, k), s.grads)
    return found


def verify(s: Setting) -> None:
    """Raise unless what is measured turns as the formula does in float64, to a rounding of bfloat16."""
    cos, sin = (t.double() for t in s.tables())
    q, k = s.q.clone(), s.k.clone()
    for name, run in rotations(s).items():
        if name.startswith("posenc") or "plain formula" in name:
            for x, got in zip((q, k), run(q.clone(), k.clone()), strict=True):
                wanted = kernels.eager.rotate(x[:, :2].double(), cos, sin, pairing="half")
                torch.testing.assert_close(got[:, :2].double(), wanted, rtol=2**-8, atol=1e-5)


def on_host(s: Setting) -> Candidates:
    """Return calls whose cost on the host is measured: none waits for the device."""
    cos, sin = s.tables()
    jobs = [Job(x, x, cos, sin) for x in (s.q, s.k)]
    found: Candidates = {
        "copy_ of q": lambda: s.outs[0].copy_(s.q),
        "posenc rotate_, in place": lambda: s.rope.rotate_(s.q, s.k, s.placed),
        "posenc rotate, out= given": lambda: s.rope.rotate(s.q, s.k, s.placed, out=s.outs),
        "of which the launch and its sizes": lambda: kernels.triton.run(jobs, "half", "first"),
    }
    found |= {name: (lambda run=run: run(s.q, s.k)) for name, run in rotations(s).items()}
    return {name: torch.no_grad()(run) for name, run in found.items()}


def in_graphs(candidates: Candidates) -> Candidates:
    """Return replays of graphs that hold each call many times; a call that cannot be recorded raises when it runs."""
    return {name: _recorded(run) for name, run in candidates.items()}


def _recorded(run: Work) -> Work:
    graph: torch.cuda.CUDAGraph | None = None

    def replay() -> None:
        nonlocal graph
        if graph is None:
            for _ in range(3):  # compiles, outside of the recording
                run()
            torch.cuda.synchronize()
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made):
                for _ in range(IN_GRAPH):
                    run()
            graph = made
        graph.replay()

    return replay


def table(title: str, found: dict[str, Timing | str], *, moved: int = 0, calls: int = 1) -> str:
    """Return one table as Markdown: of bytes `moved`, the rate and its share of the first row's; else microseconds."""
    head = "| what | microseconds | GB/s | of the copy's rate | middle half |" if moved else "| what | microseconds |"
    lines = [f"## {title}", "", head, "|---" * (head.count("|") - 1) + "|"]
    for name, took in found.items():
        if isinstance(took, str):
            lines.append(f"| {name} | not measured: {took} |" + " |" * (head.count("|") - 3))
            continue
        cells = [name, f"{took.seconds.median / calls * 1e6:.1f}"]
        if moved:
            share = took.ratio
            cells += [f"{moved / took.seconds.median / 1e9:.0f}", f"{1 / share.median:.2f}"]
            cells.append(f"{1 / share.high:.2f} .. {1 / share.low:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    print("\n".join(lines), flush=True)
    return "\n".join(lines)


def measure() -> list[str]:
    """Measure all, and return the page's parts."""
    parts = []
    wait = torch.cuda.synchronize
    for batch, seq in LONG:
        torch.compiler.reset()  # it counts how often a function is compiled, and gives up
        s = make(batch, seq)
        verify(s)
        shape, moved = f"({batch}, {HEADS}+{KV_HEADS}, {seq}, {HEAD_DIM})", 2 * 2 * (s.q.numel() + s.k.numel())
        for title, candidates, times in (
            ("Forwards", forwards(s), 1),
            ("Forwards and backwards", with_gradients(s), 2),
        ):
            found = compare(candidates, next(iter(candidates)), rounds=ROUNDS, settle=wait)
            parts.append(table(f"{title}, bfloat16, {shape}", found, moved=times * moved))
        del s, candidates
        torch.cuda.empty_cache()
    torch.compiler.reset()
    s = make(*DECODE)
    shape = f"({DECODE[0]}, {HEADS}+{KV_HEADS}, {DECODE[1]}, {HEAD_DIM})"
    host, first = on_host(s), "copy_ of q"
    parts.append(table(f"One token, {shape}: what a call takes on the host", compare(host, first, rounds=ROUNDS)))
    wait()
    graphs = compare(in_graphs(host), first, rounds=ROUNDS, settle=wait)
    title = f"One token, {shape}: what a call takes on the device, recorded {IN_GRAPH} times in a CUDA graph"
    parts.append(table(title, graphs, calls=IN_GRAPH))
    return parts


def versions() -> str:
    """Return the device and what ran on it."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("triton", "transformers", "liger-kernel"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return f"{torch.cuda.get_device_name()}; torch {torch.__version__} (CUDA {torch.version.cuda}), {', '.join(found)}"


def main() -> int:
    """Write the page, or say that there is no GPU."""
    if not torch.cuda.is_available():
        print("There is no GPU here (torch.cuda.is_available() is False): nothing was measured or written.")
        return 2
    import posenc.kernels.triton  # noqa: F401 - on_host calls it by name

    torch.manual_seed(0)
    intro = (
        f"# Turning queries and keys on a GPU\n\n{versions()}. Written by `python benchmarks/rotary_gpu.py` on "
        f"{datetime.now(UTC):%Y-%m-%d}: medians of {ROUNDS} rounds by turns. Bytes are those of q and k, read once and "
        "written once, tables left out; goals: at least 0.90 of the copy's rate, under 20 microseconds on the host."
    )
    PAGE.write_text("\n\n".join([intro, *measure()]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
