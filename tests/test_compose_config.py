"""PerLayer from configurations, compared with the q and k of each layer in models of transformers."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import posenc
from posenc import PerLayer, config
from strategies import refuses

pytest.importorskip("transformers")

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextModel
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel
from transformers.models.granite_swa.modeling_granite_swa import GraniteSWAModel
from transformers.models.ministral3.modeling_ministral3 import Ministral3Model
from transformers.models.mistral4.modeling_mistral4 import Mistral4Model

from small_models import finite

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "intermediate_size": 32,
    "vocab_size": 50,
    "num_experts_per_tok": 2,
    **{f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))},
}
N = 9
KEPT: dict[int, tuple[Tensor, Tensor]] = {}
SCALES: dict[int, float] = {}


def keep(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any) -> tuple[Tensor, None]:
    """Stand in for attention: what reaches the next layer does not depend on positions."""
    KEPT[module.layer_idx], SCALES[module.layer_idx] = (q, k), scaling
    return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None


ALL_ATTENTION_FUNCTIONS.register("keep_q_and_k", keep)


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


class Peer(NamedTuple):
    """A model, its options, the encoding of each layer, and options that leave q and k unchanged at position 0."""

    model: Any
    options: dict[str, Any]
    index: tuple[int, ...]
    still: dict[str, Any] = {}  # noqa: RUF012


def yarn(**others: Any) -> dict[str, Any]:
    """Return YaRN for an original length that the positions of the tests exceed."""
    lengths = {"factor": 8.0, "original_max_position_embeddings": 64}
    return {"rope_type": "yarn", "rope_theta": 1e4, **lengths, **others}


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
BOTH = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
NARROW = {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 8}
GROWS = {"llama_4_scaling_beta": 0.3}
GROWING = {"rope_parameters": yarn(**GROWS, mscale=1.0, mscale_all_dim=1.0)}
UNTUNED = {"attn_temperature_tuning": False}
HEAD, FLOOR = {"head_dim": 16}, {"head_dim": 16, "floor_scale": 3}
LATENT = {"n_routed_experts": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16}
ALL, FOURTH, SIXTH = (0,) * 6, (0, 0, 0, 1, 0, 0), (0, 0, 0, 0, 0, 1)
PEERS = {
    "llama": Peer(transformers.LlamaModel, {}, ALL),
    "smollm3": Peer(transformers.SmolLM3Model, {}, FOURTH),
    "smollm3 listed": Peer(transformers.SmolLM3Model, {"no_rope_layers": [0, 1, 1, 0, 0, 1]}, (0, 1, 1, 0, 0, 1)),
    "cohere2": Peer(transformers.Cohere2Model, {}, FOURTH),
    "gemma3": Peer(transformers.Gemma3TextModel, HEAD, SIXTH),
    "gemma3 scaled": Peer(transformers.Gemma3TextModel, HEAD | {"rope_parameters": BOTH}, SIXTH),
    "gemma3n": Peer(Gemma3nTextModel, HEAD | NARROW, (0, 0, 0, 0, 1, 0)),
    "gemma4": Peer(Gemma4TextModel, {"global_head_dim": 32} | HEAD | NARROW, SIXTH),
    "llama4": Peer(transformers.Llama4TextModel, FLOOR | {"attn_scale": 0.4}, FOURTH, UNTUNED),
    "llama4 untuned": Peer(transformers.Llama4TextModel, FLOOR | UNTUNED, FOURTH),
    "qwen3_next": Peer(transformers.Qwen3NextModel, HEAD | {"num_experts": 4}, FOURTH),
    "ministral3": Peer(Ministral3Model, HEAD | GROWING, ALL),
    "mistral4": Peer(Mistral4Model, LATENT | GROWING, ALL),
    "modernbert": Peer(transformers.ModernBertModel, {}, (0, 1, 1, 0, 1, 1)),
    "granite_swa": Peer(GraniteSWAModel, {"layer_rope_theta": [0, 1e4, 5e5, 0, 1e4, 100]}, (0, 1, 2, 0, 1, 3)),
    "gpt_oss": Peer(transformers.GptOssModel, HEAD | {"rope_parameters": yarn()}, ALL, {"rope_parameters": PLAIN}),
}


def run(model: Any, pos: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    KEPT.clear()
    with torch.no_grad():
        model(torch.arange(7, 7 + N).expand(2, -1), position_ids=pos)
    return dict(KEPT)


def still(peer: Peer, model: Any) -> dict[int, tuple[Tensor, Tensor]]:
    """Return q and k before the rotation: the same weights with every token at position 0."""
    twin = peer.model(type(model.config)(**{**SMALL, **peer.options, **peer.still})).eval()
    twin.load_state_dict(model.state_dict())
    twin.set_attn_implementation("keep_q_and_k")
    return run(twin, torch.zeros(2, N, dtype=torch.long))


def in_order(name: str, x: Tensor) -> Tensor:
    """Undo the sorting of the rotated dimensions into even and odd ones in Mistral 4's code."""
    if name != "mistral4":
        return x
    return torch.cat((x[..., :8], x[..., 8:].unflatten(-1, (2, -1)).mT.flatten(-2)), -1)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", PEERS)
