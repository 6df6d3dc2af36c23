# %% [markdown]
"""ALiBi through plain PyTorch: as a mask for scaled_dot_product_attention and for nn.MultiheadAttention.

A bias is a floating mask that is added to the scores, so `ALiBi.dense` works wherever PyTorch accepts such a mask. Each
way is compared with `posenc.attend`; then come two traps, and the heads' weights.

    python examples/alibi_everywhere.py [--seed 0]
"""

# %%
import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions

BATCH, HEADS, SEQ, HEAD_DIM = 2, 4, 16, 16
D_MODEL = HEADS * HEAD_DIM


# %% The parts
def split(x):
    """(batch, seq, d_model) to (batch, heads, seq, head_dim); `join` is the inverse."""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def join(x):
    return x.transpose(1, 2).flatten(2)


def per_head(mask, batch):
    """(1, heads, q, k) to (batch * heads, q, k), the shape that nn.MultiheadAttention requires."""
    return mask.expand(batch, -1, -1, -1).flatten(0, 1)


def exactly(*arguments, **options):
    """`attend` by the backend that computes the formula literally, in float64."""
    return posenc.attend(*arguments, **options, backend="reference-float64")


def layer_by_hand(layer, x, alibi, pos):
    """Compute nn.TransformerEncoderLayer by hand, with `attend` in the middle."""
    q, k, v = map(split, F.linear(x, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1))
    x = layer.norm1(x + layer.self_attn.out_proj(join(exactly(q, k, v, alibi, pos, causal=False))))
    return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))


def draw(weights):
    """Draw two characters per weight, darker for more; the darkest is the row's largest."""
    for row in weights / weights.amax(-1, keepdim=True):
        print("   ", "".join(" .:-=+*#%@"[int(9 * w)] * 2 for w in row.tolist()).rstrip())


# %% The run
@torch.no_grad()
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    torch.manual_seed(parser.parse_args(argv).seed)

    alibi, pos = posenc.ALiBi(n_heads=HEADS), positions.arange(SEQ)
    x = torch.randn(BATCH, SEQ, D_MODEL)
    mha = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True).eval()
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, dropout=0.0, batch_first=True).eval()
    q, k, v = map(split, F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
    wanted = exactly(q, k, v, alibi, pos)
    causal, both_ways = alibi.dense(pos, causal=True), alibi.dense(pos)

    through_sdpa = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
    through_mha = mha(x, x, x, attn_mask=per_head(causal, BATCH), need_weights=False)[0]
    new_q, new_pos, newest = q[:, :, -4:], pos[-4:], wanted[:, :, -4:]  # 4 new tokens; all keys are cached
    cached = F.scaled_dot_product_attention(new_q, k, v, attn_mask=alibi.dense(new_pos, pos, causal=True))

    at_the_start = torch.ones(4, SEQ, dtype=torch.bool).tril()  # the meaning of is_causal=True in torch
    mask = alibi.dense(new_pos, pos).masked_fill(~at_the_start, -torch.inf)
    misaligned = F.scaled_dot_product_attention(new_q, k, v, attn_mask=mask)
    by_hand = layer_by_hand(layer, x, alibi, pos)
    fast_path = layer(x, src_mask=per_head(both_ways, BATCH))
    torch.backends.mha.set_fastpath_enabled(False)
    slow_path = layer(x, src_mask=per_head(both_ways, BATCH))
    torch.backends.mha.set_fastpath_enabled(True)

    print(f"{'the same attention through':<42}largest difference to posenc.attend")
    right = {
        "F.scaled_dot_product_attention": (through_sdpa, wanted),
        "the same, 4 new queries and a cache": (cached, newest),
        "nn.MultiheadAttention": (through_mha, mha.out_proj(join(wanted))),
        "nn.TransformerEncoderLayer, slow path": (slow_path, by_hand),
    }
    traps = {
        "trap: is_causal's mask with a cache": (misaligned, newest),
        "trap: nn.TransformerEncoderLayer as it is": (fast_path, by_hand),
    }
    gaps = {way: float((a - b).abs().max()) for way, (a, b) in (right | traps).items()}
    for way, gap in gaps.items():
        print(f"{way:<42}{gap:.1e}")
    print(
        "\nis_causal aligns the new queries with the first keys; dense(causal=True) aligns them with the last.\n"
        "In evaluation without gradients nn.TransformerEncoderLayer may use a fast path that reads floating masks as\n"
        "boolean ones; torch.backends.mha.set_fastpath_enabled(False) disables it."
    )
    for head in (0, 1):
        print(f"\nweights of head {head + 1}, slope 2^-{2 * (head + 1)}, where all q.k are equal (rows are queries):")
        draw(causal[0, head].softmax(-1))
    if not max(gaps[way] for way in right) < 1e-5:
        sys.exit("alibi_everywhere: one way differs from posenc.attend by more than rounding.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
