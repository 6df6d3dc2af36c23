"""Compare posenc in a host's model with the host's own code, in processor time of one thread, and write ADOPT.md.

    python benchmarks/adopt.py [--only PATTERN] [--rounds 15]

Each host is written from its formula, with its tables and its order of operations. Both sides have the same weights and
inputs, their outputs are compared first, and they take turns. With --only the page is printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posenc
from posenc import attend, positions
from posenc.bench import machine

LEAST_S = 0.02  # of a sample, which repeats short calls
TOKENS, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 8, 2, 64
Call = Callable[[], Any]


class Row(NamedTuple):
    """What is compared: the host's call first, then posenc's."""

    what: str
    host: str
    goal: float
    calls: tuple[Call, Call]
    learns: bool = False


class Rotated(nn.Module):
    """A Llama-like layer whose attention rotates q and k by a function that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 1376, bias=False) for _ in range(2))
        self.down = nn.Linear(1376, WIDTH, bias=False)

    def forward(self, x: Tensor, rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Run the layer."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        q, k = rotate(q, k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Four layers; positions are the host's tables of 4,096 rows, or posenc's, placed once or by each layer."""

    def __init__(self, layers: nn.ModuleList, positions_by: str) -> None:
        super().__init__()
        self.layers, self.by = layers, positions_by
        self.rope = posenc.RoPE(head_dim=HEAD_DIM)
        self.ropes = nn.ModuleList(posenc.RoPE(head_dim=HEAD_DIM) for _ in layers)
        angle = torch.arange(4096.0)[:, None] * 10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        """Run the model."""
        if self.by == "tables":
            cos, sin = self.cos[pos], self.sin[pos]
        elif self.by == "posenc":
            placed = self.rope.place(pos)
        for layer, rope in zip(self.layers, self.ropes, strict=True):
            if self.by == "tables":
                x = layer(x, lambda q, k: (by_halves(q, cos, sin), by_halves(k, cos, sin)))
            elif self.by == "tables of each layer":
                x = layer(x, lambda q, k: [by_halves(t, self.cos[pos], self.sin[pos]) for t in (q, k)])
            elif self.by == "posenc":
                x = layer(x, lambda q, k: self.rope.rotate(q, k, placed))
            else:
                x = layer(x, lambda q, k, rope=rope: rope.rotate(q, k, rope.place(pos)))
        return x


def by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as most hosts do: seven operations with tables as wide as the head."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def llamas() -> Iterator[Row]:
    """Compare a step of four layers."""
    layers, x, pos = nn.ModuleList(Rotated() for _ in range(4)), torch.randn(1, TOKENS, WIDTH), torch.arange(TOKENS)
    hosts = {"placed once": ("tables", "posenc"), "each layer places": ("tables of each layer", "posenc of each layer")}
    for how, sides in hosts.items():
        host = "Llama in litgpt: looked-up tables" if how == "placed once" else "torchtitan: each layer looks up"
        for compiles in (True, False):
            models = [Llama(layers, by) for by in sides]
            run: list[Any] = [torch.compile(m) if compiles else m for m in models]
            calls = (lambda run=run: run[0](x, pos)), (lambda run=run: run[1](x, pos))
            for learns in (False, True):
                what = f"four layers, {TOKENS} tokens, {how}, {'compiled' if compiles else 'eager'}"
                yield Row(what, host, 1.03 if compiles else 1.05, calls, learns)


def steps() -> Iterator[Row]:
    """Compare decode steps: the rotation of one token, and attention to a cache."""
    rope, q, k = posenc.RoPE(head_dim=128), torch.randn(1, 32, 1, 128), torch.randn(1, 8, 1, 128)
    placed = rope.place(torch.tensor([100]))
    cos, sin = (torch.cat((t, t), -1) for t in placed.parts)
    yield Row("rotation of one token", "seven operations, as in litgpt and transformers", 1.2, (
        lambda: (by_halves(q, cos, sin), by_halves(k, cos, sin)),
        lambda: rope.rotate(q, k, placed),
    ))  # fmt: skip
    keys, values, here, there = *torch.randn(2, 1, 8, 4096, 128), torch.tensor([4095]), torch.arange(4096)
    yield Row("step of 4,096 cached keys, rotated=True", "SDPA", 1.15, (
        lambda: F.scaled_dot_product_attention(q, keys, values, enable_gqa=True),
        lambda: attend(q, keys, values, rope, here, there, rotated=True),
    ))  # fmt: skip


def padded() -> Iterator[Row]:
    """Compare short texts with padding."""
    batch = 2
    for n in (64, 128, 256):
        q, k, v = torch.randn(3, batch, HEADS, n, HEAD_DIM)
        seen = torch.ones(batch, 1, 1, n, dtype=torch.bool)
        seen[0, ..., -n // 8 :] = False
        pos, t5, rope = positions.arange(n), posenc.T5(n_heads=HEADS, bidirectional=True, score_scale=1.0), None
        t5_placed, bias, none = t5.place(pos), t5.dense(pos).detach(), torch.finfo(torch.float32).min

        def of_t5(q=q, k=k, v=v, bias=bias, seen=seen, none=none) -> Tensor:
            scores = torch.einsum("bnid,bnjd->bnij", q, k) + bias.masked_fill(~seen, none)
            return scores.softmax(-1) @ v

        ours = lambda q=q, k=k, v=v, p=t5_placed, e=t5, m=seen: attend(q, k, v, e, p, mask=m, causal=False)  # noqa: E731
        yield Row(f"T5, {n} tokens with padding", "T5 in transformers, its bias given", 1.25, (of_t5, ours))
        rope = posenc.RoPE(head_dim=HEAD_DIM)
        placed, whole = rope.place(pos), seen.expand(batch, 1, n, n)
        cos, sin = (torch.cat((t, t), -1) for t in placed.parts)

        def of_rope(q=q, k=k, v=v, cos=cos, sin=sin, whole=whole) -> Tensor:
            return F.scaled_dot_product_attention(by_halves(q, cos, sin), by_halves(k, cos, sin), v, attn_mask=whole)

        ours = lambda q=q, k=k, v=v, p=placed, e=rope, m=seen: attend(q, k, v, e, p, mask=m, causal=False)  # noqa: E731
        yield Row(
            f"RoPE, {n} tokens with padding", "rotation of halves and SDPA, as in ModernBERT", 1.25, (of_rope, ours)
        )


def windows() -> Iterator[Row]:
    """Compare windows of images: Swin with a shifted mask, SAM's decomposed bias, compiled Swin v2."""
    heads, width = 3, 32
    for side, n_windows in ((7, 16), (8, 16), (12, 4), (16, 4)):
        n = side * side
        q, k, v = (t.requires_grad_() for t in torch.randn(3, n_windows, heads, n, width))
        pos, swin = positions.grid(side, side), posenc.Swin(n_heads=heads, window=(side, side))
        region = torch.zeros(n_windows, n)
        region[::4, n // 2 :] = 1
        seen = (region[:, :, None] == region[:, None])[:, None]
        index, added = table_index(pos, side), torch.zeros(seen.shape).masked_fill(~seen, -100.0)

        def host(q=q, k=k, v=v, swin=swin, index=index, added=added, n=n) -> Tensor:
            bias = swin.weight[index.flatten()].view(n, n, -1).permute(2, 0, 1).contiguous()
            scores = (q * width**-0.5) @ k.mT + bias + added
            return scores.softmax(-1) @ v

        placed = swin.place(pos)
        ours = lambda q=q, k=k, v=v, e=swin, p=placed, m=seen: attend(q, k, v, e, p, mask=m, causal=False)  # noqa: E731
        for learns in (False, True):
            what = f"Swin, {n_windows} windows of {side} x {side}, shifted"
            yield Row(what, "Swin in timm", 1.25, (host, ours), learns)


def table_index(pos: Tensor, side: int) -> Tensor:
    """Return each pair's row of a table of differences, as hosts keep it in `relative_position_index`."""
    apart = pos[:, None] - pos + side - 1
    return apart[..., 0] * (2 * side - 1) + apart[..., 1]


def sam() -> Iterator[Row]:
    """Compare SAM's decomposed bias."""
    side, heads, width = 14, 12, 64
    n, pos = side * side, positions.grid(side, side)
    e, along = posenc.Decomposed2D(head_dim=width, size=(side, side)), torch.arange(side)
    placed, coords = e.place(pos), along[:, None] - along + side - 1
    for n_windows in (1, 8):
        q, k, v = (t.requires_grad_() for t in torch.randn(3, n_windows, heads, n, width))

        def host(q=q, k=k, v=v) -> Tensor:
            scores, cells = (q * width**-0.5) @ k.mT, q.unflatten(2, (side, side))
            rows = torch.einsum("bnhwc,hkc->bnhwk", cells, e.rel_h[coords])
            columns = torch.einsum("bnhwc,wkc->bnhwk", cells, e.rel_w[coords])
            split = scores.unflatten(2, (side, side)).unflatten(-1, (side, side))
            scores = (split + rows[..., None] + columns[..., None, :]).flatten(4).flatten(2, 3)
            return scores.softmax(-1) @ v

        ours = lambda q=q, k=k, v=v: attend(q, k, v, e, placed, causal=False)  # noqa: E731
        for learns in (False, True):
            yield Row(
                f"SAM's decomposed bias, {n_windows} windows of 14 x 14", "segment-anything", 1.25, (host, ours), learns
            )


class SwinV2(nn.Module):
    """Attention of windows as in Swin v2, with the host's table of differences or with posenc."""

    def __init__(self, encoding: posenc.SwinV2, *, by_host: bool) -> None:
        super().__init__()
        (side, _), self.encoding, self.by_host = encoding.window, encoding, by_host
        self.n, self.pos = side * side, positions.grid(side, side)
        self.width = 32 * encoding.n_heads
        torch.manual_seed(1)
        self.qkv, self.out = nn.Linear(self.width, 3 * self.width), nn.Linear(self.width, self.width)
        self.scale = nn.Parameter(torch.full((encoding.n_heads, 1, 1), 2.3))
        apart = torch.cartesian_prod(*(torch.arange(1.0 - side, side),) * 2) * 8 / (side - 1)
        self.register_buffer("coords", apart.sign() * (apart.abs() + 1).log2() / 3)
        self.register_buffer("index", table_index(self.pos, side))

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each window."""
        e = self.encoding
        q, k, v = self.qkv(x).unflatten(-1, (3, e.n_heads, 32)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) * self.scale.clamp(max=4.6).exp(), F.normalize(k, dim=-1)
        if self.by_host:
            table = F.linear(F.linear(self.coords, e.w1, e.b1).relu(), e.w2)
            bias = table[self.index.flatten()].view(self.n, self.n, -1).permute(2, 0, 1).contiguous()
            mixed = (q @ k.mT + 16 * bias.sigmoid()).softmax(-1) @ v
        else:
            mixed = attend(q, k, v, e, self.pos, causal=False, scale=1.0)
        return self.out(mixed.transpose(1, 2).flatten(2))


def swin_v2() -> Iterator[Row]:
    """Compare a compiled layer of Swin v2."""
    encoding = posenc.SwinV2(n_heads=6, window=(8, 8))
    modules: list[Any] = [torch.compile(SwinV2(encoding, by_host=by_host)) for by_host in (True, False)]
    x = torch.randn(16, 64, 192)
    for learns in (False, True):
        calls = (lambda: modules[0](x)), (lambda: modules[1](x))
        yield Row("Swin v2, 16 windows of 8 x 8, compiled", "Swin v2 in timm, compiled", 1.2, calls, learns)


def measure(row: Row, rounds: int) -> tuple[float, float, float]:
    """Return the quartiles of posenc's processor time over the host's in the same round."""

    def timed(call: Call, repeats: int) -> float:
        begin = time.process_time()
        for _ in range(repeats):
            out = call()
            if row.learns:
                out.sum().backward()
        return (time.process_time() - begin) / repeats

    with nullcontext() if row.learns else torch.no_grad():
        host, ours = (call() for call in row.calls)
        torch.testing.assert_close(ours, host, atol=2e-5, rtol=1e-4, msg=lambda why: f"{row.what}: {why}")
        for call in row.calls:
            timed(call, 2)
        repeats = max(1, round(LEAST_S / timed(row.calls[0], 3)))
        ratios = []
        for number in range(rounds):
            order = (0, 1) if number % 2 else (1, 0)
            taken = {side: timed(row.calls[side], repeats) for side in order}
            ratios.append(taken[1] / taken[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def main() -> None:
    """Measure all rows, or those with a pattern in their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows with this in their name; the page is printed, not written")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    page = [
        "# posenc in place of a host's own code",
        "",
        f"Written by `python benchmarks/adopt.py` on {datetime.now(UTC):%Y-%m-%d}. A number is processor time of one "
        f"thread over the host's in the same round: median of {asked.rounds} (middle half). "
        f"{machine.sentence(machine.examine())}.",
        "",
        "| what | host | goal | forward or step | with gradients |",
        "|---|---|---|---|---|",
    ]
    found: dict[tuple[str, str, float], dict[bool, str]] = {}
    for make in (llamas, steps, padded, windows, sam, swin_v2):
        for row in make():
            if asked.only in row.what:
                low, middle, high = measure(row, asked.rounds)
                text = f"{middle:.2f} ({low:.2f} .. {high:.2f})"
                found.setdefault((row.what, row.host, row.goal), {})[row.learns] = text
                print(f"{row.what}{', with gradients' if row.learns else ''}: {text}", flush=True)
    for (what, host, goal), cells in found.items():
        page.append(f"| {what} | {host} | {goal} | {cells.get(False, '')} | {cells.get(True, '')} |")
    if not asked.only:
        (Path(__file__).parent / "ADOPT.md").write_text("\n".join(page) + "\n")
    print("\n".join(page))


if __name__ == "__main__":
    main()