def test_each_layer_rotates_as_in_the_model(name, tmp_path):
    peer = PEERS[name]
    model = peer.model(peer.model.config_class(**{**SMALL, **peer.options})).eval()
    model.set_attn_implementation("keep_q_and_k")
    model.config.save_pretrained(tmp_path)
    layers = PerLayer.from_config(tmp_path)
    assert layers.index == peer.index
    pos = torch.arange(N).expand(2, -1) if name.startswith("llama4") else torch.randint(500, (2, N))
    rotated, before, placed = run(model, pos), still(peer, model), layers.place(pos)
    assert set(rotated) == set(before)
    for i in range(len(layers)):
        encoding, part = layers.layer(i, placed)
        if i not in rotated:  # linear attention
            assert type(encoding) is posenc.NoPE
            continue
        assert all(tensor.std() > 0.05 for tensor in before[i])
        ours = encoding.rotate(*(in_order(name, x) for x in before[i]), part)
        if type(encoding) is posenc.NoPE:
            assert all(map(torch.equal, ours, before[i]))
            assert all(map(torch.equal, rotated[i], before[i]))
        else:
            assert (rotated[i][0] - before[i][0]).abs().max() > 0.1
        for mine, theirs in zip(ours, rotated[i], strict=True):
            torch.testing.assert_close(mine, in_order(name, theirs), atol=5e-5, rtol=0)  # their angles are float32
        if not name.startswith(("gemma", "granite")):  # their scale is an option, independent of positions
            assert encoding.score_scale(ours[0].shape[-1]) == pytest.approx(SCALES[i], rel=1e-12)


def of(**fields: Any) -> dict[str, Any]:
    return {"num_hidden_layers": 4, "head_dim": 16, **fields}


def test_equal_encodings_are_one_module():
    """In GPT-OSS only the windows of sliding and full layers differ; in Granite bases recur."""
    kinds = ["sliding_attention", "full_attention"] * 2
    layers = PerLayer.from_config(of(model_type="gpt_oss", layer_types=kinds, rope_parameters=PLAIN))
    assert layers.index == (0,) * 4
    assert [type(e) for e in layers.distinct] == [posenc.RoPE]
    still = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    layers = PerLayer.from_config(of(model_type="smollm3", layer_types=still, no_rope_layers=[1, 0, 1, 0]))
    assert [type(e) for e in layers.distinct] == [posenc.NoPE, posenc.RoPE]
    assert layers.index == (0, 0, 1, 0)
    own = of(model_type="granite_swa", layer_types=kinds, layer_rope_theta=[1e4, 1e4, 3e4, 0])
    layers = PerLayer.from_config(own)
    assert [getattr(e, "base", None) for e in layers.distinct] == [1e4, 3e4, None]
    assert layers.index == (0, 0, 1, 2)
    placed = layers.place(torch.arange(3))
    assert len(placed.parts) == 3
    assert layers.layer(0, placed)[0] is layers.layer(1, placed)[0]
    assert not layers.state_dict()


