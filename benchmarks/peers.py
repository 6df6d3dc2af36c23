"""Compare what libraries compute for a position, and what they accept, with the definition; write PEERS.md.

    python benchmarks/peers.py

Errors do not depend on the machine. Speed is in ROTARY.md and ATTEND.md.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from positional_encodings.torch_encodings import PositionalEncoding1D
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from x_transformers import x_transformers

import posenc
from posenc import positions
from posenc.definitions.additive import sinusoidal
from posenc.definitions.rotary import rope

HEAD_DIM, D_MODEL, CHECKED = 128, 512, 64  # positions before each end that are compared
ENDS = (4_096, 131_072, 1_048_576)
PACKAGES = ("transformers", "x-transformers", "rotary-embedding-torch", "positional-encodings")
Rotate = Callable[[Tensor, Tensor], Tensor]  # heads (batch, heads, n, HEAD_DIM) and positions (n,) or (batch, n)


def of_posenc(dtype: torch.dtype, pairing: str) -> Rotate:
    """Rotate as posenc does."""
    encoding = posenc.RoPE(head_dim=HEAD_DIM, pairing=pairing).to(dtype)
    return lambda x, pos: encoding.rotate(x, x, encoding.place(pos))[0]


def of_transformers(dtype: torch.dtype, _: str) -> Rotate:
    """Rotate as transformers' Llama does."""
    module = LlamaRotaryEmbedding(LlamaConfig(head_dim=HEAD_DIM)).to(dtype)
    return lambda x, pos: apply_rotary_pos_emb(x, x, *module(x, pos.reshape(-1, pos.shape[-1])))[0]


def of_x_transformers(dtype: torch.dtype, _: str) -> Rotate:
    """Rotate as x-transformers' attention does."""
    module = x_transformers.RotaryEmbedding(HEAD_DIM).to(dtype)
    return lambda x, pos: x_transformers.apply_rotary_pos_emb(x, *module(pos))


def of_rotary_embedding_torch(dtype: torch.dtype, _: str) -> Rotate:
    """Rotate as rotary-embedding-torch does: its method counts on from an offset, its function takes any angles."""
    module = RotaryEmbedding(HEAD_DIM).to(dtype)

    def rotate(x: Tensor, pos: Tensor) -> Tensor:
        if pos.ndim == 1 and bool((pos.diff() == 1).all()) and pos[0] >= 0:
            return module.rotate_queries_or_keys(x, offset=int(pos[0]))
        angles = module(pos)
        return apply_rotary_emb(angles[:, None] if pos.ndim > 1 else angles, x)

    return rotate


ROTATIONS = {
    "posenc": (of_posenc, "half"),
    "transformers (Llama)": (of_transformers, "half"),
    "x-transformers": (of_x_transformers, "interleaved"),
    "rotary-embedding-torch": (of_rotary_embedding_torch, "interleaved"),
}
FORMS = {  # the tokens' dtype, the module's
    "float32": (torch.float32, torch.float32),
    "bfloat16 tokens": (torch.bfloat16, torch.float32),
    "bfloat16 tokens, module cast": (torch.bfloat16, torch.bfloat16),
}


def exact(x: Tensor, pos: Tensor, pairing: str) -> Tensor:
    """Rotate (batch, heads, n, HEAD_DIM) by the definition's matrices in float64."""
    of_row = partial(rope, head_dim=HEAD_DIM, pairing=pairing)
    matrices = np.stack([[of_row(float(p))[0] for p in row] for row in pos.expand(len(x), -1)])
    return torch.einsum("bnij,bhnj->bhni", torch.from_numpy(matrices), x.double())


def error(rotate: Rotate, pairing: str, pos: Tensor, dtype: torch.dtype, batch: int = 1) -> float:
    """Return the largest error of a rotated vector, as a share of its length."""
    x = torch.randn(batch, 1, pos.shape[-1], HEAD_DIM, dtype=dtype, generator=torch.Generator().manual_seed(0))
    off = rotate(x, pos).double() - exact(x, pos, pairing)
    return float((off.norm(dim=-1) / x.double().norm(dim=-1)).max())


