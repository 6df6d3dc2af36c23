"""The definition of M-RoPE, against typed numbers and against Qwen2-VL's and Qwen3-VL's own functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie
from transformers.models.ernie4_5_vl_moe.configuration_ernie4_5_vl_moe import Ernie4_5_VLMoeTextConfig
from transformers.models.glm4v import modeling_glm4v as glm
from transformers.models.glm4v.configuration_glm4v import Glm4vTextConfig
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

from posenc.definitions.rotary import Array, mhrope, mrope, rope

MM_ROPE = (0, 0, 1, 2, 1, 2, 1, 2)
LAYOUTS = pytest.mark.parametrize("layout", ["blocks", "interleaved", "time_last", MM_ROPE])
BOTH_PAIRINGS = pytest.mark.parametrize("pairing", ["half", "interleaved"])


def turned_by(angles: list[float], pairing: str) -> Array:
    """The matrix whose pair k turns by angles[k], built of complex numbers."""
    width = 2 * len(angles)
    lanes = np.arange(width).reshape(-1, 2) if pairing == "interleaved" else np.arange(width).reshape(2, -1).T
    rows = np.eye(width)
    after = (rows[:, lanes[:, 0]] + 1j * rows[:, lanes[:, 1]]) * np.exp(1j * np.array(angles))
    turn = np.zeros((width, width))
    turn[lanes[:, 0]], turn[lanes[:, 1]] = after.real.T, after.imag.T
    return turn


def axes_read(head_dim: int, **kw: Any) -> list[int]:
    """The axis that each pair reads, found by moving along one axis at a time."""
    found = [-1] * (head_dim // 2)
    for axis in range(len(kw["sections"])):
        turn, _ = mrope(np.eye(len(kw["sections"]))[axis], head_dim=head_dim, inv_freq=np.ones(head_dim // 2), **kw)
        for k in range(head_dim // 2):
            if turn[k, k] != 1.0:
                assert found[k] == -1, "a pair reads one axis"
                found[k] = axis
    return found


@BOTH_PAIRINGS
def test_blocks_typed(pairing: Any) -> None:
    """Six pairs at 1, 1/2 ... 1/32 (base 64), shares 1, 2, 3, at time 4, row -2, column 8."""
    want = turned_by([4.0, -1.0, -0.5, 1.0, 0.5, 0.25], pairing)
    for turn in mrope(np.array([4.0, -2.0, 8.0]), head_dim=12, sections=(1, 2, 3), base=64.0, pairing=pairing):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-14)


@BOTH_PAIRINGS
def test_interleaved_typed(pairing: Any) -> None:
    """Eight pairs at 1, 1/2 ... 1/128 (base 256), shares 4, 2, 2: t r c t r c t t."""
    want = turned_by([4.0, -1.0, 2.0, 0.5, -0.125, 0.25, 4 / 64, 4 / 128], pairing)
    p = np.array([4.0, -2.0, 8.0])
    for turn in mrope(p, head_dim=16, sections=(4, 2, 2), layout="interleaved", base=256.0, pairing=pairing):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-14)


def test_vector_typed() -> None:
    """[1, 1] turned by 1, 2 and 3 radians: the same three vectors as in the test of rope."""
    for layout in ("blocks", "interleaved"):
        kw: dict[str, Any] = {"head_dim": 6, "sections": (1, 1, 1), "layout": layout, "inv_freq": np.ones(3)}
        p = np.array([1, 2, 3])
        want = np.array([[-0.30116868, 1.38177329], [-1.32544426, 0.49315059], [-1.1311125, -0.84887249]])
        for turn in mrope(p, pairing="interleaved", **kw):
            np.testing.assert_allclose(turn @ np.ones(6), want.ravel(), rtol=0, atol=1e-8)
        for turn in mrope(p, pairing="half", **kw):
            np.testing.assert_allclose(turn @ np.ones(6), want.T.ravel(), rtol=0, atol=1e-8)


def test_default_base_sections_and_given_inv_freq() -> None:
    """Width 128 by default in shares 16, 24, 24; base 10000 over all pairs: pair 32 (row) turns by 1/100."""
    p = np.array([1.0, 3.0, 5.0])
    turn, _ = mrope(p, head_dim=128)
    sines = [turn[64 + k, k] for k in (0, 16, 32, 48)]
    np.testing.assert_allclose(sines, np.sin([1.0, 0.3, 0.03, 0.005]), rtol=1e-12)
    given, _ = mrope(p, head_dim=6, sections=(0, 2, 1), base=3.0, inv_freq=np.array([0.3, 0.07, 2.0]))
    np.testing.assert_allclose(given, turned_by([0.9, 0.21, 10.0], "half"), atol=1e-14)


@pytest.mark.parametrize(
    ("layout", "sections", "want"),
    [
        ("blocks", (4, 2, 2), [0, 0, 0, 0, 1, 1, 2, 2]),
        ("blocks", (2, 3, 3), [0, 0, 1, 1, 1, 2, 2, 2]),
        ("blocks", (3, 5), [0, 0, 0, 1, 1, 1, 1, 1]),
        ("blocks", (0, 5, 3), [1, 1, 1, 1, 1, 2, 2, 2]),
        ("blocks", (1, 2, 1, 4), [0, 1, 1, 2, 3, 3, 3, 3]),
        ("interleaved", (4, 2, 2), [0, 1, 2, 0, 1, 2, 0, 0]),
        ("interleaved", (5, 2, 1), [0, 1, 2, 0, 1, 0, 0, 0]),
        ("interleaved", (2, 3, 3), [0, 1, 2, 0, 1, 2, 0, 1]),  # the column has 2 of its 3: nowhere to go
        ("interleaved", (1, 6, 1), [0, 1, 2, 0, 1, 0, 0, 1]),  # the row 3 of its 6
        ("interleaved", (5, 3), [0, 1, 0, 1, 0, 1, 0, 0]),
        ("time_last", (2, 3, 3), [1, 2, 1, 2, 1, 2, 0, 0]),
        ("time_last", (0, 3, 3, 2), [1, 2, 3, 1, 2, 3, 1, 2]),
        ("time_last", (8,), [0] * 8),
        ("time_unrotated", (2, 3, 3), [1, 2, 1, 2, 1, 2, -1, -1]),  # -1: it does not move
        ("time_unrotated", (0, 4, 4), [1, 2] * 4),
        (MM_ROPE, (2, 3, 3), [0, 0, 1, 2, 1, 2, 1, 2]),
        ((0, 1, None), (3, 3), [0, 1, -1, 0, 1, -1, 0, 1]),
    ],
)
def test_axes_typed(layout: Any, sections: tuple[int, ...], want: list[int]) -> None:
    assert axes_read(16, sections=sections, layout=layout) == want


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_each_head_of_mhrope_is_rope_by_its_axis(pairing: Any) -> None:
    """Of six key heads one is for time, two for the row, two for the column, and one is left."""
    p, wanted = np.array([3.0, -2.0, 7.5]), np.zeros((6, 8, 8))
    for head, coordinate in enumerate([3.0, -2.0, -2.0, 7.5, 7.5, 0.0]):
        wanted[head] = rope(coordinate, head_dim=8, base=500.0, pairing=pairing)[0]
    for got in mhrope(p, head_dim=8, n_kv_heads=6, sections=(1, 2, 2), base=500.0, pairing=pairing):
        np.testing.assert_array_equal(got, wanted)
    assert mhrope(p, head_dim=8, n_kv_heads=8)[0].shape == (8, 8, 8)  # (2, 3, 3)


def test_shares_of_the_models() -> None:
    """How many pairs each axis has; (16, 24, 24) does not fit the interleaved layout and is not kept to."""
    for layout, sections, want in (
        ("blocks", (16, 24, 24), [16, 24, 24]),
        ("interleaved", (24, 20, 20), [24, 20, 20]),
        ("interleaved", (16, 24, 24), [22, 21, 21]),
    ):
        axes = axes_read(128, sections=sections, layout=layout)
        assert [axes.count(a) for a in range(3)] == want


@LAYOUTS
@BOTH_PAIRINGS
@pytest.mark.parametrize("p", [0.0, 1.0, 7.25, -4.0, 300.0])
def test_equal_coordinates_are_rope(layout: Any, pairing: Any, p: float) -> None:
    ours = mrope(np.full(3, p), head_dim=20, sections=(4, 3, 3), layout=layout, base=500.0, pairing=pairing)
    theirs = rope(p, head_dim=20, base=500.0, pairing=pairing)
    np.testing.assert_array_equal(ours, theirs)


@LAYOUTS
@BOTH_PAIRINGS
def test_knows_only_the_difference(layout: Any, pairing: Any) -> None:
    kw: dict[str, Any] = {"head_dim": 16, "sections": (4, 2, 2), "layout": layout, "pairing": pairing}
    here, there = np.array([30.0, 4.0, -1.5]), np.array([31.0, 0.0, 2.0])
    between = mrope(here, **kw)[0].T @ mrope(there, **kw)[1]
    np.testing.assert_allclose(between, mrope(there - here, **kw)[0], rtol=0, atol=1e-13)


def of_qwen(layout: str, head_dim: int, sections: tuple[int, ...], base: float) -> tuple[Any, Any]:
    """The module of transformers that has this layout, and its rotary embedding."""
    config: dict[str, Any] = {
        "hidden_size": 2 * head_dim,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": base, "mrope_section": list(sections)},
    }
    if layout == "blocks":
        text: Any = Qwen2VLTextConfig(**config)
        return qwen2, qwen2.Qwen2VLRotaryEmbedding(text)
    return qwen3, qwen3.Qwen3VLTextRotaryEmbedding(Qwen3VLTextConfig(head_dim=head_dim, **config))


@pytest.mark.parametrize(
    ("layout", "head_dim", "sections", "base"),
    [
        ("blocks", 128, (16, 24, 24), 1e6),
        ("blocks", 16, (2, 5, 1), 1e4),
        ("interleaved", 128, (24, 20, 20), 5e5),
        ("interleaved", 128, (16, 24, 24), 1e4),
        ("interleaved", 16, (5, 1, 2), 1e4),
        ("interleaved", 16, (1, 6, 1), 1e4),
    ],
)
def test_real_qwen(layout: Any, head_dim: int, sections: tuple[int, ...], base: float) -> None:
    """Queries and keys turned by transformers, whose angles are float32, from ids (3, batch, seq)."""
    module, rotary = of_qwen(layout, head_dim, sections, base)
    rng = np.random.default_rng(11)
    batch, seq, heads = 2, 5, 3
    ids = rng.integers(0, 30, (3, batch, seq)).astype(np.float64)
    q, k = rng.standard_normal((2, batch, heads, seq, head_dim))
    cos, sin = rotary(torch.from_numpy(q), torch.from_numpy(ids).long())
    got_q, got_k = module.apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(k), cos, sin)
    for b in range(batch):
        for s in range(seq):
            r_q, r_k = mrope(ids[:, b, s], head_dim=head_dim, sections=sections, layout=layout, base=base)
            np.testing.assert_allclose(q[b, :, s] @ r_q.T, got_q[b, :, s].numpy(), rtol=0, atol=3e-5)
            np.testing.assert_allclose(k[b, :, s] @ r_k.T, got_k[b, :, s].numpy(), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("layout", "sections"),
    [("blocks", (16, 24, 24)), ("interleaved", (24, 20, 20)), ("interleaved", (16, 24, 24))],
)
def test_real_axes(layout: Any, sections: tuple[int, ...]) -> None:
    """Which axis transformers gives each pair, exactly: their recomposition of axis numbers."""
    _, rotary = of_qwen(layout, 128, sections, 1e4)
    numbers = torch.arange(3)[:, None, None, None].expand(3, 1, 1, 64).clone()
    want = rotary.recomposition_frequencies(numbers)[0, 0].tolist()
    assert want == 2 * axes_read(128, sections=sections, layout=layout)


@pytest.mark.parametrize("side", ["first", "last"])
def test_a_part_of_the_lanes_typed(side: Any) -> None:
    """Two pairs of four at 1, 1/8 (base 64 over the 4 lanes that turn), at 4 and -2, half as long again."""
    still = {"first": slice(4, 8), "last": slice(0, 4)}[side]
    want = np.eye(8)
    at = np.setdiff1d(np.arange(8), np.arange(8)[still])
    want[np.ix_(at, at)] = 1.5 * turned_by([4.0, -0.25], "half")
    options: dict[str, Any] = {"sections": (1, 1), "rotary_dim": 4, "rotary_side": side, "attention_factor": 1.5}
    for turn in mrope(np.array([4.0, -2.0]), head_dim=8, base=64.0, **options):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-14)


def test_real_glm_and_ernie() -> None:
    """Pairs of neighbours: GLM-4V turns half the lanes in blocks, with the gain of YaRN; Ernie keeps time for last."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}
    part = {"mrope_section": [1, 2, 1], "partial_rotary_factor": 0.5}
    of_glm = glm.Glm4vTextRotaryEmbedding(Glm4vTextConfig(**sizes, rope_parameters=yarn | part))
    plain = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [3, 3, 2]}
    of_ernie = ernie.Ernie4_5_VLMoeTextRotaryEmbedding(Ernie4_5_VLMoeTextConfig(**sizes, rope_parameters=plain))
    scaled: dict[str, Any] = {"inv_freq": of_glm.inv_freq.double().numpy(), "attention_factor": 1 + 0.1 * np.log(8)}
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (glm, of_glm, {"sections": (1, 2, 1), "rotary_dim": 8, **scaled}),
        (ernie, of_ernie, {"sections": (2, 3, 3), "layout": "time_last", "base": 500.0}),
    ]
    rng = np.random.default_rng(12)
    ids, (q, k) = rng.integers(0, 30, (3, 1, 5)), rng.standard_normal((2, 1, 2, 5, 16))
    for module, rotary, options in cases:
        x = torch.from_numpy(q), torch.from_numpy(k)
        turned = module.apply_rotary_pos_emb(*x, *rotary(x[0], torch.from_numpy(ids)))
        for s in range(5):
            matrices = mrope(ids[:, 0, s].astype(float), head_dim=16, pairing="interleaved", **options)
            for r, own, theirs in zip(matrices, (q, k), turned, strict=True):
                np.testing.assert_allclose(own[0, :, s] @ r.T, theirs[0, :, s].numpy(), rtol=0, atol=3e-5)
