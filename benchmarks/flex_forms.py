"""Measure in which form FlexAttention takes a bias best on a GPU: `python benchmarks/flex_forms.py`, two minutes.

Next to plain causal SDPA: no bias; ALiBi as arithmetic; a bias by distance looked up in a vector over distances (of
indices, and of positions), in T5's buckets, and in a vector that ends where T5's last bucket begins. With gradients:
ALiBi, its slopes learned, and a learned vector. Then `posenc.attend` by "flex".
Eight heads of 64, bfloat16; but for the last rows the blocks of the mask are made before.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import posenc
from posenc import positions

N_HEADS, HEAD_DIM, BLOCK, ROUNDS, REACH = 8, 64, 128, 9, 128
SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2}  # of the sizes that were tried the fastest for a vector


def causal_blocks(n: int) -> BlockMask:
    """Return the blocks of a causal mask: those below the diagonal whole, those on it in part."""
    rows = torch.arange(n // BLOCK, device="cuda", dtype=torch.int32)
    every = rows.expand(1, 1, len(rows), -1).contiguous()
    part = torch.ones_like(rows)[None, None], every.mT.contiguous()
    return BlockMask.from_kv_blocks(*part, rows[None, None], every, BLOCK, lambda b, h, i, j: i >= j)


def buckets(distance: Tensor) -> Tensor:
    """Return T5's bucket of distances from 0 on, of 32."""
    far = 16 + (torch.log(distance.clamp(min=1).float() / 16) * (16 / math.log(REACH / 16))).int()
    return torch.where(distance < 16, distance, far.clamp(max=31))


def forms(n: int) -> dict[str, tuple[Callable[..., Tensor] | None, dict[str, Any]]]:
    """Return a score_mod and the options of the kernel for each form."""
    slopes = 2.0 ** -torch.arange(1, N_HEADS + 1, device="cuda").float()
    table = torch.randn(N_HEADS, 32, device="cuda")
    pos = torch.arange(n, device="cuda", dtype=torch.int32)
    vector = table[:, buckets(pos)].contiguous()
    short = vector[:, : REACH + 1].contiguous()
    return {
        "no bias": (None, {}),
        "ALiBi, arithmetic on indices": (lambda s, b, h, i, j: s - slopes[h] * (i - j), {}),
        "ALiBi, arithmetic on positions": (lambda s, b, h, i, j: s - slopes[h] * (pos[i] - pos[j]), {}),
        "vector over distances of indices": (lambda s, b, h, i, j: s + vector[h, (i - j).abs()], SMALL),
        "vector over distances of positions": (
            lambda s, b, h, i, j: s + vector[h, torch.clamp(pos[i] - pos[j], 0, n - 1)],
            SMALL,
        ),
        "vector that ends at the last bucket": (lambda s, b, h, i, j: s + short[h, (i - j).clamp(0, REACH)], SMALL),
        "T5's buckets, formed in the kernel": (
            lambda s, b, h, i, j: s + table[h, buckets(torch.clamp(i - j, min=0))],
            SMALL,
        ),
    }


def learned(n: int) -> dict[str, tuple[Callable[..., Tensor], dict[str, Any], list[Tensor]]]:
    """Return forms for a backward pass, and what learns in each."""
    slopes = (2.0 ** -torch.arange(1, N_HEADS + 1, device="cuda").float()).requires_grad_()
    fixed, vector = slopes.detach(), torch.randn(N_HEADS, n, device="cuda", requires_grad=True)
    return {
        "ALiBi": (lambda s, b, h, i, j: s - fixed[h] * (i - j), {}, []),
        "ALiBi, slopes learned": (lambda s, b, h, i, j: s - slopes[h] * (i - j), {}, [slopes]),
        "vector, learned": (lambda s, b, h, i, j: s + vector[h, (i - j).abs()], SMALL, [vector]),
    }


def ours(n: int, qkv: list[Tensor], plain: Callable[..., Tensor]) -> None:
    """Print rows of `posenc.attend` by the backend "flex": forwards, and with gradients of all that learns."""
    pos, base = positions.arange(n, device="cuda"), milliseconds(lambda: plain(*qkv))
    for encoding in (posenc.T5(n_heads=N_HEADS), posenc.KERPLE(n_heads=N_HEADS), posenc.ALiBi(n_heads=N_HEADS)):
        attend = partial(posenc.attend, encoding=encoding.cuda(), pos=pos, backend="flex")
        with torch.no_grad():
            took = milliseconds(lambda attend=attend: attend(*qkv))
        print(f"| posenc, {encoding.name} | {n:,} | {took:.3f} | {took / base:.2f} |", flush=True)
        if n > 8192:
            continue
        leaves = [t.detach().requires_grad_() for t in qkv]
        back = milliseconds(lambda leaves=leaves: step(plain, leaves, []))
        took = milliseconds(partial(step, attend, leaves, list(encoding.parameters())), 3)
        print(f"| posenc, {encoding.name}, with gradients | {n:,} | {took:.3f} | {took / back:.2f} |", flush=True)


def compiled(mod: Callable[..., Tensor] | None, blocks: BlockMask, options: dict[str, Any]) -> Callable[..., Tensor]:
    """Return FlexAttention compiled for one form: a copy of the code, since torch counts programs by it."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=mod, block_mask=blocks, kernel_options=options or None)

    attend.__code__ = attend.__code__.replace()
    return torch.compile(attend, fullgraph=True, dynamic=False)


def milliseconds(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median time of a call."""
    for _ in range(3):
        run()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found)


def step(attend: Callable[..., Tensor], qkv: list[Tensor], more: list[Tensor]) -> object:
    """Go forwards and backwards."""
    out = attend(*qkv)
    return torch.autograd.grad(out, [*qkv, *more], torch.ones_like(out))


def main() -> None:
    """Print one table."""
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here: nothing was measured.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| form | tokens | ms | of plain SDPA |\n|---|---|---|---|")
    plain = partial(F.scaled_dot_product_attention, is_causal=True)
    for n in (8192, 65536):
        qkv = [torch.randn(1, N_HEADS, n, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        blocks, base = causal_blocks(n), milliseconds(lambda qkv=qkv: plain(*qkv))
        print(f"| plain SDPA | {n:,} | {base:.3f} | 1.00 |")
        for name, (mod, options) in forms(n).items():
            took = milliseconds(partial(compiled(mod, blocks, options), *qkv))
            print(f"| {name} | {n:,} | {took:.3f} | {took / base:.2f} |", flush=True)
        ours(n, qkv, plain)
        if n > 8192:
            continue
        qkv = [t.requires_grad_() for t in qkv]
        base = milliseconds(lambda qkv=qkv: step(plain, qkv, []))
        print(f"| plain SDPA, with gradients | {n:,} | {base:.3f} | 1.00 |")
        for name, (mod, options, more) in learned(n).items():
            took = milliseconds(partial(step, compiled(mod, blocks, options), qkv, more), 3)
            print(f"| {name}, with gradients | {n:,} | {took:.3f} | {took / base:.2f} |", flush=True)


if __name__ == "__main__":
    main()
