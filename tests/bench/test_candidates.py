"""What candidates must return is what the papers write, each returns it, and one that does not is not timed."""

from dataclasses import replace

import pytest
import torch

from posenc.bench import report
from posenc.bench.attend import Attention
from posenc.bench.candidates import fault
from posenc.bench.rotary import Rotation
from posenc.bench.rows import Row, choose

ROW = Row("t5.forward", "attend", "plain", ("attend:auto",), ("dense",), options={"encoding": "t5"}, length=16)
ROTATIONS = choose("rotary", [70], only="[!h]*", quick=True)
SHORT = [row for row in choose("attend", [24], quick=True) if row.kind == "attend" and row.device == "cpu"]
SOME = [row for row in SHORT if row.options["encoding"] in ("alibi", "t5", "transformer_xl")]


def attention(setting):
    """Add the term of Press (2021) or that of Raffel (2019) to each score of causal attention, in float64."""
    q, k, v = (t.double() for t in (setting.q, setting.k, setting.v))
    i = torch.arange(k.shape[2])
    distance = i[:, None] - i
    if setting.row.options["encoding"] == "alibi":
        bias = -(0.5 ** torch.arange(1.0, 9.0).double())[:, None, None] * distance
    else:  # 16 of the 32 buckets hold a distance each, and 16 tokens reach no other
        bias = setting.encoding.weight.double()[distance.clamp(0, 15)].movedim(-1, 0)
    scores = q @ k.mT * setting.encoding.score_scale(64) + bias
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(
    ("encoding", "length", "mode", "count"),
    [("alibi", 16, "forward", 1), ("t5", 16, "forward", 1), ("t5", 16, "train", 4), ("alibi", 100, "train", 3)],
)
def test_attention_must_be_what_papers_write(encoding, length, mode, count):
    """Its last 64 tokens, and gradients of q, k and v there; of what is learned where there are no more tokens."""
    setting = Attention(replace(ROW, options={"encoding": encoding}, length=length, mode=mode))
    want = [attention(setting)]
    if mode == "train":
        want = torch.autograd.grad(want[0], setting.learned, setting.slopes.double())
    assert len(setting.expected) == len(want) == count
    for mine, right in zip(setting.expected, want, strict=True):
        right = right if length == 16 else right[:, :, -64:]
        torch.testing.assert_close(mine.double(), right.double(), rtol=1e-5, atol=1e-5)


def test_documents_restart():
    setting = Attention(replace(ROW, options={"encoding": "t5", "documents": 4}, length=24))
    assert setting.pos.tolist() == list(range(6)) * 4
    assert setting.options["document_ids"].unique_consecutive().tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(setting.expected[0][:, :, ::6], setting.v[:, :, ::6])  # the first sees only itself


def rotation(row, x, sign=1):
    """Rotate each pair of dimensions by position / 10000^(2 i / 128) in float64, as the paper writes it."""
    pos = torch.tensor([4095.0]).double() if row.length == 1 else torch.arange(row.length).double()
    x, rotated = x.detach().double(), torch.empty(x.shape, dtype=torch.float64)
    for i in range(64):
        a, b = (i, i + 64) if row.options["pairing"] == "half" else (2 * i, 2 * i + 1)
        angle = sign * pos / 10000 ** (2 * i / 128)
        rotated[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
        rotated[..., b] = x[..., a] * angle.sin() + x[..., b] * angle.cos()
    return rotated


@pytest.mark.parametrize("row", ROTATIONS, ids=lambda row: row.name)
def test_rotations_must_be_what_the_paper_writes(row):
    setting = Rotation(row)
    given, sign = (setting.slopes, -1) if row.mode == "train" else ((setting.q, setting.k), 1)
    for mine, x in zip(setting.expected, given, strict=True):
        torch.testing.assert_close(mine, rotation(row, x, sign)[:, :, -64:], rtol=0, atol=1e-9)


@pytest.mark.sample(6)
@pytest.mark.filterwarnings("ignore:::rotary_embedding_torch", "ignore:.torch.jit:DeprecationWarning")  # theirs
@pytest.mark.parametrize("row", [*SOME, *ROTATIONS], ids=lambda row: row.name)
def test_candidates_return_it(row):
    calls, failed = report._build(report.KINDS[row.kind](row), {})
    assert {row.baseline, "attend:auto" if row.kind == "attend" else "rotate:blocked"} <= {*calls}
    for name, why in failed.items():
        assert why.startswith("not installed") or ("numba" in name and "cannot be used here" in why), f"{name}: {why}"


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(("command", "only"), [("attend", "t5.compiled"), ("rotary", "long.half")])
def test_compiled_candidates_return_it(command, only):
    [row] = choose(command, [24], ["float32"], only)
    row = replace(row, ours=("compiled",), peers=())
    assert report._build(report.KINDS[row.kind](row), {})[1] == {}


@pytest.mark.parametrize(
    "row",
    choose("attend", [48], only="hf", quick=True) + choose("rotary", [48], only="hf", quick=True),
    ids=lambda row: row.name,
)
def test_models_return_it_with_and_without(row):
    pytest.importorskip("transformers")
    assert report._build(report.KINDS["models"](row), {})[1] == {}


@pytest.mark.parametrize(
    ("dtype", "change", "is_wrong"),
    [
        ("float32", 1e-4, False),
        ("float32", 1e-3, True),
        ("bfloat16", 1e-2, False),
        ("bfloat16", 5e-2, True),
        ("float32", float("nan"), True),
    ],
)
def test_rounding_is_no_fault(dtype, change, is_wrong):
    want = torch.linspace(-1, 2, 8).reshape(1, 1, 4, 2).double()
    got = torch.cat((torch.full_like(want, 9.0), want), 2)  # tokens before the last are not looked at
    assert fault((got, got), [want, want], dtype) is None
    got = got.clone()
    got[..., -1, 0] += 2 * change
    assert (fault((want, got), [want, want], dtype) is not None) == is_wrong
