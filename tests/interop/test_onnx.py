"""Rotary encodings as RotaryEmbedding nodes: what onnxruntime computes is what posenc does, at every length."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from exact_turns import turned
from posenc import positions
from posenc.families import Rotary
from posenc.interop.onnx import export, rotary_nodes
from posenc.kernels import eager
from posenc.nn import LanguageModel
from posenc.versions import EXPORTS
from strategies import normal, refuses

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.compiles,
    pytest.mark.filterwarnings("ignore"),  # the exporter's own
    pytest.mark.skipif(not EXPORTS, reason="exports to ONNX need torch 2.9 (docs/versions.md)"),
]

HEAD_DIM = 16
OPEN = torch.export.Dim.DYNAMIC
TURNS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "half": ({}, {"interleaved": 0, "rotary_embedding_dim": 0}),
    "interleaved": ({"pairing": "interleaved"}, {"interleaved": 1, "rotary_embedding_dim": 0}),
    "partial": ({"rotary_dim": 8}, {"interleaved": 0, "rotary_embedding_dim": 8}),
    "partial, interleaved": (
        {"rotary_dim": 4, "pairing": "interleaved"},
        {"interleaved": 1, "rotary_embedding_dim": 4},
    ),
    "gain": ({"attention_factor": 1.25, "base": 500.0}, {"interleaved": 0, "rotary_embedding_dim": 0}),
    "learned": ({"trainable": True}, {"interleaved": 0, "rotary_embedding_dim": 0}),
    "last of all": ({"rotary_side": "last"}, {"interleaved": 0, "rotary_embedding_dim": 0}),
}


class Turn(nn.Module):
    """Two tensors, turned in the precision of `dtype`."""

    def __init__(self, rope: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.rope, self.dtype = rope, dtype
        self.eval()

    def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        placed = self.rope.place(pos)
        turned = self.rope.rotate(q.to(self.dtype), k.to(self.dtype), placed)
        return turned[0].to(q.dtype), turned[1].to(k.dtype)


def given(
    n: int, *, batched: bool, batch: int, start: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    pos = positions.arange(n, start=start)
    pos = pos + 3 * torch.arange(batch)[:, None] if batched else pos
    return normal(batch, 4, n, HEAD_DIM, dtype=dtype), normal(batch, 2, n, HEAD_DIM, seed=1, dtype=dtype), pos


def exported(module: nn.Module, args: tuple[Tensor, ...], folder: Path, **options: Any) -> tuple[list[Any], Any]:
    """Return the nodes of the exported graph and a function that runs it."""
    shapes = ({0: OPEN, 2: OPEN}, {0: OPEN, 2: OPEN}, dict.fromkeys(range(args[2].ndim), OPEN))
    program = export(module, args, folder / "turn.onnx", dynamic_shapes=shapes, **options)
    return list(program.model.graph), run_file(folder / "turn.onnx")


def run_file(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*args: Tensor) -> list[Tensor]:
        return [
            torch.from_numpy(t) for t in session.run(None, dict(zip(names, (a.numpy() for a in args), strict=True)))
        ]

    return run


def turned_by(nodes: list[Any]) -> list[Any]:
    return [node for node in nodes if node.op_type == "RotaryEmbedding"]


def exact(rope: posenc.RoPE, q: Tensor, k: Tensor, pos: Tensor) -> list[Tensor]:
    return [turned(rope, x, pos) for x in (q, k)]


# ---- one node each


@pytest.mark.parametrize(
    ("what", "batched", "max_len"),
    [
        ("half", False, None),
        ("half", False, 64),
        *((what, i % 2 == 0, (None, 64)[i % 2]) for i, what in enumerate(TURNS)),
    ],
)
def test_q_and_k_are_one_node_each_at_every_length(
    what: str, batched: bool, max_len: int | None, tmp_path: Path
) -> None:
    options, attributes = TURNS[what]
    rope = posenc.RoPE(head_dim=HEAD_DIM, **options)
    nodes, run = exported(Turn(rope), given(9, batched=batched, batch=2), tmp_path, max_len=max_len)
    turns = turned_by(nodes)
    assert len(turns) == 2
    for node in turns:
        said = {name: attribute.value for name, attribute in node.attributes.items()}  # defaults, 0, may be left out
        assert {name: said.get(name, 0) for name in attributes} == attributes
    kinds = {node.op_type for node in nodes}
    assert ({"Sin", "Cos"} <= kinds, "Gather" in kinds) == (max_len is None, max_len is not None)
    assert not kinds & {"Split", "Slice", "Neg"}  # nothing is left of the small operators
    for n, batch, start in ((1, 1, 50), (30, 3, 5), (9, 2, 0)):
        q, k, pos = given(n, batched=batched, batch=batch, start=start)
        for got, wanted in zip(run(q, k, pos), exact(rope, q, k, pos), strict=True):
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_far_positions_are_as_exact_as_near_ones(tmp_path: Path) -> None:
    """A graph that formed angles in float32 would be off by a tenth."""
    rope = posenc.RoPE(head_dim=HEAD_DIM)
    _, run = exported(Turn(rope), given(9, batched=False, batch=2), tmp_path)
    q, k, pos = given(12, batched=False, batch=1, start=10_000_000)
    for got, wanted in zip(run(q, k, pos), exact(rope, q, k, pos), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, tmp_path: Path) -> None:
    rope = posenc.RoPE(head_dim=HEAD_DIM)
    nodes, run = exported(Turn(rope, dtype), given(9, batched=False, batch=2), tmp_path)
    assert len(turned_by(nodes)) == 2
    q, k, pos = given(40, batched=False, batch=2, start=900)
    q, k = q.to(dtype).float(), k.to(dtype).float()
    for got, wanted in zip(run(q, k, pos), exact(rope, q, k, pos), strict=True):
        once = 0.5 * torch.finfo(dtype).eps * wanted.abs() + 1e-6
        assert ((got - wanted).abs() <= once).all()


@pytest.mark.slow
def test_real_positions_have_tables_in_the_graph_whatever_is_stored(tmp_path: Path) -> None:
    rope = posenc.RoPE(head_dim=HEAD_DIM)
    q, k, pos = given(9, batched=False, batch=2)
    nodes, run = exported(Turn(rope), (q, k, pos / 4), tmp_path, max_len=4)
    assert len(turned_by(nodes)) == 2
    for got, wanted in zip(run(q, k, pos / 4), exact(rope, q, k, pos / 4), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_position_that_is_not_stored_is_the_runtimes_error(tmp_path: Path) -> None:
    turn, at = Turn(posenc.RoPE(head_dim=HEAD_DIM)), given(9, batched=False, batch=2)
    _, run = exported(turn, at, tmp_path, max_len=32)
    run(*given(9, batched=False, batch=2, start=23))
    with pytest.raises(Exception, match="32"):
        run(*given(9, batched=False, batch=2, start=24))


# ---- what the node cannot say


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rope", "dtype"),
    [
        (posenc.RoPE(head_dim=HEAD_DIM, rotary_dim=8, rotary_side="last"), torch.float32),
        (posenc.RoPE(head_dim=HEAD_DIM), torch.float64),
        (posenc.FoPE(head_dim=HEAD_DIM, n_kv_heads=2, original_max_len=64), torch.float32),
    ],
    ids=["last lanes", "float64", "heads"],
)
def test_what_the_node_cannot_say_is_small_operators(rope: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    nodes, run = exported(Turn(rope, dtype), given(9, batched=False, batch=2, dtype=dtype), tmp_path)
    assert not turned_by(nodes)
    q, k, pos = given(21, batched=False, batch=3, dtype=dtype)
    for got, wanted in zip(run(q, k, pos), rope.rotate(q, k, rope.place(pos)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


ONE_NODE = ("axial_rope", "dynamic_ntk", "longrope", "mrope", "rope", "stretched_rope", "xpos")
ROTARY = [name for name in posenc.names() if issubclass(posenc.card(name).cls, Rotary)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("max_len", [None, 16])
@pytest.mark.parametrize("name", ROTARY)
def test_every_rotary_encoding_exports_to_what_it_is(name: str, max_len: int | None) -> None:
    for rope in posenc.card(name).examples():
        rope = rope.resolve(16)
        heads = getattr(rope, "n_kv_heads", None) or 2
        q, k = (normal(2, n, 7, rope.head_dim, seed=n, dtype=torch.float32) for n in (2 * heads, heads))
        pos = positions.arange(7) if rope.n_axes == 1 else positions.arange(7)[:, None].expand(7, rope.n_axes)
        turn = Turn(rope)
        with torch.no_grad(), rotary_nodes(turn, max_len=max_len):
            wanted = turn(q, k, pos)
            program = torch.export.export(turn, (q, k, pos))
        if name in ONE_NODE and getattr(rope, "rotary_side", "first") == "first":
            assert sum("RotaryEmbedding" in str(node.target) for node in program.graph.nodes) == 2
        for got, true in zip(program.module()(q, k, pos), wanted, strict=True):
            torch.testing.assert_close(got, true, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_without_the_wrapper_it_is_small_operators_that_say_the_same(tmp_path: Path) -> None:
    turn, args = Turn(posenc.RoPE(head_dim=HEAD_DIM)), given(9, batched=False, batch=2)
    shapes = ({0: OPEN, 2: OPEN}, {0: OPEN, 2: OPEN}, {0: OPEN})
    program = torch.onnx.export(turn, args, tmp_path / "plain.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    assert not turned_by(list(program.model.graph))
    q, k, pos = given(20, batched=False, batch=3, start=7)
    for got, wanted in zip(run_file(tmp_path / "plain.onnx")(q, k, pos), exact(turn.rope, q, k, pos), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6)


# ---- in models


@pytest.mark.slow
def test_a_small_language_model_has_two_nodes_a_layer_and_the_same_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rope = posenc.RoPE(head_dim=8)
    model = LanguageModel(vocab_size=11, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, encoding=rope).eval()
    example = torch.randint(11, (2, 9))
    program = export(model, (example,), tmp_path / "model.onnx", dynamic_shapes=({0: "batch", 1: "n"},), max_len=64)
    assert len(turned_by(list(program.model.graph))) == 6
    run = run_file(tmp_path / "model.onnx")
    for shape in ((1, 1), (3, 20)):
        tokens = torch.randint(11, shape)
        torch.testing.assert_close(run(tokens)[0], model(tokens).detach(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_llama_of_hugging_face_has_nodes_once_posenc_turns_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.llama = llama

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.llama(input_ids=tokens, use_cache=False).logits
            return logits

    tokens = torch.randint(31, (3, 20))
    wanted, path = Logits()(tokens).detach(), tmp_path / "llama.onnx"
    posenc.hf.use(llama)
    program = export(Logits().eval(), (tokens[:2, :9],), path, dynamic_shapes=({0: OPEN, 1: OPEN},))
    assert len(turned_by(list(program.model.graph))) == 4
    torch.testing.assert_close(run_file(path)(tokens)[0], wanted, rtol=0, atol=1e-6)


class Step(nn.Module):
    """New keys turned and put behind those of a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = posenc.RoPE(head_dim=HEAD_DIM, pairing="interleaved")
        self.eval()

    def forward(self, q: Tensor, k: Tensor, past: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        placed = self.rope.place(pos)
        turned, new = self.rope.rotate(q, k, placed, placed.last(k.shape[2]))
        return turned, torch.cat((past, new), 2)


@pytest.mark.slow
def test_a_step_of_decoding_with_a_cache(tmp_path: Path) -> None:
    q, k, pos = given(9, batched=False, batch=2)
    whole = exact(Step().rope, q, k, pos)
    past, n = whole[1][:, :, :7].float(), torch.export.Dim("n")
    shapes = ({2: n}, {2: n}, {2: OPEN}, {0: n})
    step, path = Step(), tmp_path / "step.onnx"
    program = export(step, (q[:, :, 7:], k[:, :, 7:], past, pos[7:]), path, dynamic_shapes=shapes)
    assert len(turned_by(list(program.model.graph))) == 2
    for old in (3, 8):
        got = run_file(path)(q[:, :, old:], k[:, :, old:], whole[1][:, :, :old].float(), pos[old:])
        torch.testing.assert_close(got[0].double(), whole[0][:, :, old:], rtol=0, atol=1e-6)
        torch.testing.assert_close(got[1].double(), whole[1], rtol=0, atol=1e-6)


# ---- manners


def test_what_is_not_exported_runs_as_ever_and_all_is_put_back() -> None:
    before, turn = [dict(vars(of)) for of in (Rotary, eager)], Turn(posenc.RoPE(head_dim=HEAD_DIM))
    q, k, pos = given(9, batched=False, batch=2)
    wanted = turn(q, k, pos)

    def within() -> None:
        with rotary_nodes(turn, max_len=2):  # two rows would not do for nine positions
            slots = torch.empty_like(q), torch.empty_like(k)
            turn.rope.rotate(q, k, turn.rope.place(pos), out=slots)
            for got, slot, true in zip(turn(q, k, pos), slots, wanted, strict=True):
                assert torch.equal(got, true)
                assert torch.equal(slot, true)
            raise KeyError

    with pytest.raises(KeyError):
        within()
    assert [dict(vars(of)) for of in (Rotary, eager)] == before


@pytest.mark.slow
# onnxscript 0.7.2 fuses a norm of half precision into a node whose result has the wrong type
@pytest.mark.parametrize(("dtype", "optimize"), [(torch.float32, True), (torch.float16, False)])
def test_norms_of_q_and_k_stand_before_the_nodes(dtype: torch.dtype, optimize: bool, tmp_path: Path) -> None:
    class Normed(Turn):
        def __init__(self) -> None:
            super().__init__(posenc.RoPE(head_dim=HEAD_DIM))
            self.norms = nn.ModuleList(nn.RMSNorm(HEAD_DIM, eps=1e-6) for _ in "qk")
            for i, norm in enumerate(self.norms):
                norm.weight.data = normal(HEAD_DIM, seed=i + 7, dtype=torch.float32)

        def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
            q_norm, k_norm = self.norms
            q, k = q.to(dtype), k.to(dtype)
            turned = self.rope.rotate(q, k, self.rope.place(pos), q_norm=q_norm, k_norm=k_norm)
            return turned[0].float(), turned[1].float()

    module = Normed()
    nodes, run = exported(module, given(9, batched=False, batch=2), tmp_path, optimize=optimize)
    assert len(turned_by(nodes)) == 2
    q, k, pos = given(21, batched=False, batch=3)
    q, k = q.to(dtype).float(), k.to(dtype).float()
    normed = [norm.double()(t.double()) for norm, t in zip(module.norms, (q, k), strict=True)]
    for got, wanted in zip(run(q, k, pos), exact(module.rope, *normed, pos), strict=True):
        once = 0.5 * torch.finfo(dtype).eps * wanted.abs() + 2e-6
        assert ((got - wanted).abs() <= once).all()


def test_an_exported_turn_back_is_a_turn_back() -> None:
    class Back(Turn):
        def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
            placed = self.rope.place(pos)
            there: tuple[Tensor, Tensor] = self.rope.rotate(q, k, placed)
            back: tuple[Tensor, Tensor] = self.rope.rotate(*there, placed, inverse=True)
            return back

    back, (q, k, pos) = Back(posenc.RoPE(head_dim=HEAD_DIM, attention_factor=1.5)), given(9, batched=False, batch=2)
    with rotary_nodes(back):
        program = torch.export.export(back, (q, k, pos))
    for got, wanted in zip(program.module()(q, k, pos), (q, k), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_guide_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[2] / "docs" / "export.md"
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    reader: dict[str, Any] = {"__name__": "reader"}
    for block in blocks:
        exec(compile(block, guide.name, "exec"), reader)
    assert (tmp_path / "turn.onnx").exists()
    assert reader["pos"].tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert reader["k_pos"][reader["whole"]].tolist() == list(range(16))
    assert reader["out"].shape == (1, 8, 8, 64)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, args = Turn(posenc.RoPE(head_dim=HEAD_DIM)), given(9, batched=False, batch=2)
    with refuses(ValueError, "posenc.interop.onnx.export: opset_version must be at least 23", "got 22"):
        export(turn, args, opset_version=22)
    with refuses(ValueError, "posenc.interop.onnx: max_len must be at least 1", "got 0", "None"):
        export(turn, args, max_len=0)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refuses(ImportError, "posenc.interop.onnx.export: needs onnx and onnxscript", "pip install 'posenc[onnx]'"):
        export(turn, args)
