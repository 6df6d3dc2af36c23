"""Packages as they are installed: what is right passes, and known faults are named."""

import importlib
import warnings
from functools import partial

import pytest
import torch

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
    assert report.causes[0].code in ("rope.config.scaling_ignored", "rope.config.theta_not_read")


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
    assert report.causes[0].smallest_case["position"] == 257


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


LATENT = SMALL | {"num_key_value_heads": 4, "max_position_embeddings": 4096, "qk_rope_head_dim": 32}
LATENT |= {"qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": 16}
TWO_SCALES = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
NOTHING = {}


def deepseek(version, function, options):
    """Return DeepSeek's rotation of the lanes that turn; the second version's table is complex."""
    name = f"deepseek_v{version}"
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    config = getattr(transformers, f"DeepseekV{version}Config")(**LATENT, **options)
    table, turn = getattr(module, f"DeepseekV{version}RotaryEmbedding")(config), getattr(module, function)
    subject = (table, turn)
    if version == 2:
        subject = (lambda x, ids: (table(x, ids), None), lambda q, k, both, _: turn(q, k, both))
    return subject, {"encoding": "rope", "head_dim": 32, "config": config.to_dict()}


@pytest.mark.parametrize("parameters", [NOTHING, YARN, TWO_SCALES], ids=["plain", "yarn", "two scales"])
@pytest.mark.parametrize(
    ("version", "function", "layout", "status"),
    [
        (2, "apply_rotary_emb", "interleaved", "pass"),
        (3, "apply_rotary_pos_emb", "half", "pass"),
        # it turns neighbours and puts even lanes before odd ones, in queries and keys alike
        (3, "apply_rotary_pos_emb_interleave", "interleaved", "equivalent"),
    ],
)
def test_deepseeks_rotations_are_right(version, function, layout, status, parameters):
    options = {"rope_parameters": parameters} if parameters else {}
    subject, spec = deepseek(version, function, options)
    report = verify.check(subject, convention="hf_rope", spec=spec | {"layout": layout})
    assert (report.status, report.causes) == (status, ())
    assert report.definitions == ("yarn@transformers-5",) if parameters else ("rope",)
    assert ("dimensions are returned in another order" in report.because) == (status == "equivalent")
    other = {"half": "interleaved", "interleaved": "half"}[layout]
    report = verify.check(subject, convention="hf_rope", spec=spec | {"layout": other})
    assert report.causes[0].code == "rope.layout.wrong_pairing"


@pytest.mark.parametrize(("version", "function"), [(2, "apply_rotary_emb"), (3, "apply_rotary_pos_emb_interleave")])
def test_and_wrong_once_its_scaling_is_lost(version, function):
    subject, _ = deepseek(version, function, {})
    _, spec = deepseek(version, function, {"rope_parameters": TWO_SCALES})
    report = verify.check(subject, convention="hf_rope", spec=spec | {"layout": "interleaved"})
    assert report.causes[0].code == "rope.config.scaling_ignored"


def bias_of(name):
    """Return build_alibi_tensor of a model, which has one row for all queries."""
    build = importlib.import_module(f"transformers.models.{name}.modeling_{name}").build_alibi_tensor

    def bias(heads, q_len, k_len, dtype=torch.float32):
        return build(torch.ones(1, k_len, dtype=torch.long), heads, dtype).view(heads, 1, k_len)

    return bias


@pytest.mark.parametrize("heads", [{}, {"heads": 16}, {"heads": 12}, {"heads": 71}])
def test_blooms_alibi_is_equivalent(heads):
    spec = {"encoding": "alibi"} | heads
    report = verify.check(bias_of("bloom"), convention="bias_fn", spec=spec)
    assert (report.status, report.causes) == ("equivalent", ())
    assert "a constant is added to each row" in report.because
    assert report.definitions == ("alibi@authors",)
    turned = verify.check(lambda *sizes: -bias_of("bloom")(*sizes), convention="bias_fn", spec=spec)
    assert turned.causes[0].code == "alibi.sign"


def test_mpts_alibi_is_equivalent():
    build = importlib.import_module("transformers.models.mpt.modeling_mpt").build_mpt_alibi_tensor

    def bias(heads, q_len, k_len, most=8):
        return build(heads, k_len, most)

    spec = {"encoding": "alibi"}
    assert verify.check(bias, convention="bias_fn", spec=spec).status == "equivalent"
    wide = verify.check(partial(bias, most=16), convention="bias_fn", spec=spec | {"heads": 8})
    assert wide.causes[0].code == "alibi.slopes.bias_max"
    reported = spec | {"heads": 8, "config": {"attn_config": {"alibi_bias_max": 16}}}
    assert verify.check(partial(bias, most=16), convention="bias_fn", spec=reported).status == "equivalent"


