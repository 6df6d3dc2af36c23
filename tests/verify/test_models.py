"""`posenc.verify.models`: real small models of transformers are right, and spoilt ones are named by layer and cause."""

import copy
import functools
import json

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

from transformers.models.llama import modeling_llama

from posenc.verify import models, rules
from small_models import build, finite, small


def scaled(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


LATENT = {"num_key_value_heads": 4}
TWO = {"factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 64}
YARN = scaled("yarn", factor=8.0, original_max_position_embeddings=64)
TRAINED = {"original_max_position_embeddings": 512}
LONG = scaled("longrope", short_factor=[1.0] * 8, long_factor=[1.0 + i for i in range(8)], **TRAINED)
LONG |= TRAINED | {"max_position_embeddings": 4096}


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
    if options == YARN:
        assert {round(one["gain"], 4) for one in measured["layers"]} == {1.2079}  # 0.1 ln 8 + 1
    if name in ("cohere2", "smollm3", "llama4_text"):
        assert [one["layer"] for one in measured["layers"] if one["status"] == "no rotation"] == [3]
    assert all(cosine > 0.9999 for _, cosine in measured["mean_cos_by_position"])
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("floor_scale", [3, 8192])
def test_queries_that_grow_by_the_count_of_tokens_are_no_rotation(floor_scale):
    """transformers 5.23 counts columns of a batch, which a floor_scale of 8192 hides in short texts."""
    report = judged("llama4_text", num_hidden_layers=4, floor_scale=floor_scale, attn_scale=0.4)
    assert report.measured["first_wrong_layer"] is None
    assert {cause.code for cause in report.causes} <= {"model.padding.left"}


ONLY = "texts of more than {} tokens: the file allows no more positions"
NO_PATHS = "padded batches and a cache: the file allows {} positions, but the check needs a text of 24"


@pytest.mark.parametrize(
    ("name", "options", "status", "left"),
    [
        ("gptj", {"rotary_dim": 8, "n_positions": 128}, "pass", [ONLY.format(128)]),
        ("mpt", {"max_seq_len": 100}, "pass", [ONLY.format(100)]),
        ("llama", {"max_position_embeddings": 20}, "pass", [ONLY.format(20), NO_PATHS.format(20)]),
        ("codegen", {"rotary_dim": 8, "n_ctx": 12}, "cannot_tell", [NO_PATHS.format(12)]),
    ],
)
def test_texts_fit_into_what_the_file_allows(name, options, status, left):
    report = judged(name, **options)
    assert (report.status, report.not_judged) == (status, tuple(left)), report


def without_modules(model):
    """Project queries and keys by no module, so that the order of dimensions before they rotate is not seen."""
    for block in model.h:
        for name in ("q_proj", "k_proj"):
            weight = getattr(block.attn, name).weight
            delattr(block.attn, name)
            setattr(block.attn, name, functools.partial(F.linear, weight=weight))


def test_pairs_that_no_module_shows_are_not_judged():
    report = judged("gptj", without_modules, rotary_dim=8)
    left = "which dimensions are pairs in layers 0, 1, 2, 3, 4, 5, 6: no module returns its unrotated vectors"
    assert (report.status, report.not_judged) == ("pass", (left,))


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


def given(layer, change):
    """Change the cos and sin that one layer is given."""

    def spoil(model):
        def hook(_module, args, kwargs):
            x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            at = change(*kwargs["position_embeddings"], model, x, kwargs["position_ids"])
            return args, {**kwargs, "position_embeddings": at}

        model.layers[layer].self_attn.register_forward_pre_hook(hook, with_kwargs=True)

    return spoil


def tables(layer, change):
    """Give one layer cos and sin of its own: from a copy of the model's module, which `change` spoils."""

    def formed(_cos, _sin, model, x, pos):
        own = copy.deepcopy(model.rotary_emb)
        change(own)
        return own(x, pos)

    return given(layer, formed)


def frequencies(layer, change):
    return tables(layer, lambda own: own.inv_freq.copy_(change(own.inv_freq)))


def by_base(base):
    return lambda f: base ** (-torch.arange(len(f)) / len(f))


def no_gain(own):
    own.attention_scaling = 1.0


def counted(cos, *_):
    """As a module does that counts 0, 1, 2, ... by itself."""
    angles = torch.outer(torch.arange(cos.shape[1]), by_base(1e4)(torch.ones(cos.shape[-1] // 2)))
    angles = torch.cat([angles, angles], -1).expand(cos.shape)
    return angles.cos(), angles.sin()


def local_in_layer_5(model):
    kept = []
    given(0, lambda cos, sin, *_: kept.append((cos, sin)) or (cos, sin))(model)
    given(5, lambda *_: kept[-1])(model)


def rotates_in_layer_3(model):
    model.layers[3].self_attn.use_rope = True


def short_beyond_its_length(model):
    model.rotary_emb.long_inv_freq = model.rotary_emb.original_inv_freq.clone()


SPOILT = [
    ("llama", given(2, lambda cos, sin, *_: (cos * 1.1, sin * 1.1)), 2, "gain", {}, "vectors by 1.1, but its config"),
    ("llama", given(0, lambda cos, sin, *_: (torch.ones_like(cos), torch.zeros_like(sin))), 0, "missing", {}, ""),
    ("llama", given(4, counted), 4, "missing", {}, ""),
    ("llama", given(4, lambda cos, sin, *_: (cos, sin * float("nan"))), 4, None, {}, ""),
    ("qwen3", frequencies(4, by_base(123456.0)), 4, "base", {}, "base 123456, but its configuration has 10000"),
    ("gpt_oss", frequencies(6, by_base(150000.0)), 6, "scaling", {}, ""),
    ("mistral", frequencies(3, lambda f: f / 4), 3, "position_scale", {}, ""),
    ("llama", frequencies(1, lambda f: f.flip(0)), 1, "mismatch", {}, ""),
    ("llama", frequencies(4, by_base(1e4)), 4, "scaling", YARN, ""),
    ("llama", tables(5, no_gain), 5, "gain", YARN, ""),
    ("gemma3_text", local_in_layer_5, 5, "other_kind", {}, "like layers of kind sliding_attention"),
    ("smollm3", rotates_in_layer_3, 3, "unexpected", {}, ""),
    ("phi3", short_beyond_its_length, 0, "length", LONG, ""),
]


@pytest.mark.sample(7)
@pytest.mark.parametrize(("name", "spoil", "layer", "code", "options", "words"), SPOILT)
def test_the_first_wrong_layer_is_named_with_its_cause(name, spoil, layer, code, options, words):
    wanted = "model.not_finite" if code is None else f"model.rotation.{code}"
    report = judged(name, spoil, **options)
    first = [cause.code for cause in report.causes if cause.code.startswith(("model.rotation", "model.not_finite"))]
    assert (report.status, report.measured["first_wrong_layer"], first) == ("fail", layer, [wanted])
    wrong = [one["layer"] for one in report.measured["layers"] if one["status"] == "wrong"]
    assert wrong == [layer] or name == "phi3"
    assert ("layers 0, " if name == "phi3" else f"layer {layer} ") in report.causes[0].message
    assert words in report.causes[0].message
    assert rules.find(wanted).fix


ROTATE = modeling_llama.apply_rotary_pos_emb


def neighbours(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = (t[:, None, :, : t.shape[-1] // 2] for t in (cos, sin))
    parts = ((x[..., 0::2], x[..., 1::2]) for x in (q, k))
    return [torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2) for a, b in parts]


def only_queries(q, k, cos, sin, unsqueeze_dim=1):
    return ROTATE(q, k, cos, sin)[0], k


def keys_the_other_way(q, k, cos, sin, unsqueeze_dim=1):
    return ROTATE(q, q, cos, sin)[0], ROTATE(k, k, cos, -sin)[0]


@pytest.mark.parametrize(
    ("rotate", "code", "words"),
    [(neighbours, "pairing", ""), (only_queries, "missing", "(keys only)"), (keys_the_other_way, "mismatch", "")],
)
def test_a_program_that_rotates_otherwise(monkeypatch, rotate, code, words):
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
    report = judged("llama", num_hidden_layers=1)
    assert fault(report) == ("fail", 0, [f"model.rotation.{code}"])
    assert words in report.causes[0].message


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


def test_what_changes_no_score_is_equivalent():
    report = judged("llama", given(2, lambda cos, sin, *_: (cos, -sin)))
    assert (report.status, report.measured["first_wrong_layer"]) == ("equivalent", None)
    assert "the opposite direction" in report.because
    assert report.measured["layers"][2]["status"] == "equivalent"
