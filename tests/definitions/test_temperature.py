"""Pixtral's spectrum and the temperatures of queries, against typed numbers and transformers' own modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from transformers.models.beam import modeling_beam as beam
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
from transformers.models.ministral3 import modeling_ministral3 as ministral3
from transformers.models.mistral4 import modeling_mistral4 as mistral4
from transformers.models.pixtral import modeling_pixtral as pixtral
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig

from posenc.definitions.rotary import Array, axial_rope, query_temperature, rope


def turned_by(angles: list[float], pairing: str) -> Array:
    """The matrix whose pair j turns by angles[j], built of complex numbers."""
    width = 2 * len(angles)
    lanes = np.arange(width).reshape(-1, 2) if pairing == "interleaved" else np.arange(width).reshape(2, -1).T
    rows = np.eye(width)
    after = (rows[:, lanes[:, 0]] + 1j * rows[:, lanes[:, 1]]) * np.exp(1j * np.array(angles))
    turn = np.zeros((width, width))
    turn[lanes[:, 0]], turn[lanes[:, 1]] = after.real.T, after.imag.T
    return turn


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_dealt_typed(pairing: Any) -> None:
    """Thetas 1, 0.1, 0.01, 0.001: axis 0 has the first and the third, axis 1 the second and the fourth."""
    want = turned_by([7.25, 0.0725, -0.3, -0.003], pairing)
    for turn in axial_rope(np.array([7.25, -3.0]), head_dim=8, spectrum="dealt", pairing=pairing):
        np.testing.assert_allclose(turn, want, rtol=0, atol=1e-14)


def test_dealt_three_axes_base_and_given_inv_freq() -> None:
    """Width 12, six thetas for three axes: 0 and 3, 1 and 4, 2 and 5; 2**-m by base 64, or as given."""
    p = np.array([2.0, 5.0, -1.0])
    by_base, _ = axial_rope(p, head_dim=12, n_axes=3, base=64.0, spectrum="dealt")
    want = turned_by([2.0, 0.25, 2.5, 0.3125, -0.25, -0.03125], "half")
    np.testing.assert_allclose(by_base, want, rtol=0, atol=1e-14)
    inv_freq = np.array([0.3, 0.2, 0.11, 0.07, 0.05, 0.01])
    given, _ = axial_rope(p, head_dim=12, n_axes=3, base=3.0, spectrum="dealt", inv_freq=inv_freq)
    want = turned_by([0.6, 0.14, 1.0, 0.25, -0.11, -0.01], "half")
    np.testing.assert_allclose(given, want, rtol=0, atol=1e-14)


def test_shared_is_the_default() -> None:
    p = np.array([2.0, 5.0])
    want = turned_by([2.0, 0.02, 5.0, 0.05], "half")
    np.testing.assert_allclose(axial_rope(p, head_dim=8)[0], want, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(axial_rope(p, head_dim=8)[1], axial_rope(p, head_dim=8, spectrum="shared")[1])


@pytest.mark.parametrize("spectrum", ["shared", "dealt"])
def test_one_axis_is_rope(spectrum: Any) -> None:
    for pairing in ("half", "interleaved"):
        kw: dict[str, Any] = {"head_dim": 10, "base": 500.0, "pairing": pairing}
        turn, _ = axial_rope(np.array([3.5]), n_axes=1, spectrum=spectrum, **kw)
        np.testing.assert_allclose(turn, rope(3.5, **kw)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize(("head_dim", "base"), [(8, 10000.0), (64, 10000.0), (24, 100.0)])
def test_dealt_is_pixtral(head_dim: int, base: float) -> None:
    rotary: Any = {"rope_type": "axial", "rope_theta": base}
    config = PixtralVisionConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=rotary)
    grid = torch.cartesian_prod(torch.arange(5), torch.arange(7))  # rows and columns
    generator = torch.Generator().manual_seed(head_dim)
    q = torch.randn(1, 1, len(grid), head_dim, generator=generator)
    k = torch.randn(1, 1, len(grid), head_dim, generator=generator)
    theirs = pixtral.PixtralVisionRotaryEmbedding(config)(q, grid.T[None])
    want_q, want_k = pixtral.apply_rotary_pos_emb(q, k, *theirs)
    for i, place in enumerate(grid.numpy()):
        r_q, r_k = axial_rope(place, head_dim=head_dim, base=base, spectrum="dealt")
        # their angles are float32
        np.testing.assert_allclose(r_q @ q[0, 0, i].double().numpy(), want_q[0, 0, i], rtol=0, atol=1e-5)
        np.testing.assert_allclose(r_k @ k[0, 0, i].double().numpy(), want_k[0, 0, i], rtol=0, atol=1e-5)


def temperature(p: float, **kw: Any) -> float:
    """The one number in R_q; R_k is the identity."""
    r_q, r_k = query_temperature(p, head_dim=3, **kw)
    np.testing.assert_array_equal(r_q, r_q[0, 0] * np.eye(3))
    np.testing.assert_array_equal(r_k, np.eye(3))
    assert r_q.dtype == r_k.dtype == np.float64
    return float(r_q[0, 0])


LN2, LN3, LN4 = 0.6931471805599453, 1.0986122886681098, 1.3862943611198906


@pytest.mark.parametrize(
    ("law", "p", "want"),
    [
        ("llama4", 0, 1.0),
        ("llama4", 8190, 1.0),
        ("llama4", 8191, 1 + 0.1 * LN2),
        ("llama4", 16382, 1 + 0.1 * LN2),
        ("llama4", 16383, 1 + 0.1 * LN3),
        ("ministral", 0, 1.0),
        ("ministral", 8191, 1.0),
        ("ministral", 8192, 1 + 0.1 * LN2),
        ("ministral", 16383, 1 + 0.1 * LN2),
        ("ministral", 16384, 1 + 0.1 * LN3),
        ("log_n", 0, 1.0),
        ("log_n", 4095, 1.0),
        ("log_n", 8191, 1.0),
        ("log_n", 16383, 14 / 13),
        ("log_n", 65535, 16 / 13),
        ("beam", 8191, 2**0.1),
        ("beam", 3 * 8192 - 1, 4**0.1),
        ("beam", -1, 1.0),
        ("inkling", 8190, 1.0),
        ("inkling", 8191, 1.0),
        ("inkling", 16383, 1 + 0.1 * LN2),
        ("inkling", 3 * 8192 - 1, 1 + 0.1 * LN3),
    ],
)
def test_temperature_typed(law: str, p: int, want: float) -> None:
    """8192 = 2**13; where the steps are, and what they are worth."""
    assert temperature(p, law=law) == pytest.approx(want, rel=1e-15, abs=0)


def test_temperature_length_and_weight() -> None:
    assert temperature(11, original_max_len=4, weight=0.5) == pytest.approx(1 + 0.5 * LN4, rel=1e-15)  # llama4
    assert temperature(11, law="ministral", original_max_len=4, weight=0.5) == pytest.approx(1 + 0.5 * LN3, rel=1e-15)
    for weight in (0.0, 0.1, 5.0):  # idle
        assert temperature(63, law="log_n", original_max_len=4, weight=weight) == pytest.approx(3.0, rel=1e-15)
    assert temperature(3, law="beam", original_max_len=4, weight=0.5) == pytest.approx(2**0.5, rel=1e-15)
    assert temperature(10**6, weight=0.0) == temperature(10**6, law="ministral", weight=0.0) == 1.0


def test_temperature_steps_and_slides() -> None:
    """Fractions of a position: the steps stay flat, the others do not."""
    for law in ("llama4", "ministral"):
        assert temperature(9.0, law=law, original_max_len=4) == temperature(9.5, law=law, original_max_len=4)
    for law in ("log_n", "beam", "inkling"):
        assert temperature(9.0, law=law, original_max_len=4) < temperature(9.5, law=law, original_max_len=4)
    with pytest.raises(KeyError):
        query_temperature(1.0, head_dim=2, law="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("peer", [ministral3, mistral4])
@pytest.mark.parametrize(("length", "weight"), [(8192, 0.1), (16384, 0.25), (3, 0.1)])
def test_ministral_is_theirs(peer: Any, length: int, weight: float) -> None:
    places = sorted({0, 1, 5, *(m * length + off for m in (1, 2, 3, 15) for off in (-1, 0, 1))})
    theirs = peer.get_llama_4_attn_scale(torch.tensor([places]), weight, length)[0, 0, :, 0]
    ours = [temperature(p, law="ministral", original_max_len=length, weight=weight) for p in places]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_beam_is_theirs() -> None:
    places = [0, 1, 100, 2047, 2048, 50_000, 10**6]
    theirs = beam.compute_attention_scaling(torch.tensor([places]))[0, 0, :, 0]
    ours = [temperature(p, law="beam", original_max_len=2048, weight=0.1) for p in places]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(("length", "weight"), [(4, 0.1), (7, 0.3)])
def test_llama4_is_theirs(length: int, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer of theirs without rotation hands to attention, over what it projected."""
    handed: dict[str, torch.Tensor] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        handed.update(query=query, key=key)
        return query.transpose(1, 2), None

    monkeypatch.setattr(llama4, "eager_attention_forward", attention)
    config = Llama4TextConfig(
        hidden_size=16,
        head_dim=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=4,
        floor_scale=length,
        attn_scale=weight,
    )
    config._attn_implementation = "eager"
    layer = llama4.Llama4TextAttention(config, 3)
    assert not layer.use_rope
    x = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        layer(x, None, None)
        q = layer.q_proj(x).view(2, 30, 2, 8).transpose(1, 2)
        k = layer.k_proj(x).view(2, 30, 2, 8).transpose(1, 2)
    for p in range(30):
        r_q, r_k = query_temperature(p, head_dim=8, original_max_len=length, weight=weight)
        np.testing.assert_allclose(q[:, :, p].double().numpy() @ r_q.T, handed["query"][:, :, p], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(k[:, :, p].double().numpy() @ r_k.T, handed["key"][:, :, p], rtol=1e-5, atol=1e-7)
