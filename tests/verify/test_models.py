"""`posenc.verify.models`: real small models of transformers are right, and spoilt ones are named by layer and cause."""

import copy
import json
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

import transformers
from transformers.models.llama import modeling_llama

from posenc.interop import convert_checkpoint
from posenc.verify import models, rules
from posenc.verify.models import loading
from small_models import build, finite, small
from strategies import refuses


def scaled(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


LATENT = {"num_key_value_heads": 4}
TWO = {"factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 64}
YARN = scaled("yarn", factor=8.0, original_max_position_embeddings=64)
LONG = scaled(
    "longrope",
    short_factor=[1.0] * 8,
    long_factor=[1.0 + i for i in range(8)],
    original_max_position_embeddings=512,
)
LONG |= {"original_max_position_embeddings": 512, "max_position_embeddings": 4096}


def made(name, **options):
    """Return a small model, and its configuration as a file would hold it."""
    theirs = small(name, **options)
    return build(theirs), finite(theirs.to_dict())


def judged(name, spoil=None, **options):
    model, fields = made(name, **options)
    if spoil is not None:
        spoil(model)
    return models.check_model(model, fields)


def fault(report):
    return report.status, report.measured["first_wrong_layer"], [cause.code for cause in report.causes]


# ---- models as they are

PLAIN = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma4_text", "phi", "phi3", "gpt_neox", "cohere",
    "cohere2", "glm4", "smollm3", "gpt_oss", "llama4_text", "mixtral", "qwen2_moe", "minimax", "lfm2", "granite",
    "olmo2", "stablelm", "starcoder2", "helium", "persimmon", "exaone4", "ernie4_5", "nanochat", "falcon",
    "hunyuan_v1_dense",  # normalises what it has rotated
    "hrm_text", "gemma3n_text",
)  # fmt: skip
RIGHT = [
    *((name, {}) for name in PLAIN),
    *((name, LATENT) for name in ("deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite")),
    *((name, {"rotary_dim": 8}) for name in ("gptj", "codegen")),
    *(("phi3", LONG), ("llama", YARN), ("qwen3", YARN)),
    ("qwen2_vl_text", scaled("yarn", factor=8.0, original_max_position_embeddings=64, mrope_section=[2, 3, 3])),
    ("glm4v_text", scaled("default", mrope_section=[1, 1, 2], partial_rotary_factor=0.5)),
    ("llama", scaled("dynamic", factor=4.0) | {"max_position_embeddings": 512}),
    ("deepseek_v3", LATENT | scaled("yarn", **TWO)),
]
NO_CACHE = [
    ("qwen3_5_text", {"head_dim": 32}),  # text, whose layers without position count on three axes too
    ("openai_privacy_filter", {}),  # the root of head_dim is divided out of queries and keys, not of scores
    ("esm", {"position_embedding_type": "rotary"}),
    ("olmo_hybrid", {}),
]


@pytest.mark.sample(7)
@pytest.mark.parametrize(("name", "options"), [*RIGHT, *NO_CACHE])
def test_models_of_transformers_are_right(name, options):
    report = judged(name, **options)
    assert (report.status, report.causes) == ("pass", ()), report
    assert report.not_judged == () or (name, options) in NO_CACHE
    measured = report.measured
    assert measured["first_wrong_layer"] is None
    assert measured["largest_angle_error"] < 0.06  # at 131071, of float32
    assert (measured["gain_error"] or 0.0) < 1e-6
    assert all(cosine > 0.9999 for _, cosine in measured["mean_cos_by_position"])
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("name", "still"), [("cohere2", [3]), ("smollm3", [3]), ("llama4_text", [3])])
def test_layers_without_rotation_are_said_to_be_so(name, still):
    layers = judged(name).measured["layers"]
    assert [one["layer"] for one in layers if one["status"] == "no rotation"] == still
    assert {one["status"] for one in layers} == {"pass", "no rotation"}


@pytest.mark.parametrize("floor_scale", [3, 8192])
def test_queries_that_grow_by_the_count_of_tokens_are_no_rotation(floor_scale):
    """transformers 5.23 counts columns of a batch, which a floor_scale of 8192 hides in short texts."""
    report = judged("llama4_text", num_hidden_layers=4, floor_scale=floor_scale, attn_scale=0.4)
    assert report.measured["first_wrong_layer"] is None
    assert {cause.code for cause in report.causes} <= {"model.padding.left"}


