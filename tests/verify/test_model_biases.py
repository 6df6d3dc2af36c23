"""Models that add a bias for distance (T5, Falcon, BLOOM, MPT): right as transformers has them, found where spoilt."""

import json
import math

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers.models.falcon import modeling_falcon
from transformers.models.t5 import modeling_t5
from typer.testing import CliRunner

from posenc import ALiBi
from posenc.cli import app
from posenc.verify import codes, models
from small_models import build, finite, small

ALIBI = {"alibi": True}
SCALE, BIAS = "model.scores.scale", "model.bias.scale"


@pytest.fixture(autouse=True)
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def run_by(model, how):
    """Choose how attention runs, which `set_attn_implementation` refuses to do for Falcon."""
    for each in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
        each._attn_implementation_internal = how


def judged(name, spoil=None, how=None, **options):
    theirs = small(name, **options)
    model = build(theirs)
    run_by(model, how)
    if spoil is not None:
        spoil(model)
    return models.check_model(model, finite(theirs.to_dict()))


TWELVE = {"n_head": 12, "hidden_size": 96}
RIGHT = [
    *((name, how, {}) for name in ("t5", "mt5", "umt5") for how in ("eager", "sdpa")),
    ("t5", None, {"relative_attention_num_buckets": 20, "relative_attention_max_distance": 50}),
    ("falcon", "sdpa", ALIBI),
    ("falcon", "sdpa", ALIBI | {"num_attention_heads": 12, "hidden_size": 96}),
    ("falcon", "sdpa", ALIBI | {"multi_query": False, "bias": True}),
    ("falcon", "sdpa", ALIBI | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("bloom", None, {}),
    ("bloom", None, TWELVE),
    ("mpt", None, {}),
    ("mpt", None, {"n_heads": 12, "d_model": 96}),
    ("mpt", None, {"attn_config": {"alibi": True, "softmax_scale": 0.1}}),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "how", "options"), RIGHT)
def test_models_of_transformers_are_right(name, how, options):
    report = judged(name, how=how, **options)
    assert (report.status, report.causes) == ("pass", ()), report
    assert report.measured["scale_error"] < 1e-4
    assert report.measured["bias_error"] < 1e-4
    assert {one["status"] for one in report.measured["layers"]} == {"pass"}
    json.dumps(report.to_dict(), allow_nan=False)


def test_all_attentions_of_both_stacks_are_seen():
    layers = judged("t5").measured["layers"]
    assert [one["layer"] for one in layers if one["kind"] == "encoder"] == list(range(7))
    assert [one["layer"] for one in layers if one["kind"] == "decoder"] == list(range(6))
    assert [one["layer"] for one in layers if one["kind"] == "cross attention"] == list(range(6))
    assert {round(one["scale"], 4) for one in judged("bloom").measured["layers"]} == {0.25}


def test_a_model_is_as_before():
    theirs = small("t5")
    model = build(theirs)
    keys = {name: {*vars(m)} for name, m in model.named_modules()}
    model.train()
    models.check_model(model, finite(theirs.to_dict()))
    assert model.training
    assert model.config._attn_implementation == "keep_in_order"
    assert {name: {*vars(m)} for name, m in model.named_modules()} == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# ---- spoilt models


def attentions(model):
    return [m for m in model.modules() if type(m).__name__ == "T5Attention"]


def by_root(model):
    for one in attentions(model):
        one.scaling = one.key_value_proj_dim**-0.5


def by_root_in_queries(model):
    for one in attentions(model):
        one.q.register_forward_hook(lambda _module, _args, out: out / 4)


def by_root_in_one(model):
    model.encoder.block[3].layer[0].SelfAttention.scaling = 0.25


def by_root_in_weights(model):
    """What a checkpoint holds is no fault of the code: its weights may be anything."""
    with torch.no_grad():
        for one in attentions(model):
            one.q.weight.div_(4)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (by_root, "layers 0, 1, 2, 3, 4, 5, 6 (encoder); layers 0, 1, 2, 3, 4, 5 (decoder); "),
        (by_root_in_queries, "layers 0, 1, 2, 3, 4, 5 (cross attention) multiplies scores by 0.25"),
        (by_root_in_one, "layer 3 (encoder) multiplies scores by 0.25 (divided by the root of head_dim)"),
    ],
)
@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_t5_with_the_root_of_others(spoil, words, how):
    report = judged("t5", spoil, how)
    assert (report.status, [cause.code for cause in report.causes]) == ("fail", [SCALE])
    assert words in report.causes[0].message
    assert report.measured["scale_error"] == pytest.approx(0.75)


def test_t5_that_divides_its_bias_too(monkeypatch):
    def eager(module, q, k, v, mask, scaling=None, dropout=0.0, position_bias=None, **_):
        scores = (q @ k.mT + (0 if position_bias is None else position_bias)) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_t5, "eager_attention_forward", eager)
    report = judged("t5", how="eager")
    assert [cause.code for cause in report.causes] == [SCALE]
    assert "divided by the root of head_dim" in report.causes[0].message


def test_weights_are_no_fault():
    assert judged("t5", by_root_in_weights).status == "pass"


BUILT = modeling_falcon.build_alibi_tensor


def times(factor):
    return lambda *args, **named: BUILT(*args, **named) * factor


def reversed_heads(mask, n_heads, dtype):
    return BUILT(mask, n_heads, dtype).unflatten(0, (len(mask), n_heads)).flip(1).flatten(0, 1)


def full_precision(mask, n_heads, dtype):
    bias = ALiBi(n_heads=n_heads, sides="key").dense(torch.tensor([0]), torch.arange(mask.shape[1]))
    return bias[0].repeat(len(mask), 1, 1).to(dtype)