def rotation_rows() -> list[list[str]]:
    """Return a row for each library and form: the error before each end."""
    rows = []
    for form, (dtype, module) in FORMS.items():
        for name, (build, pairing) in ROTATIONS.items():
            rotate = build(module, pairing)
            ends = [positions.arange(CHECKED, start=end - CHECKED) for end in ENDS]
            rows.append([name, form, *(f"{error(rotate, pairing, pos, dtype):.1e}" for pos in ends)])
    return rows


def sinusoid_rows() -> list[list[str]]:
    """Return the largest error of a sinusoidal vector's element, before each end that a table of the peer reaches."""
    rows = []
    for name in ("posenc", "positional-encodings"):
        cells = []
        for end in ENDS[:2]:
            pos = positions.arange(CHECKED, start=end - CHECKED)
            want = sinusoidal(pos.numpy(), d_model=D_MODEL)
            if name == "posenc":
                got = posenc.Sinusoidal(d_model=D_MODEL).vectors(pos).float().numpy()
            else:  # it counts from 0 to the end of what it is given; its sines and cosines alternate as in the paper
                got = PositionalEncoding1D(D_MODEL)(torch.zeros(1, end, D_MODEL))[0, -CHECKED:].numpy()
            cells.append(f"{np.abs(got - want).max():.1e}")
        rows.append([name, *cells])
    return rows


POSITIONS = {
    "counted from 0": positions.arange(8),
    "after a cache": positions.arange(8, start=1000),
    "packed documents": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]),
    "each row its own (left padding)": torch.stack((positions.arange(8), positions.arange(8, start=3))),
    "between two integers": positions.arange(8) / 4,
    "negative": positions.arange(8, start=-4),
}


def accepted_rows() -> list[list[str]]:
    """Return for each library whether each kind of positions gives the right numbers in float32."""
    rows = []
    for name, (build, pairing) in ROTATIONS.items():
        rotate, cells = build(torch.float32, pairing), []
        for pos in POSITIONS.values():
            try:
                off = error(rotate, pairing, pos, torch.float32, batch=len(pos) if pos.ndim > 1 else 1)
                cells.append("yes" if off < 1e-3 else f"wrong by {off:.0%}")
            except Exception as refused:  # a peer may refuse by any error
                cells.append(f"no ({type(refused).__name__})")
        rows.append([name, *cells])
    return rows


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (titles, ["---"] * len(titles), *rows))


def main() -> None:
    """Write the page."""
    peers = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    ends = [f"{end:,}" for end in ENDS]
    (Path(__file__).parent / "PEERS.md").write_text(f"""# Libraries of position encodings, compared

Written by `python benchmarks/peers.py` on {datetime.now(UTC):%Y-%m-%d}: {peers};
torch {torch.__version__}. Speed and memory next to the same peers: [ROTARY.md](ROTARY.md), [ATTEND.md](ATTEND.md).

## Rotation before a position

The largest error of a rotated vector of {HEAD_DIM} dimensions, base 10,000, as a share of its length, at the {CHECKED}
positions before each number, from the definition in float64. The rounding of a result to bfloat16 is 2e-3 of it.
"Module cast" is `.to(torch.bfloat16)` on the module that holds the frequencies, as `model.bfloat16()` does;
transformers' `from_pretrained(dtype=...)` leaves them in float32.

{table(["library", "form", *ends], rotation_rows())}

## Positions that are accepted

In float32, whether the rotated vectors are right within 1e-3 (rotary-embedding-torch's method counts on from an offset;
its function `apply_rotary_emb` takes the rest).

{table(["library", *POSITIONS], accepted_rows())}

## Sinusoidal vectors

The largest error of an element of a vector of {D_MODEL} in float32, before each position.

{table(["library", *ends[:2]], sinusoid_rows())}
""")


if __name__ == "__main__":
    main()
