"""Packages as they are installed: what is right passes, and known faults are named."""

import importlib
import warnings

import pytest

from posenc import verify

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64}
GROUPED = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 0}
THETA = {"rope_theta": 10000.0}
LINEAR = THETA | {"rope_type": "linear", "factor": 2.0}
YARN = THETA | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
LISTS = {"short_factor": [1 + i / 50 for i in range(16)], "long_factor": [1 + i / 3 for i in range(16)]}
MODELS = {
    "llama": ("llama", "Llama", GROUPED, "half"),
    "llama, linear": ("llama", "Llama", GROUPED | {"rope_parameters": LINEAR}, "half"),
    "llama, yarn": ("llama", "Llama", GROUPED | {"rope_parameters": YARN}, "half"),
    "llama 3": (
        "llama", "Llama", GROUPED | {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 512}}, "half"
    ),
    "llama, dynamic": (
        "llama",
        "Llama",
        GROUPED | {"max_position_embeddings": 256, "rope_parameters": THETA | {"rope_type": "dynamic", "factor": 4.0}},
        "half",
    ),
    "qwen2": ("qwen2", "Qwen2", GROUPED, "half"),
    "qwen3": ("qwen3", "Qwen3", GROUPED | {"head_dim": 32}, "half"),
    "mistral": ("mistral", "Mistral", GROUPED, "half"),
    "gemma": ("gemma", "Gemma", GROUPED | {"head_dim": 32}, "half"),
    "cohere": ("cohere", "Cohere", GROUPED | {"eos_token_id": 1, "bos_token_id": 2}, "interleaved"),
    "phi3": ("phi3", "Phi3", GROUPED | {"eos_token_id": 1}, "half"),
    "phi3, longrope": (
        "phi3",
        "Phi3",
        GROUPED
        | {"eos_token_id": 1, "original_max_position_embeddings": 256}
        | {"rope_parameters": THETA | {"rope_type": "longrope"} | LISTS},
        "half",
    ),
    "gpt_neox": ("gpt_neox", "GPTNeoX", SMALL | {"max_position_embeddings": 2048}, "half"),
}  # fmt: skip


def rotary(name):
    folder, stem, options, layout = MODELS[name]
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(transformers, f"{stem}Config")(**options)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    spec = {"encoding": "rope", "head_dim": head_dim, "layout": layout, "config": config.to_dict()}
    return (getattr(module, f"{stem}RotaryEmbedding")(config), module.apply_rotary_pos_emb), spec


@pytest.mark.parametrize("name", MODELS)
def test_transformers_rotations_are_right(name):
    subject, spec = rotary(name)
    assert verify.check(subject, convention="hf_rope", spec=spec).status == "pass"


@pytest.mark.parametrize("name", ["llama, linear", "llama, yarn", "llama 3"])
def test_and_wrong_once_the_configuration_says_something_else(name):
    subject, spec = rotary(name)
    plain = {
        "encoding": "rope",
        "head_dim": 32,
        "layout": "half",
        "base": spec["config"]["rope_parameters"]["rope_theta"],
    }
    assert verify.check(subject, convention="hf_rope", spec=plain).status == "fail"
    module, function = rotary("llama")[0]
    report = verify.check((module, function), convention="hf_rope", spec=spec)
    assert report.causes[0].code in ("rope.config.scaling_ignored", "rope.yarn.gain_lost", "rope.config.theta_not_read")


def lucid(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of torch.amp
        module = pytest.importorskip("rotary_embedding_torch")
    return module.RotaryEmbedding(dim=32, **options)


SPEC = {"encoding": "rope", "head_dim": 32, "base": 10000.0, "layout": "interleaved"}


@pytest.mark.parametrize("declared", [{}, {"activation_dtype": "float32"}])
def test_rotary_embedding_torch_is_right_in_float32(declared):
    assert verify.check(lucid(), convention="lucidrains", spec=SPEC | declared).status == "pass"


def test_rotary_embedding_torch_is_wrong_in_bfloat16_from_position_257():
    report = verify.check(lucid(), convention="lucidrains", spec=SPEC | {"activation_dtype": "bfloat16"})
    assert report.causes[0].code == "rope.precision.positions_bf16"
    assert report.causes[0].evidence == 257.0


def test_gptj_turns_pairs_of_neighbours():
    module = importlib.import_module("transformers.models.gptj.modeling_gptj")

    def rope(x, positions):
        table = module.create_sinusoidal_positions(4096, 16)[positions]
        sin, cos = (t[None] for t in table.chunk(2, -1))
        return module.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)

    spec = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved", "max_positions": 4096}
    assert verify.check(rope, convention="rope_fn", spec=spec).status == "pass"
    report = verify.check(rope, convention="rope_fn", spec=spec | {"layout": "half"})
    assert report.causes[0].code == "rope.layout.wrong_pairing"


@pytest.mark.parametrize("bidirectional", [True, False])
def test_transformers_buckets_of_t5_are_right(bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    def bucket(relative_position):
        return T5Attention._relative_position_bucket(relative_position, bidirectional, 32, 128)

    spec = {"encoding": "t5", "bidirectional": bidirectional, "num_buckets": 32, "max_distance": 128}
    assert verify.check(bucket, convention="bucket_fn", spec=spec).status == "pass"
    report = verify.check(bucket, convention="bucket_fn", spec=spec | {"bidirectional": not bidirectional})
    assert report.status == "fail"


def test_xpos_of_x_transformers_is_wrong_under_a_growing_cache():
    """Keys that were scaled for a shorter text meet queries that are scaled for a longer one."""
    import torch

    module = pytest.importorskip("x_transformers.x_transformers")
    rotary = module.RotaryEmbedding(16, use_xpos=True, scale_base=64)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 32, generator=generator) / 5 for _ in range(3)]

    def turned(x, past, total, power):
        freqs, scale = rotary.forward_from_seq_len(total)
        freqs, scale = freqs[..., past:total, :], scale[..., past:total, :]
        return module.apply_rotary_pos_emb(x, freqs, scale**power)

    def model(x, cache=None):
        past = 0 if cache is None else cache[0].shape[2]
        total = past + x.shape[1]
        q, k, v = ((x @ w).unflatten(-1, (2, 16)).transpose(1, 2) for w in weights)
        q, k = turned(q, past, total, 1), turned(k, past, total, -1)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        seen = torch.ones(x.shape[1], total, dtype=torch.bool).tril(past)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return out.transpose(1, 2).flatten(2), (k, v)

    spec = {"kind": "decode_equivalence", "encoding": "xpos", "dim": 32, "heads": 2, "head_dim": 16, "scale_base": 64}
    report = verify.check(model, convention="cached_model", spec=spec)
    assert report.status == "fail"
    assert report.causes[0].code.startswith("xpos.")