FALCONS = [
    {"encoding": "alibi@falcon"},
    {"encoding": "alibi", "variant": "falcon", "heads": 71},
    {"encoding": "alibi", "heads": 8, "config": {"model_type": "falcon", "alibi": True}},
]


@pytest.mark.parametrize("spec", FALCONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_falcons_alibi_is_right_by_its_own_definition(spec, dtype):
    report = verify.check(partial(bias_of("falcon"), dtype=dtype), convention="bias_fn", spec=spec)
    assert (report.status, report.definitions) == ("pass", ("alibi@falcon",))


@pytest.mark.parametrize("heads", [{}, {"heads": 8}, {"heads": 16}, {"heads": 71}])
def test_and_by_plain_alibi_its_rounding_is_named(heads):
    report = verify.check(bias_of("falcon"), convention="bias_fn", spec={"encoding": "alibi"} | heads)
    assert (report.status, report.definitions) == ("fail", ("alibi@authors",))
    (cause,) = report.causes
    assert cause.code == "alibi.definition.other_version"
    assert "this is alibi@falcon, rounded to bfloat16, but alibi@authors is declared" in cause.message
    assert '"variant": "falcon"' in cause.fix


@pytest.mark.parametrize("spec", FALCONS)
def test_full_precision_is_another_definition_than_falcons(spec):
    report = verify.check(bias_of("bloom"), convention="bias_fn", spec=spec)
    assert (report.status, report.definitions) == ("fail", ("alibi@falcon",))
    assert report.causes[0].code == "alibi.definition.other_version"
    assert "this is alibi@authors, computed in full precision, but" in report.causes[0].message
    if spec.get("heads") == 8:  # whose slopes are powers of two: what is left shows with many keys
        assert report.causes[0].smallest_case["k_len"] > 256


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda bias, *sizes: -bias(*sizes), "alibi.sign"),
        (lambda bias, *sizes: bias(*sizes) / 8, "alibi.scale.applied_to_bias"),
        (lambda bias, *sizes: bias(*sizes) * (sizes[1] == sizes[2]), "alibi.kv_cache.bias_zero"),
        (lambda bias, *sizes: bias(*sizes).roll(int(sizes[1] != sizes[2]), 2), "alibi.mismatch"),
        (lambda bias, *sizes: bias(sizes[0], *sizes[1:]).flip(2), None),
    ],
)
def test_faults_beside_falcons_rounding_are_found(spoil, code):
    report = verify.check(partial(spoil, bias_of("falcon")), convention="bias_fn", spec=FALCONS[0])
    assert report.status == "fail"
    assert code in (None, report.causes[0].code)


def test_constants_of_rows_are_no_fault_of_falcons():
    def bias(heads, q_len, k_len):
        return bias_of("falcon")(heads, q_len, k_len) + torch.arange(q_len)[:, None]

    report = verify.check(bias, convention="bias_fn", spec=FALCONS[0])
    assert (report.status, report.causes) == ("equivalent", ())


def test_falcons_score_mod_and_slopes():
    rows = bias_of("falcon")(16, 1, 2048)

    def mod(score, b, h, q, k):
        return score + rows[h, 0, k]

    spec = {"encoding": "alibi@falcon", "heads": 16}
    assert verify.check(mod, convention="score_mod", spec=spec).status == "pass"
    plain = verify.check(mod, convention="score_mod", spec=spec | {"encoding": "alibi"})
    assert "alibi@falcon" in plain.causes[0].message

    def slopes(n):
        return bias_of("falcon")(n, 1, 2)[:, 0, 1].tolist()

    assert verify.check(slopes, convention="slopes_fn", spec={"encoding": "alibi@falcon"}).status == "pass"
    report = verify.check(slopes, convention="slopes_fn", spec={"encoding": "alibi"})
    assert report.causes[0].code == "alibi.precision.slopes_fp16"
    report = verify.check(lambda n: bias_of("bloom")(n, 1, 2)[:, 0, 1], convention="slopes_fn", spec=FALCONS[0])
    assert report.causes[0].code == "alibi.definition.other_version"
    report = verify.check(lambda n: [-s for s in slopes(n)], convention="slopes_fn", spec=FALCONS[0])
    assert report.causes[0].code == "alibi.sign"


def test_a_version_that_nobody_defined_is_wrong_use():
    with pytest.raises(ValueError, match="unknown definition 'alibi@unknown'. Use one of alibi@authors"):
        verify.check(bias_of("bloom"), convention="bias_fn", spec={"encoding": "alibi@unknown"})
    geometric = {"encoding": "alibi@geometric", "heads": 12}
    report = verify.check(bias_of("bloom"), convention="bias_fn", spec=geometric)
    assert (report.status, report.definitions) == ("fail", ("alibi@geometric",))
    assert verify.check(bias_of("bloom"), convention="bias_fn", spec=geometric | {"heads": 16}).status == "equivalent"


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
