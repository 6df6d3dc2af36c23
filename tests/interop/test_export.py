"""torch.export with open batch and length: one program, right at lengths that it was not made with."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from exact_turns import turned
from posenc import attend, positions
from posenc.encoding import Placed
from posenc.nn import LanguageModel
from strategies import normal

pytestmark = pytest.mark.compiles

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
BATCH, LENGTH = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=4096)
STRICT = {"strict": True, "not strict": False}
TURNS: dict[str, dict[str, Any]] = {
    "half": {},
    "interleaved": {"pairing": "interleaved"},
    "partial": {"rotary_dim": 8},
    "last": {"rotary_dim": 8, "rotary_side": "last"},
    "learned": {"trainable": True},
}
LENGTHS = ((1, 2), (3, 7), (2, 9), (5, 600))  # of batch and text; 600 is beyond what tables are made of in one piece


class Turn(nn.Module):
    def __init__(self, rope: Any) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        turned: tuple[Tensor, Tensor] = self.rope.rotate(q, k, self.rope.place(pos))
        return turned


def given(batch: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return tuple(normal(batch, heads, n, HEAD_DIM, seed=heads, dtype=dtype) for heads in (HEADS, KV_HEADS))  # type: ignore[return-value]


def export(module: nn.Module, args: tuple[Any, ...], shapes: Any, how: str = "not strict") -> Any:
    """Export, write, read, and return the module: what another process would run; or what `torch.jit.trace` returns."""
    if how == "traced":
        return torch.jit.trace(module, args, check_trace=False)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, args, dynamic_shapes=shapes, strict=STRICT[how]), file)
    file.seek(0)
    with torch.serialization.safe_globals([Placed]):  # example inputs are in the file
        return torch.export.load(file).module()


def exact(rope: posenc.RoPE, q: Tensor, k: Tensor, pos: Tensor) -> list[Tensor]:
    return [turned(rope, x, pos) for x in (q, k)]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("what", "batched", "how"),
    [("half", True, "strict"), ("learned", False, "strict"), ("half", False, "traced"), ("last", True, "traced")]
    + [(what, i % 2 == 0, "not strict") for i, what in enumerate((*TURNS, "half"))],
)
def test_place_and_rotate_at_any_batch_and_length(what: str, batched: bool, how: str) -> None:
    rope = posenc.RoPE(head_dim=HEAD_DIM, **TURNS[what])

    def at(batch: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
        pos = positions.arange(n, start=100)
        return *given(batch, n), pos + torch.arange(batch)[:, None] if batched else pos

    of_pos = {0: BATCH, 1: LENGTH} if batched else {0: LENGTH}
    program = export(Turn(rope), at(2, 9), ({0: BATCH, 2: LENGTH}, {0: BATCH, 2: LENGTH}, of_pos), how)
    for batch, n in LENGTHS:
        q, k, pos = at(batch, n)
        for got, wanted in zip(program(q, k, pos), exact(rope, q, k, pos), strict=True):
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_and_is_rounded_once(dtype: torch.dtype) -> None:
    rope, pos = posenc.RoPE(head_dim=HEAD_DIM), positions.arange(9)
    turns = {0: BATCH, 2: LENGTH}
    program = export(Turn(rope), (*given(2, 9, dtype), pos), (turns, turns, {0: LENGTH}))
    q, k, far = *given(3, 40, dtype), positions.arange(40, start=10_000_000)
    for got, wanted in zip(program(q, k, far), exact(rope, q, k, far), strict=True):
        assert got.dtype == dtype
        once = 0.5 * torch.finfo(dtype).eps * wanted.abs() + 1e-6
        assert ((got.double() - wanted).abs() <= once).all()


@pytest.mark.slow
def test_a_saved_program_runs_where_posenc_is_not_installed(tmp_path: Path) -> None:
    rope, pos = posenc.RoPE(head_dim=HEAD_DIM), positions.arange(9)
    torch.export.save(torch.export.export(Turn(rope), (*given(2, 9), pos)), tmp_path / "turn.pt2")
    torch.save([*given(2, 9), pos], tmp_path / "given.pt")
    script = (
        "import sys; sys.modules['posenc'] = None\n"
        "import torch; program = torch.export.load('turn.pt2').module()\n"
        "torch.save(program(*torch.load('given.pt')), 'out.pt')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    for got, wanted in zip(torch.load(tmp_path / "out.pt"), exact(rope, *given(2, 9), pos), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


class Attention(nn.Module):
    """Placed positions go in and out, as a runtime with a cache hands them on."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = posenc.RoPE(head_dim=HEAD_DIM)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, past: Placed) -> tuple[Tensor, Placed]:
        placed = self.rope.place(pos)
        everywhere = past.cat(placed)
        return attend(q, k, v, self.rope, placed, everywhere), everywhere


@pytest.mark.slow
@pytest.mark.parametrize("how", STRICT)
def test_attention_with_a_placed_past_at_any_length(how: str) -> None:
    module = Attention()

    def at(batch: int, old: int, new: int) -> tuple[Any, ...]:
        q, k = given(batch, new)[0], given(batch, old + new)[1]
        v, past = normal(*k.shape, seed=9, dtype=torch.float32), module.rope.place(positions.arange(old))
        return q, k, v, positions.continued(old, new), past

    new, both, old = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    keys = {0: BATCH, 2: both}
    shapes = ({0: BATCH, 2: new}, keys, keys, {0: new}, [{0: old}, ({0: old}, {0: old})])
    program = export(module, at(2, 5, 4), shapes, how)
    for batch, before, after in ((1, 7, 2), (3, 3, 30), (2, 60, 5)):
        q, k, v, pos, past = at(batch, before, after)
        got, everywhere = program(q, k, v, pos, past)
        assert everywhere.pos.tolist() == list(range(before + after))
        wanted = attend(q, k, v, module.rope, pos, everywhere.pos, backend="reference-float64")
        torch.testing.assert_close(got, wanted, rtol=0, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", STRICT)
@pytest.mark.parametrize("learned", [False, True])
def test_a_small_language_model_at_any_length(learned: bool, how: str) -> None:
    torch.manual_seed(0)
    rope = posenc.RoPE(head_dim=8, trainable=learned)
    model = LanguageModel(vocab_size=11, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, encoding=rope).eval()
    program = export(model, (torch.randint(11, (2, 9)),), ({0: BATCH, 1: LENGTH},), how)
    for shape in LENGTHS:
        tokens = torch.randint(11, shape)
        torch.testing.assert_close(program(tokens), model(tokens), rtol=0, atol=1e-5)


def test_a_rank_of_a_text_split_zigzag_at_any_length() -> None:
    class Shard(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rope = posenc.RoPE(head_dim=HEAD_DIM)

        def forward(self, q: Tensor) -> Tensor:
            mine = positions.sharded(q.shape[2], rank=1, world_size=2, order="zigzag")
            turned: Tensor = self.rope.rotate_q(q[:, :, mine], self.rope.place(mine))
            return turned

    program = export(Shard(), (given(2, 8)[0],), ({2: 4 * torch.export.Dim("quarter", max=1024)},))
    for n in (12, 40):
        q, mine = given(2, n)[0], torch.arange(n)[n // 4 : -n // 4]
        wanted = exact(posenc.RoPE(head_dim=HEAD_DIM), q[:, :, mine], q[:, :, mine], mine)[0]
        torch.testing.assert_close(program(q).double(), wanted, rtol=0, atol=1e-6)