def test_files_marked_with_another_pairing_are_named(tmp_path):
    config = small("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "half")
    convert_checkpoint(tmp_path / "half", tmp_path / "interleaved", to="interleaved")
    assert models.verify_model(tmp_path / "half").status == "pass"
    found = models.verify_model(tmp_path / "interleaved")
    assert [cause.code for cause in found.causes] == ["model.rotation.pairing"]
    assert "marked with the pairing interleaved, and transformers rotates llama by half" in found.causes[0].message


def test_gains_are_seen():
    layers = judged("llama", **YARN).measured["layers"]
    assert {round(one["gain"], 4) for one in layers} == {1.2079}  # 0.1 ln 8 + 1


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_model_is_as_before(name):
    model, fields = made(name)
    keys = {name: {*vars(m)} for name, m in model.named_modules()}
    model.train()
    models.check_model(model, fields)
    assert model.training
    assert model.config._attn_implementation == "keep_in_order"
    assert {name: {*vars(m)} for name, m in model.named_modules()} == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_cannot_be_told():
    model, fields = made("llama")
    bert = small("bert")
    assert models.check_model(model, {**fields, "model_type": "brandnew"}).status == "cannot_tell"
    assert models.check_model(build(bert), finite(bert.to_dict())).status == "cannot_tell"
    model.forward = None
    assert "does not run" in models.check_model(model, fields).because


# ---- models that are spoilt in one layer


def tables(layer, change):
    """Give one layer cos and sin of its own: from a copy of the model's, which `change` spoils."""

    def spoil(model):
        own = copy.deepcopy(model.rotary_emb)
        change(own)

        def hook(_module, args, kwargs):
            at = own(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0], kwargs["position_ids"])
            return args, {**kwargs, "position_embeddings": at}

        model.layers[layer].self_attn.register_forward_pre_hook(hook, with_kwargs=True)

    return spoil


def given(layer, change):
    """Change the cos and sin that one layer is given."""

    def spoil(model):
        def hook(_module, args, kwargs):
            return args, {**kwargs, "position_embeddings": change(*kwargs["position_embeddings"])}

        model.layers[layer].self_attn.register_forward_pre_hook(hook, with_kwargs=True)

    return spoil


def frequencies(layer, change):
    return tables(layer, lambda own: own.inv_freq.copy_(change(own.inv_freq)))


def by_base(base):
    return lambda f: base ** (-torch.arange(len(f)) / len(f))