def test_heads_of_other_widths():
    layers = PerLayer.from_config(transformers.Gemma4TextConfig(num_hidden_layers=6).to_dict())
    assert [layers.distinct[i].head_dim for i in layers.index] == [256] * 5 + [512]
    layers = PerLayer.from_config(transformers.Gemma4TextConfig(num_hidden_layers=6, global_head_dim=128).to_dict())
    q, placed = torch.randn(1, 2, 3, 128), layers.place(torch.arange(3))
    encoding, part = layers.layer(5, placed)
    assert encoding.rotate_q(q, part).shape == q.shape
    encoding, part = layers.layer(4, placed)
    with refuses(ValueError, "RoPE: q and k must have head_dim=256 dimensions"):
        encoding.rotate_q(q, part)


def test_the_length_and_the_pairing_are_passed_on():
    """The length chooses LongRoPE's list of factors; the pairing is one of the layout of weights."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 2.0], "long_factor": [3.0, 7.0]}
    lengths = {"max_position_embeddings": 4096, "original_max_position_embeddings": 1024}
    theirs = transformers.Phi3Config(
        hidden_size=8, num_attention_heads=2, num_hidden_layers=2, rope_parameters=rope, **lengths
    )
    for seq_len in (1024, 1025):
        inv_freq, gain = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=seq_len)
        at_once = PerLayer.from_config(theirs.to_dict(), seq_len=seq_len)
        for layers in (at_once, PerLayer.from_config(theirs.to_dict()).resolve(seq_len)):
            (ours,) = layers.distinct
            torch.testing.assert_close(ours.frequencies()[0], inv_freq.double(), rtol=3e-6, atol=0)
            assert ours.gain() == pytest.approx(gain, rel=1e-12)
            assert (ours.pairing, layers.index) == ("half", (0, 0))
    (ours,) = PerLayer.from_config(theirs.to_dict(), pairing="interleaved").distinct
    assert ours.pairing == "interleaved"


def test_a_model_with_vision_counts_as_its_text():
    theirs = transformers.Gemma3Config(text_config={"num_hidden_layers": 7, "head_dim": 16})
    layers = PerLayer.from_config(theirs.to_dict())
    assert layers.index == (0, 0, 0, 0, 0, 1, 0)
    assert [layers.distinct[i].base for i in (0, 1)] == [1e4, 1e6]


def test_layers_with_several_axes():
    """Qwen3.5: its linear attention gets the same positions; dynamic NTK needs the length."""
    qwen = {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 256, "rope_parameters": dict(PLAIN)}
    layers = PerLayer.from_config(qwen)
    still, rotary = layers.distinct
    assert (layers.index, layers.n_axes, still.options()) == ((0, 0, 0, 1), 3, {"n_axes": 3})
    assert (rotary.sections, rotary.layout, rotary.rotary_dim) == ((11, 11, 10), "interleaved", 64)
    with refuses(ValueError, "works on 3 position axes", "positions.on_each_axis"):
        layers.place(torch.arange(5))
    qwen["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}
    qwen["max_position_embeddings"] = 64
    with refuses(ValueError, "MRoPE: seq_len must be given, because qwen3_5_text rotates by several axes"):
        PerLayer.from_config(qwen)
    long = PerLayer.from_config(qwen, seq_len=100).distinct[1].frequencies().sum(0)
    wanted = posenc.RoPE.from_config(qwen).resolve(100).frequencies()[0]
    torch.testing.assert_close(long, wanted, rtol=1e-14, atol=0)
    with refuses(ValueError, "MRoPE: a configuration must name the axis", "got no mrope_section in llama"):
        posenc.MRoPE.from_config({"model_type": "llama", "head_dim": 8})


LLAMA4 = of(model_type="llama4_text")
BEAM = of(model_type="beam")
MINISTRAL = of(model_type="ministral3", rope_parameters=yarn(**GROWS))


@pytest.mark.parametrize(
    ("fields", "law", "length", "weight"),
    [
        (LLAMA4, "llama4", 8192, 0.1),
        ({**LLAMA4, "attn_temperature_tuning": 4}, "llama4", 8192, 0.1),  # the first files had a number
        ({**LLAMA4, "floor_scale": 5, "attn_scale": 1}, "llama4", 5, 1.0),
        ({**LLAMA4, "attn_temperature_tuning": False}, None, None, None),
        ({**LLAMA4, "attn_temperature_tuning": 0}, None, None, None),
        ({**LLAMA4, "attn_scale": 0.0}, None, None, None),
        (BEAM, "beam", 2048, 0.1),
        (BEAM | {"rope_parameters": {"sliding_attention": PLAIN, "full_attention": PLAIN}}, None, None, None),
        (MINISTRAL, "ministral", 64, 0.3),
        (
            {**MINISTRAL, "original_max_position_embeddings": 128},
            "ministral",
            128,
            0.3,
        ),  # read first, as in transformers
        ({**MINISTRAL, "rope_parameters": yarn()}, None, None, None),
        ({**MINISTRAL, "rope_parameters": yarn(llama_4_scaling_beta=0)}, None, None, None),
        ({**MINISTRAL, "model_type": "llama"}, None, None, None),  # Llama does not read it
        ({**LLAMA4, "model_type": "smollm3"}, None, None, None),
    ],
)
def test_when_queries_grow(fields, law, length, weight):
    layers = PerLayer.from_config(fields)
    grows = [m for m in layers.modules() if isinstance(m, posenc.QueryTemperature)]
    expected = [] if law is None else [{"law": law, "original_max_len": length, "weight": weight}]
    assert [m.options() for m in grows] == expected
    assert len(layers) == 4


def test_queries_may_grow_in_an_unknown_type():
    (both,) = PerLayer.from_config({**MINISTRAL, "model_type": "mine"}, pairing="interleaved").distinct
    rope, grows = both.encodings
    assert rope.pairing == "interleaved"
    assert grows.weight == 0.3


@pytest.mark.parametrize(
    ("kind", "message", "fields"),
    [
        (ValueError, r"model_type must be one of the .* got 'mystery'\. Pass pairing", of(model_type="mystery")),
        (ValueError, "model_type must be one of the .* got None", of()),
        (ValueError, "got 'mystery'", of(model_type="mystery", layer_types=["linear_attention"] * 4)),
        (ValueError, "layer_types is missing", of(model_type="zamba2")),
        (ValueError, "must be an even number.* got 15 of 15", of(model_type="llama", head_dim=15)),
        (ValueError, "PerLayer: layers of esm.*posenc.Learned", of(model_type="esm")),
        (ValueError, "must agree among layers", of(model_type="muse_glimmer_text", layer_rope_theta=[1e4, 0, 2e4, 0])),
        (ValueError, "floor_scale must be from 2 .* got 0", LLAMA4 | {"floor_scale": 0}),
        (TypeError, "floor_scale must be an integer; got None", LLAMA4 | {"floor_scale": None}),
        (ValueError, "attn_scale must be at least 0.* got -0.1", LLAMA4 | {"attn_scale": -0.1}),
        (TypeError, "attn_temperature_tuning must be true or false", LLAMA4 | {"attn_temperature_tuning": "yes"}),
        (TypeError, "beta must be a number; got ''", MINISTRAL | {"rope_parameters": yarn(llama_4_scaling_beta="")}),
        (TypeError, "embeddings must be an integer; got None", MINISTRAL | {"rope_parameters": PLAIN | GROWS}),
    ],
)
def test_invalid_configurations(kind, message, fields):
    with pytest.raises(kind, match=message) as caught:
        PerLayer.from_config(fields)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


# types whose default configuration has an odd width, or positions that do not rotate
REFUSED = {"esm", "glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}


@pytest.mark.sample(50)
@pytest.mark.parametrize("name", [name for name in config.MODEL_TYPES if name in CONFIG_MAPPING_NAMES])
def test_every_type_by_default(name):
    theirs = CONFIG_MAPPING[name]()
    if name in REFUSED:
        with refuses(ValueError):
            PerLayer.from_config(finite(theirs.to_dict()))
        return
    layers = PerLayer.from_config(finite(theirs.to_dict()))
    assert len(layers) == getattr(theirs, "global_config", theirs).num_hidden_layers
    assert len(layers.distinct) <= 3
