"""posenc.hf.use with rope_parameters: a loaded model with a longer context."""

import copy
import json

import pytest
import torch

pytest.importorskip("transformers")

import posenc
from interop.rotary_models import BASES, DYNAMIC, YARN, built, text
from posenc.extend.stretch import METHODS, stretch
from posenc.extend.write import write
from posenc.verify.configs import judge
from strategies import refuses


def same(got, wanted, rounding=3e-5):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


EXTENDED = {
    "llama": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}, {}),
    "qwen3": ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}, {}),
    "phi": ({"rope_type": "linear", "factor": 2.0}, {}),
    "mistral": (DYNAMIC, {"max_position_embeddings": 8}),
    "gemma3": ({"full_attention": {"rope_type": "linear", "factor": 2.0}}, {}),
    "deepseek_v3": (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 16.0}, {}),
    "gpt_oss": ({"rope_type": "default", "rope_theta": 500.0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTENDED)
def test_an_extended_model_is_the_one_of_its_configuration(name):
    given, options = EXTENDED[name]
    model, ids = built(name, **options), text(20)
    plain, before = logits(model, ids), copy.deepcopy(model.config.to_dict())
    posenc.hf.use(model)
    for _ in range(2):
        posenc.hf.use(model, rope_parameters=given)
    other = type(model)(type(model.config)(**before | {"rope_parameters": copy.deepcopy(model.config.rope_parameters)}))
    other.load_state_dict(model.state_dict())
    wanted = logits(other.eval(), ids)
    assert (wanted - plain).abs().max() > 1e-2
    same(logits(model, ids), wanted)
    own = model.config.rope_parameters
    assert {key: own[key] for key in given if key not in ("full_attention",)} == {
        key: value for key, value in given.items() if key != "full_attention"
    }
    posenc.hf.restore(model)
    assert model.config.to_dict() == before
    assert torch.equal(logits(model, ids), plain)


def test_what_an_extension_leaves_out_stays():
    model = built("gemma3")
    posenc.hf.use(model, {"full_attention": {"rope_type": "linear", "factor": 2.0}})
    assert model.config.rope_parameters["full_attention"] == {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    assert model.config.rope_parameters["sliding_attention"] == BASES["sliding_attention"]


def test_an_extended_model_is_saved_so(tmp_path):
    model = posenc.hf.use(built("llama"), EXTENDED["llama"][0])
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    same(logits(again, text(20)), logits(model, text(20)))


LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
# declared and trained length before, what is given, and what is declared after
LENGTHS = [
    ("qwen3", 40960, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
    ("llama", 4096, {"rope_type": "yarn", "factor": 2.5}, 10_240),
    ("llama", 4096, {"rope_type": "linear", "factor": 4.0}, 16_384),
    ("llama", 8192, EXTENDED["qwen3"][0] | {"original_max_position_embeddings": 8192}, 65_536),
    ("llama", 131_072, EXTENDED["qwen3"][0] | {"original_max_position_embeddings": 8192}, 131_072),  # Llama 3.1
    ("llama", 4096, LISTS | {"factor": 8.0}, 32_768),
    ("llama", 4096, LISTS | {"original_max_position_embeddings": 1024}, 4096),
    ("llama", 4096, DYNAMIC, 4096),  # which reads it as the trained length
    ("llama", 4096, {"rope_type": "default", "rope_theta": 5e5}, 4096),
    ("gemma3", 8192, {"full_attention": {"rope_type": "linear", "factor": 32.0}}, 32_768),  # 8 before
]


@pytest.mark.parametrize(("name", "before", "given", "after"), LENGTHS)
def test_the_declared_length_is_written_with_the_scaling(name, before, given, after, tmp_path):
    model = built(name, max_position_embeddings=before)
    for wanted in ({"rope_type": "linear", "factor": 16.0}, given) if name == "llama" else (given, given):
        posenc.hf.use(model, rope_parameters=wanted)
    assert model.config.max_position_embeddings == after
    model.config.save_pretrained(tmp_path)
    assert [f.code for f in judge(tmp_path).findings if f.level != "notice"] == []
    posenc.hf.restore(model)
    assert model.config.max_position_embeddings == before


HALF = {"base": {"rope_theta": 8e5}, "longrope": {key: LISTS[key] for key in ("short_factor", "long_factor")}}


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.rope_type])
def test_a_model_that_is_saved_has_the_fields_that_write_writes(method, tmp_path):
    model = built("llama", max_position_embeddings=40960)
    model.config.save_pretrained(tmp_path)
    longer = stretch(tmp_path, method, factor=4, trained_len=32768, options=HALF.get(method))
    wanted = json.loads(write(longer, "hf5").text)
    posenc.hf.use(model, rope_parameters=wanted)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert {key: saved[key] for key in wanted} == wanted
    if method in ("yarn", "llama3"):  # whose parameters imply the length
        posenc.hf.use(model, rope_parameters=longer.parameters)
        assert model.config.max_position_embeddings == wanted["max_position_embeddings"] == 131072
    posenc.hf.restore(model)
    assert model.config.max_position_embeddings == 40960


@pytest.mark.parametrize(
    ("name", "given", "kind", "words"),
    [
        ("llama", "yarn", TypeError, "rope_parameters must be a mapping as in a config.json; got 'yarn'"),
        ("llama", {}, ValueError, "rope_parameters must be a mapping"),
        ("llama", {"rope_type": "yran", "factor": 2.0}, ValueError, "rope_type must be one of"),
        ("llama", {"rope_type": "yarn", "factor": 0.5}, ValueError, "factor must be at least 1"),
        ("llama", {"rope_type": "linear"}, ValueError, "factor"),
        ("gemma3", {"rope_type": "linear", "factor": 2.0}, ValueError, "must have the kinds full_attention"),
        ("gptj", {"rope_type": "linear", "factor": 2.0}, ValueError, "this model has none"),
        ("llama", {"rope_parameters": YARN, "vocab_size": 7}, ValueError, "only max_position_embeddings is allowed"),
        (
            "llama",
            {"rope_parameters": YARN, "max_position_embeddings": 1},
            ValueError,
            "max_position_embeddings must be",
        ),
    ],
)
def test_parameters_that_do_not_fit(name, given, kind, words):
    model = posenc.hf.use(built(name))
    before, said = copy.deepcopy(model.config.to_dict()), str(posenc.hf.report(model))
    with pytest.raises(kind, match=words) as caught:
        posenc.hf.use(model, rope_parameters=given)
    assert "\n" not in str(caught.value)
    assert model.config.to_dict() == before
    assert str(posenc.hf.report(model)) == said


def test_a_mixture_of_families_is_used_whole():
    model = torch.nn.ModuleDict({"one": built("llama"), "two": built("gptj")})
    assert {part.name for part in posenc.hf.report(posenc.hf.use(model)).replaced} == {
        "one.model.rotary_emb",
        "two.transformer",
    }
    with refuses(ValueError, "rope_parameters are for one rotary part"):
        posenc.hf.use(torch.nn.ModuleDict({"a": built("llama"), "b": built("qwen2")}), YARN)