def neighbours(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = (t[:, None, :, : t.shape[-1] // 2] for t in (cos, sin))

    def turned(x):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    return turned(q), turned(k)


def attention(turn):
    """Return an attention of another program."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **_):
        rows, n, _ = hidden_states.shape
        parts = (p(hidden_states).view(rows, n, -1, self.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.transpose(1, 2) for part in parts)
        q, k = turn(q, k, *position_embeddings)
        out = F.scaled_dot_product_attention(q, k, v, attention_mask, is_causal=attention_mask is None, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, n, -1)), None

    return forward


def replaced(layer, turn):
    def spoil(model):
        module = model.layers[layer].self_attn
        module.forward = types.MethodType(attention(turn), module)

    return spoil


def only_queries(q, k, cos, sin):
    return modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)[0], k


def no_gain(own):
    own.attention_scaling = 1.0


def counted(cos, sin):
    """As a module does that counts 0, 1, 2, ... by itself."""
    angles = torch.outer(torch.arange(cos.shape[1]), by_base(1e4)(torch.ones(cos.shape[-1] // 2)))
    angles = torch.cat([angles, angles], -1).expand(cos.shape)
    return angles.cos(), angles.sin()


SPOILT = [
    ("llama", given(2, lambda cos, sin: (cos * 1.1, sin * 1.1)), 2, "gain", {}),
    ("llama", given(0, lambda cos, sin: (torch.ones_like(cos), torch.zeros_like(sin))), 0, "missing", {}),
    ("llama", given(4, counted), 4, "missing", {}),
    ("llama", given(4, lambda cos, sin: (cos, sin * float("nan"))), 4, None, {}),
    ("qwen3", frequencies(4, by_base(123456.0)), 4, "base", {}),
    ("gpt_oss", frequencies(6, by_base(150000.0)), 6, "scaling", {}),
    ("mistral", frequencies(3, lambda f: f / 4), 3, "position_scale", {}),
    ("llama", frequencies(1, lambda f: f.flip(0)), 1, "mismatch", {}),
    ("llama", frequencies(4, by_base(1e4)), 4, "scaling", YARN),
    ("llama", tables(5, no_gain), 5, "gain", YARN),
    ("llama", replaced(5, neighbours), 5, "pairing", {}),
    ("llama", replaced(3, only_queries), 3, "missing", {}),
]


@pytest.mark.sample(7)
@pytest.mark.parametrize(("name", "spoil", "layer", "code", "options"), SPOILT)
def test_the_first_wrong_layer_is_named_with_its_cause(name, spoil, layer, code, options):
    wanted = "model.not_finite" if code is None else f"model.rotation.{code}"
    report = judged(name, spoil, **options)
    first = [cause.code for cause in report.causes if cause.code.startswith(("model.rotation", "model.not_finite"))]
    assert (report.status, report.measured["first_wrong_layer"], first) == ("fail", layer, [wanted])
    assert [one["layer"] for one in report.measured["layers"] if one["status"] == "wrong"] == [layer]
    assert f"layer {layer} " in report.causes[0].message
    assert rules.find(wanted).fix


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("llama", given(2, lambda cos, sin: (cos * 1.1, sin * 1.1)), "rotates by 1.1, where its configuration says 1"),
        ("qwen3", frequencies(4, by_base(123456.0)), "rotates by base 123456, where its configuration says 10000"),
        ("llama", replaced(3, only_queries), "(keys only)"),
    ],
)
def test_numbers_of_messages(name, spoil, words):
    assert words in judged(name, spoil).causes[0].message


def test_a_global_layer_that_rotates_as_local_ones():
    def spoil(model):
        kept = {}

        def grab(_module, _args, kwargs):
            kept["local"] = kwargs["position_embeddings"]

        def use(_module, args, kwargs):
            return args, {**kwargs, "position_embeddings": kept["local"]}

        model.layers[0].self_attn.register_forward_pre_hook(grab, with_kwargs=True)
        model.layers[5].self_attn.register_forward_pre_hook(use, with_kwargs=True)

    report = judged("gemma3_text", spoil)
    assert fault(report) == ("fail", 5, ["model.rotation.other_kind"])
    assert "as layers of kind sliding_attention do" in report.causes[0].message


def test_a_layer_that_should_not_rotate():
    def spoil(model):
        model.layers[3].self_attn.use_rope = True

    assert fault(judged("smollm3", spoil)) == ("fail", 3, ["model.rotation.unexpected"])


@pytest.mark.parametrize(
    ("name", "theirs", "said", "code"),
    [
        ("llama", {}, {"rope_theta": 5e5}, "base"),
        ("llama", {}, scaled("linear", factor=4.0), "scaling"),
        ("phi", {}, {"partial_rotary_factor": 1.0}, "width"),
        ("phi", scaled("default", partial_rotary_factor=1.0), {"partial_rotary_factor": 0.5}, "width"),
        ("cohere2", {}, {"layer_types": ["sliding_attention"] * 7}, "missing"),
        ("gemma3_text", {}, {"layer_types": ["full_attention"] * 7}, "base"),
    ],
)
def test_a_configuration_that_says_something_else(name, theirs, said, code):
    """All its layers differ, or those of one kind."""
    model, fields = made(name, **theirs)
    parameters = fields.pop("rope_parameters")
    fields |= {"rope_theta": parameters.get("rope_theta", 1e4)} if "rope_theta" in parameters else {}
    if "layer_types" in said:
        fields["rope_parameters"] = parameters
    report = models.check_model(model, {**fields, **said})
    assert report.status == "fail"
    assert [cause.code for cause in report.causes] == [f"model.rotation.{code}"]


def test_short_frequencies_beyond_the_trained_length():
    def spoil(model):
        own = model.rotary_emb
        own.long_inv_freq = own.original_inv_freq.clone()

    assert fault(judged("phi3", spoil, **LONG)) == ("fail", 0, ["model.rotation.length"])


def test_what_changes_no_score_is_equivalent():
    report = judged("llama", given(2, lambda cos, sin: (cos, -sin)))
    assert (report.status, report.measured["first_wrong_layer"]) == ("equivalent", None)
    assert "the other way round" in report.because
    assert report.measured["layers"][2]["status"] == "equivalent"
    report = judged("llama", replaced(2, lambda q, k, cos, sin: (
        modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0],
        modeling_llama.apply_rotary_pos_emb(k, k, cos, -sin)[0],
    )))  # fmt: skip
    assert (report.status, report.causes[0].code) == ("fail", "model.rotation.mismatch")


# ---- directories


def saved(folder, name="llama", **options):
    theirs = small(name, **options)
    build(theirs).save_pretrained(folder)
    return folder


def test_weights_are_loaded(tmp_path):
    report = models.verify_model(saved(tmp_path))
    assert (report.status, report.measured["weights"], report.measured["weights_because"]) == ("pass", "loaded", "")
    report = models.verify_model(str(tmp_path), small=True)
    assert (report.status, report.measured["weights"]) == ("pass", "random")


def test_what_is_on_disk_is_the_truth(tmp_path, monkeypatch):
    saved(tmp_path, "llama", **YARN)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", neighbours)
    assert fault(models.verify_model(tmp_path)) == ("fail", 0, ["model.rotation.pairing"])


# as files in the hub have them, with sizes that are not small
LARGE = {
    "llama": {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
    | {"intermediate_size": 14336, "vocab_size": 128256, "rope_theta": 5e5, "max_position_embeddings": 131072}
    | {"bos_token_id": 128000, "eos_token_id": [128001, 128008], "torch_dtype": "bfloat16"}
    | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
       | {"original_max_position_embeddings": 8192}},
    "gemma3": {"text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
               | {"intermediate_size": 10240, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
               | {"sliding_window": 1024, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
               | {"max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4}},
    "deepseek_v3": {"hidden_size": 7168, "num_hidden_layers": 8, "num_attention_heads": 128, "n_routed_experts": 256}
    | {"num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "n_group": 8}
    | {"qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048}
    | {"num_experts_per_tok": 8, "topk_group": 4, "first_k_dense_replace": 3, "max_position_embeddings": 163840}
    | {"vocab_size": 129280, "rope_theta": 1e4, "rope_interleave": True}
    | {"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
       | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}},
    "t5": {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128, "vocab_size": 32128}
    | {"num_decoder_layers": 24, "relative_attention_num_buckets": 32},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_models_are_built_small_from_their_configuration(tmp_path, name):
    fields = {"model_type": name, **LARGE[name]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    report = models.verify_model(tmp_path)
    assert (report.status, report.causes) == ("pass", ()), report
    measured = report.measured
    assert (measured["weights"], measured["weights_because"]) == ("random", "there are no weights")
    inner = fields.get("text_config", fields)
    if name != "t5":
        assert len(measured["layers"]) == inner.get("num_hidden_layers", inner.get("n_layer"))
        assert measured["longest_position"] > 2000


def test_the_limit_of_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "LARGE", 1000)
    assert models.verify_model(saved(tmp_path)).measured["weights"] == "random"


def write(folder, **fields):
    (folder / "config.json").write_text(json.dumps(small("llama").to_dict() | fields))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda at: write(at, auto_map={"AutoModel": "evil.Model"}), "config.json has auto_map"),
        (lambda at: write(at, text_config={"auto_map": {"AutoModel": "o/r--e.M"}}), "text_config.auto_map"),
        (lambda at: (write(at), (at / "pytorch_model.bin").write_bytes(b"x")), "pytorch_model.bin' may be pickled"),
        (lambda at: (write(at), (at / "adapter_config.json").write_text("{}")), "adapter_config.json names"),
        (lambda at: (write(at), (at / "model.safetensors").write_bytes(b"x" * 99)), "model.safetensors"),
        (lambda at: (at / "config.json").write_text("{"), "is not JSON"),
        (lambda at: None, "holds no config.json"),
    ],
)
def test_unsafe_or_damaged_directories_are_refused_by_name(tmp_path, prepare, words):
    prepare(tmp_path)
    with refuses(ValueError, "verify-model: ", words):
        models.verify_model(tmp_path)


def test_code_in_a_directory_never_runs(tmp_path):
    saved(tmp_path)
    (tmp_path / "modeling_llama.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "configuration_llama.py").write_text("raise SystemExit('it ran')")
    before = {*sys.modules}
    assert models.verify_model(tmp_path).status == "pass"
    assert not [name for name in {*sys.modules} - before if "transformers_modules" in name]


def test_nothing_is_asked_of_the_hub(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with loading.offline():
        assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("1", True)
    assert ("HF_HUB_OFFLINE" in os.environ, constants.HF_HUB_OFFLINE) == (False, False)
    write(tmp_path, _attn_implementation="evil/kernel", attn_implementation="evil/kernel", transformers_weights="/x")
    assert models.verify_model(tmp_path).status == "pass"


def test_types_that_are_not_known_cannot_be_told(tmp_path):
    write(tmp_path, model_type="brandnew")
    report = models.verify_model(tmp_path)
    assert (report.status, "brandnew" in report.because) == ("cannot_tell", True)