SPOILT = [
    (times(4), BIAS, "the bias is added after scores are divided by the root of head_dim, and not before"),
    (times(0.25), BIAS, "divided by the root of head_dim twice"),
    (times(2), BIAS, "adds 2 times the bias for distance (added twice)"),
    (times(1.3), BIAS, "adds 1.3 times the bias for distance"),
    (times(-1), "model.bias.sign", "with the other sign"),
    (times(0), "model.bias.missing", "adds no bias for distance"),
    (reversed_heads, "model.bias.mismatch", "with its heads in reverse order"),
    (full_precision, "model.bias.mismatch", "in full precision, where Falcon rounds"),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("built", "code", "words"), SPOILT)
def test_falcon_with_another_bias(monkeypatch, built, code, words):
    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", built)
    # widths of a head whose root is 4, and a number of heads whose slopes bfloat16 does not hold
    report = judged("falcon", how="sdpa", num_attention_heads=12, hidden_size=192, **ALIBI)
    assert (report.status, [cause.code for cause in report.causes]) == ("fail", [code])
    assert words in report.causes[0].message
    assert report.measured["first_wrong_layer"] == 0
    assert "divide the sum by the root of head_dim" in report.causes[0].help


def test_the_other_code_of_falcon_is_judged_by_itself():
    """transformers 5.23 hands Falcon's eager attention the bias and a mask that holds it already."""
    report = judged("falcon", how="eager", **ALIBI)
    assert [cause.code for cause in report.causes] in ([], [BIAS])
    assert all("added twice" in cause.message for cause in report.causes)


def test_slopes_that_mpt_does_not_read():
    """transformers 5.23 forms MPT's slopes by 8 whatever alibi_bias_max says, and MosaicML's own code reads it."""
    report = judged("mpt", attn_config={"alibi": True, "alibi_bias_max": 4})
    assert [cause.code for cause in report.causes] in ([], ["model.bias.mismatch"])
    assert all("by slopes of alibi_bias_max 8, where its" in cause.message for cause in report.causes)


def without_bias(model):
    def hook(_module, args, kwargs):
        return args, {**kwargs, "position_bias": torch.zeros_like(kwargs["position_bias"])}

    model.decoder.block[5].layer[0].SelfAttention.register_forward_pre_hook(hook, with_kwargs=True)


def both_ways(model):
    for block in model.decoder.block:
        block.layer[0].SelfAttention.is_decoder = False


def keys_first(model):
    table = model.encoder.block[0].layer[0].SelfAttention
    built = table.compute_bias
    table.compute_bias = lambda *args, **named: built(*args, **named).mT


def across(model):
    def hook(_module, args, kwargs):
        return args, {**kwargs, "position_bias": torch.arange(256.0).expand(1, 4, 200, 256) / 100}

    model.decoder.block[2].layer[1].EncDecAttention.register_forward_pre_hook(hook, with_kwargs=True)


def softer(model):
    model.blocks[2].attn.softmax_scale = 1 / 16


def divided(model):
    model.h[2].self_attention.beta = 0.25


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "spoil", "code", "words"),
    [
        ("t5", without_bias, "model.bias.missing", "layer 5 (decoder) adds no bias"),
        ("t5", both_ways, "model.bias.mismatch", "(decoder) forms its bias with buckets that look both ways"),
        ("t5", keys_first, "model.bias.mismatch", "(encoder) forms its bias with queries and keys exchanged"),
        ("t5", across, "model.bias.unexpected", "(cross attention) adds a bias for position"),
        ("mpt", softer, SCALE, "layer 2 (alibi) multiplies scores by 0.0625 (divided by head_dim"),
        ("bloom", divided, BIAS, "layer 2 (alibi) adds 0.25 times the bias for distance (divided by the root of"),
    ],
)
def test_other_faults_are_named_by_layer(name, spoil, code, words):
    report = judged(name, spoil)
    assert (report.status, report.causes[0].code) == ("fail", code)
    assert words in report.causes[0].message
    assert codes.rule(code).fix


def test_what_no_product_explains_cannot_be_told(monkeypatch):
    def eager(module, q, k, v, mask, scaling=None, dropout=0.0, position_bias=None, **_):
        weights = (5 * torch.tanh(q @ k.mT) + (0 if mask is None else mask)).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_t5, "eager_attention_forward", eager)
    report = judged("t5", how="eager")
    assert (report.status, report.causes) == ("cannot_tell", ())
    assert "no multiple of the products" in report.because


# ---- directories

LARGE = {
    "t5": {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128, "vocab_size": 32128}
    | {"num_decoder_layers": 24, "relative_attention_num_buckets": 32},
    "falcon": {"alibi": True, "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32}
    | {"vocab_size": 65024, "multi_query": True, "new_decoder_architecture": False, "bias": False},
    "bloom": {"hidden_size": 14336, "n_head": 112, "n_layer": 70, "vocab_size": 250880},
    "mpt": {"d_model": 7168, "n_heads": 64, "n_layers": 48, "vocab_size": 50432}
    | {"attn_config": {"alibi": True, "alibi_bias_max": 8, "softmax_scale": None}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_models_are_built_small_from_their_configuration(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name, **LARGE[name]}))
    report = models.verify_model(tmp_path)
    assert (report.status, report.causes) == ("pass", ()), report
    assert report.measured["weights"] == "random"


@pytest.mark.slow
def test_the_command_says_it(tmp_path):
    """The command's page has a line for each kind of layer, though nothing turns."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **LARGE["t5"]}))
    done = CliRunner().invoke(app, ["verify-model", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for words in ("layers 0 to 23  encoder: pass", "layers 0 to 23  cross attention: pass", "positions up to 255"):
        assert words in done.output
