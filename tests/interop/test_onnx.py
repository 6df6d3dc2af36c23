"""Rotary encodings exported as RotaryEmbedding nodes: onnxruntime computes the rotations of the definition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
# options of RoPE, and the attributes `interleaved` and `rotary_embedding_dim` of its node
ROTATIONS: dict[str, tuple[dict[str, Any], int, int]] = {
    "half": ({}, 0, 0),
    "interleaved": ({"pairing": "interleaved"}, 1, 0),
    "partial": ({"rotary_dim": 8}, 0, 8),
    "partial, interleaved": ({"rotary_dim": 4, "pairing": "interleaved"}, 1, 4),
    "gain": ({"attention_factor": 1.25, "base": 500.0}, 0, 0),
    "learned": ({"trainable": True}, 0, 0),
    "last of all": ({"rotary_side": "last"}, 0, 0),
}


class Rotate(nn.Module):
    """Rotate two tensors in the precision of `dtype`, after norms if they are given."""

    def __init__(self, rope: Any = None, dtype: torch.dtype = torch.float32, **norms: nn.Module) -> None:
        super().__init__()
        self.rope, self.dtype = rope or posenc.RoPE(head_dim=HEAD_DIM), dtype
        self.norms = nn.ModuleDict(norms)
        self.eval()

    def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        placed = self.rope.place(pos)
        rotated = self.rope.rotate(q.to(self.dtype), k.to(self.dtype), placed, **self.norms)
        return rotated[0].to(q.dtype), rotated[1].to(k.dtype)


def inputs(
    n: int, batch: int = 2, *, start: int = 0, batched: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    pos = positions.arange(n, start=start)
    pos = pos + 3 * torch.arange(batch)[:, None] if batched else pos
    return normal(batch, 4, n, HEAD_DIM, dtype=dtype), normal(batch, 2, n, HEAD_DIM, seed=1, dtype=dtype), pos


def exported(
    module: nn.Module, args: tuple[Tensor, ...], folder: Path, how: Callable[..., Any] = export, **options: Any
) -> tuple[list[Any], Any]:
    """Return the nodes of the exported graph and a function that runs it."""
    path = folder / "model.onnx"
    if len(args) == 3:  # q, k and pos
        options["dynamic_shapes"] = ({0: OPEN, 2: OPEN}, {0: OPEN, 2: OPEN}, dict.fromkeys(range(args[2].ndim), OPEN))
    program = how(module, args, path, **options)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*args: Tensor) -> list[Tensor]:
        outputs = session.run(None, dict(zip(names, (a.numpy() for a in args), strict=True)))
        return [torch.from_numpy(t) for t in outputs]

    return list(program.model.graph), run


def rotations(nodes: list[Any]) -> list[Any]:
    return [node for node in nodes if node.op_type == "RotaryEmbedding"]


def exact(rope: posenc.RoPE, q: Tensor, k: Tensor, pos: Tensor) -> list[Tensor]:
    return [turned(rope, x, pos) for x in (q, k)]


def assert_close(got: Sequence[Tensor], wanted: Sequence[Tensor], within: float = 1e-6) -> None:
    for mine, true in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), true.double(), rtol=0, atol=within)


def assert_rounded_once(got: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype, within: float) -> None:
    for mine, true in zip(got, wanted, strict=True):
        assert ((mine - true).abs() <= 0.5 * torch.finfo(dtype).eps * true.abs() + within).all()


# ---- one node each


@pytest.mark.parametrize(
    ("what", "batched", "max_len"),
    [
        ("half", False, None),
        ("half", False, 64),
        *((what, i % 2 == 0, (None, 64)[i % 2]) for i, what in enumerate(ROTATIONS)),
    ],
)
def test_q_and_k_are_one_node_each_at_every_length(
    what: str, batched: bool, max_len: int | None, tmp_path: Path
) -> None:
    options, *attributes = ROTATIONS[what]
    module = Rotate(posenc.RoPE(head_dim=HEAD_DIM, **options))
    nodes, run = exported(module, inputs(9, batched=batched), tmp_path, max_len=max_len)
    assert len(rotations(nodes)) == 2
    for node in rotations(nodes):
        found = {name: attribute.value for name, attribute in node.attributes.items()}  # 0 may be left out
        assert [found.get(name, 0) for name in ("interleaved", "rotary_embedding_dim")] == attributes
    kinds = {node.op_type for node in nodes}
    assert ({"Sin", "Cos"} <= kinds, "Gather" in kinds) == (max_len is None, max_len is not None)
    assert not kinds & {"Split", "Slice", "Neg"}  # the operators of a rotation without the node
    for n, batch, start in ((1, 1, 50), (30, 3, 5), (9, 2, 0)):
        args = inputs(n, batch, start=start, batched=batched)
        assert_close(run(*args), exact(module.rope, *args))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_len", "real", "start"),
    [
        pytest.param(None, False, 10_000_000, id="far"),  # angles in float32 would be off by a tenth
        pytest.param(4, True, 0, id="real"),  # computed in the graph, not looked up
    ],
)
def test_far_and_real_positions_are_exact(max_len: int | None, real: bool, start: int, tmp_path: Path) -> None:
    q, k, pos = inputs(12, start=start)
    pos = pos / 4 if real else pos
    module = Rotate()
    nodes, run = exported(module, (q, k, pos - start), tmp_path, max_len=max_len)
    assert len(rotations(nodes)) == 2
    assert_close(run(q, k, pos), exact(module.rope, q, k, pos))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, tmp_path: Path) -> None:
    module = Rotate(dtype=dtype)
    nodes, run = exported(module, inputs(9), tmp_path)
    assert len(rotations(nodes)) == 2
    q, k, pos = inputs(40, start=900)
    q, k = q.to(dtype).float(), k.to(dtype).float()
    assert_rounded_once(run(q, k, pos), exact(module.rope, q, k, pos), dtype, within=1e-6)


@pytest.mark.slow
def test_a_position_beyond_max_len_is_an_error_of_the_runtime(tmp_path: Path) -> None:
    _, run = exported(Rotate(), inputs(9), tmp_path, max_len=32)
    run(*inputs(9, start=23))
    with pytest.raises(Exception, match="32"):
        run(*inputs(9, start=24))


# ---- without nodes


PLAIN = partial(torch.onnx.export, dynamo=True, verbose=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rope", "dtype", "how"),
    [
        (posenc.RoPE(head_dim=HEAD_DIM, rotary_dim=8, rotary_side="last"), torch.float32, export),
        (posenc.RoPE(head_dim=HEAD_DIM), torch.float64, export),
        (posenc.FoPE(head_dim=HEAD_DIM, n_kv_heads=2, original_max_len=64), torch.float32, export),
        (posenc.RoPE(head_dim=HEAD_DIM), torch.float32, PLAIN),
    ],
    ids=["last dimensions", "float64", "heads", "torch's exporter"],
)
def test_other_exports_have_small_operators(rope: Any, dtype: torch.dtype, how: Any, tmp_path: Path) -> None:
    nodes, run = exported(Rotate(rope, dtype), inputs(9, dtype=dtype), tmp_path, how)
    assert not rotations(nodes)
    q, k, pos = inputs(21, 3, start=7, dtype=dtype)
    assert_close(run(q, k, pos), rope.rotate(q, k, rope.place(pos)), within=2e-6)


ONE_NODE = ("axial_rope", "dynamic_ntk", "longrope", "mrope", "rope", "stretched_rope", "xpos")
ROTARY = [name for name in posenc.names() if issubclass(posenc.card(name).cls, Rotary)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("max_len", [None, 16])
@pytest.mark.parametrize("name", ROTARY)
def test_every_rotary_encoding_exports_with_equal_results(name: str, max_len: int | None) -> None:
    for rope in posenc.card(name).examples():
        rope = rope.resolve(16)
        kv_heads = getattr(rope, "n_kv_heads", None) or 2
        heads = (getattr(rope, "n_heads", None) or 2 * kv_heads, kv_heads)
        q, k = (normal(2, n, 7, rope.head_dim, seed=n, dtype=torch.float32) for n in heads)
        pos = positions.arange(7) if rope.n_axes == 1 else positions.arange(7)[:, None].expand(7, rope.n_axes)
        module = Rotate(rope)
        with torch.no_grad(), rotary_nodes(module, max_len=max_len):
            wanted = module(q, k, pos)
            program = torch.export.export(module, (q, k, pos))
        if name in ONE_NODE and getattr(rope, "rotary_side", "first") == "first":
            assert sum("RotaryEmbedding" in str(node.target) for node in program.graph.nodes) == 2
        assert_close(program.module()(q, k, pos), wanted, within=2e-6)


# ---- in models


@pytest.mark.slow
def test_a_small_language_model_has_two_nodes_per_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rope = posenc.RoPE(head_dim=8)
    model = LanguageModel(vocab_size=11, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, encoding=rope).eval()
    tokens = torch.randint(11, (2, 9))
    nodes, run = exported(model, (tokens,), tmp_path, dynamic_shapes=({0: "batch", 1: "n"},), max_len=64)
    assert len(rotations(nodes)) == 6
    for shape in ((1, 1), (3, 20)):
        tokens = torch.randint(11, shape)
        assert_close(run(tokens), [model(tokens).detach()], within=1e-5)


@pytest.mark.slow
def test_a_llama_of_hugging_face_has_nodes_after_use(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
    config = transformers.LlamaConfig(**sizes, **heads, use_cache=False)
    llama = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(31, (3, 20))
    wanted = llama(tokens).logits.detach()
    posenc.hf.use(llama)
    nodes, run = exported(llama, (tokens[:2, :9],), tmp_path, dynamic_shapes=({0: OPEN, 1: OPEN},))
    assert len(rotations(nodes)) == 4
    assert_close(run(tokens), [wanted])


class Step(Rotate):
    """Rotate new queries and keys, and append the keys to a cache."""

    def forward(self, q: Tensor, k: Tensor, past: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        placed = self.rope.place(pos)
        rotated, new = self.rope.rotate(q, k, placed, placed.last(k.shape[2]))
        return rotated, torch.cat((past, new), 2)


@pytest.mark.slow
def test_a_decode_step_with_a_cache(tmp_path: Path) -> None:
    step = Step(posenc.RoPE(head_dim=HEAD_DIM, pairing="interleaved"))
    q, k, pos = inputs(9)
    all_q, all_k = exact(step.rope, q, k, pos)

    def args(old: int) -> tuple[Tensor, ...]:
        return q[:, :, old:], k[:, :, old:], all_k[:, :, :old].float(), pos[old:]

    n = torch.export.Dim("n")
    nodes, run = exported(step, args(7), tmp_path, dynamic_shapes=({2: n}, {2: n}, {2: OPEN}, {0: n}))
    assert len(rotations(nodes)) == 2
    for old in (3, 8):
        assert_close(run(*args(old)), (all_q[:, :, old:], all_k))


# ---- inside and around the context


def test_only_exports_change_and_the_context_restores_everything() -> None:
    before, module = [dict(vars(of)) for of in (Rotary, eager)], Rotate()
    q, k, pos = inputs(9)
    wanted = module(q, k, pos)
    with suppress(KeyError), rotary_nodes(module, max_len=2):  # fewer rows than positions
        slots = torch.empty_like(q), torch.empty_like(k)
        module.rope.rotate(q, k, module.rope.place(pos), out=slots)
        assert all(map(torch.equal, slots, wanted))
        assert all(map(torch.equal, module(q, k, pos), wanted))
        raise KeyError
    assert [dict(vars(of)) for of in (Rotary, eager)] == before


@pytest.mark.slow
# onnxscript 0.7.2 fuses a norm of half precision into a node whose result has the wrong type
@pytest.mark.parametrize(("dtype", "optimize"), [(torch.float32, True), (torch.float16, False)])
def test_norms_of_q_and_k_come_before_the_nodes(dtype: torch.dtype, optimize: bool, tmp_path: Path) -> None:
    norms = {name: nn.RMSNorm(HEAD_DIM, eps=1e-6) for name in ("q_norm", "k_norm")}
    for i, norm in enumerate(norms.values()):
        norm.weight.data = normal(HEAD_DIM, seed=i + 7, dtype=torch.float32)
    module = Rotate(None, dtype, **norms)
    nodes, run = exported(module, inputs(9), tmp_path, optimize=optimize)
    assert len(rotations(nodes)) == 2
    q, k, pos = inputs(21, 3)
    q, k = q.to(dtype).float(), k.to(dtype).float()
    normed = [norm.double()(t.double()) for norm, t in zip(norms.values(), (q, k), strict=True)]
    assert_rounded_once(run(q, k, pos), exact(module.rope, *normed, pos), dtype, within=2e-6)


def test_an_inverse_rotation_exports_as_an_inverse() -> None:
    class ThereAndBack(Rotate):
        def forward(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
            placed = self.rope.place(pos)
            back: tuple[Tensor, Tensor] = self.rope.rotate(*self.rope.rotate(q, k, placed), placed, inverse=True)
            return back

    module, args = ThereAndBack(posenc.RoPE(head_dim=HEAD_DIM, attention_factor=1.5)), inputs(9)
    with rotary_nodes(module):
        program = torch.export.export(module, args)
    assert_close(program.module()(*args), args[:2])


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = Rotate(), inputs(9)
    with refuses(ValueError, "posenc.interop.onnx.export: opset_version must be at least 23", "got 22"):
        export(module, args, opset_version=22)
    with refuses(ValueError, "posenc.interop.onnx: max_len must be at least 1", "got 0", "None"):
        export(module, args, max_len=0)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with refuses(ImportError, "posenc.interop.onnx.export: needs onnx and onnxscript", "pip install 'posenc[onnx]'"):
        export(module, args)
