"""Patterns of layers by name, and p-RoPE, next to the configurations and rotations of transformers."""

from typing import Any

import pytest
import torch

import posenc
from posenc import PerLayer, config
from strategies import refuses

pytest.importorskip("transformers")

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.cohere2.modeling_cohere2 import Cohere2RotaryEmbedding
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.llama4.modeling_llama4 import Llama4TextRotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

PEERS: dict[str, tuple[Any, Any, str]] = {  # configuration, rotation, and what its frequencies are called
    "gemma4": (transformers.Gemma4TextConfig, Gemma4TextRotaryEmbedding, "sliding_attention_inv_freq"),
    "irope": (transformers.Llama4TextConfig, Llama4TextRotaryEmbedding, "inv_freq"),
    "rnope": (transformers.Cohere2Config, Cohere2RotaryEmbedding, "inv_freq"),
    "smollm3": (transformers.SmolLM3Config, SmolLM3RotaryEmbedding, "inv_freq"),
}


@pytest.fixture(autouse=True)
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.mark.parametrize("n_layers", [1, 4, 6, 7, 30])
@pytest.mark.parametrize("name", PEERS)
def test_layers_are_of_the_kinds_that_the_model_has(name: str, n_layers: int) -> None:
    theirs = PEERS[name][0](num_hidden_layers=n_layers)
    kinds = getattr(theirs, "no_rope_layers", theirs.layer_types)
    order = list(dict.fromkeys(kinds))
    assert PerLayer.preset(name, n_layers).index == tuple(order.index(kind) for kind in kinds)


@pytest.mark.parametrize("name", PEERS)
def test_rotations_are_those_of_the_model(name: str) -> None:
    config, rotation, attribute = PEERS[name]
    layers, theirs = PerLayer.preset(name, 6), rotation(config(num_hidden_layers=6))
    rope, _ = layers.distinct
    torch.testing.assert_close(rope.frequencies()[0].float(), getattr(theirs, attribute), rtol=3e-6, atol=0)
    assert rope.pairing == ("interleaved" if name in ("irope", "rnope") else "half")


def test_layers_without_rotation() -> None:
    for name in ("rnope", "smollm3"):
        assert type(PerLayer.preset(name, 4).distinct[1]) is posenc.NoPE
    llama = transformers.Llama4TextConfig()
    grows = posenc.QueryTemperature(law="llama4", original_max_len=int(llama.floor_scale), weight=llama.attn_scale)
    assert PerLayer.preset("irope", 4).distinct[1].options() == grows.options()


@pytest.mark.parametrize("share", [0.25, 0.7, 1.0])
def test_p_rope_is_their_proportional_rotation(share: float) -> None:
    rope = {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1e6}
    theirs = transformers.LlamaConfig(head_dim=512, rope_parameters=rope)
    inv_freq, gain = ROPE_INIT_FUNCTIONS["proportional"](theirs, "cpu")
    ours = posenc.create("p_rope", head_dim=512, share=share, base=1e6)
    torch.testing.assert_close(ours.frequencies()[0].float(), inv_freq, rtol=3e-6, atol=0)
    assert ours.gain() == gain == 1


def test_gemma4_has_p_rope_every_sixth_layer() -> None:
    theirs = Gemma4TextRotaryEmbedding(transformers.Gemma4TextConfig(num_hidden_layers=6))
    full = PerLayer.preset("gemma4", 6).distinct[1]
    torch.testing.assert_close(full.frequencies()[0].float(), theirs.full_attention_inv_freq, rtol=3e-6, atol=0)
    assert torch.equal(full.frequencies(), posenc.ProportionalRoPE(head_dim=512, share=0.25, base=1e6).frequencies())


def test_a_model_of_ones_own_has_its_own_sizes() -> None:
    window, full = PerLayer.preset("gemma4", 6, head_dim=64, base=5e5).distinct
    assert (window.head_dim, window.base, full.head_dim) == (64, 1e4, 64)
    assert torch.equal(full.frequencies(), posenc.ProportionalRoPE(head_dim=64, share=0.25, base=5e5).frequencies())
    for name in ("irope", "rnope", "smollm3"):
        rope = PerLayer.preset(name, 4, head_dim=32, base=777.0).distinct[0]
        assert (rope.head_dim, rope.base) == (32, 777.0)
    placed = PerLayer.preset("smollm3", 4, head_dim=8).place(torch.arange(3))
    assert len(placed.parts) == 2


def test_what_is_no_pattern() -> None:
    with refuses(ValueError, "PerLayer.preset: name must be one of gemma4, irope, rnope, smollm3; got 'swan'."):
        PerLayer.preset("swan", 4)
    with refuses(ValueError, "PerLayer.preset: n_layers must be"):
        PerLayer.preset("smollm3", 0)
    with refuses(ValueError, "PerLayer.preset: base must be a finite number greater than 1", "got base=0.5"):
        PerLayer.preset("smollm3", 4, base=0.5)


@pytest.mark.parametrize(
    "name", ["Gemma4TextConfig", "Gemma4UnifiedTextConfig", "DiffusionGemmaTextConfig", "EmbeddingGemma2TextConfig"]
)
def test_heads_of_full_attention_are_as_wide_as_transformers_takes_them(name):
    own = getattr(transformers, name)(num_hidden_layers=6, hidden_size=64, num_attention_heads=2, head_dim=256)
    last = len(own.layer_types) - 1
    file = {"model_type": own.model_type, "num_hidden_layers": 6, "head_dim": 256, "layer_types": own.layer_types}
    file["rope_parameters"] = own.rope_parameters
    found = config.rotary(file, own.layer_types[last])
    assert found.head_dim == own.per_layer_config[last].head_dim
