"""The rules of transformers 5.23 next to transformers itself, where it is installed in that version."""

import logging
from importlib import import_module

import pytest
import torch

from posenc.config.reading import Checked
from posenc.parity import read
from posenc.parity.compare import mean
from posenc.parity.loading import known

transformers = pytest.importorskip("transformers", minversion="5.23.0")
if transformers.__version__ != "5.23.0":
    pytest.skip(f"the rules are of 5.23.0, and {transformers.__version__} is installed", allow_module_level=True)
logging.getLogger("transformers").setLevel(logging.CRITICAL)

RULES = known()["hf@5.23.0"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 1024}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.01 * k for k in range(32)],
        "long_factor": [2.0 + 0.1 * k for k in range(32)], "original_max_position_embeddings": 1024}  # fmt: skip
BASE = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "head_dim": 64,
        "max_position_embeddings": 4096, "rope_theta": 5e5}  # fmt: skip


def without(scaling, *keys):
    """Return parameters without some keys."""
    return {key: value for key, value in scaling.items() if key not in keys}


CASES = {  # parameters, fields next to them, length of the text
    "default": (None, {}, 100),
    "linear": ({"rope_type": "linear", "factor": 4.0}, {}, 100),
    "linear without factor": ({"rope_type": "linear"}, {}, 100),
    "dynamic, short": ({"rope_type": "dynamic", "factor": 2.0}, {}, 100),
    "dynamic, at the longest": ({"rope_type": "dynamic", "factor": 2.0}, {}, 4096),
    "dynamic, long": ({"rope_type": "dynamic", "factor": 2.0}, {}, 8192),
    "yarn": (YARN, {}, 100),
    "yarn, original missing": (without(YARN, "original_max_position_embeddings"), {}, 100),
    "yarn, original null": ({**YARN, "original_max_position_embeddings": None}, {}, 100),
    "yarn, original next to it": (YARN, {"original_max_position_embeddings": 2048}, 100),
    "yarn, factor null": ({**YARN, "factor": None}, {}, 100),
    "yarn, factor missing": (without(YARN, "factor"), {}, 100),
    "yarn, attention_factor": ({**YARN, "attention_factor": 1.5}, {}, 100),
    "yarn, attention_factor null": ({**YARN, "attention_factor": None}, {}, 100),
    "yarn, attn_factor": ({**YARN, "attn_factor": 0.5}, {}, 100),
    "yarn, mscales": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}, {}, 100),
    "yarn, mscale 0": ({**YARN, "mscale": 0.0, "mscale_all_dim": 1.0}, {}, 100),
    "yarn, mscale by itself": ({**YARN, "mscale": 0.707}, {}, 100),
    "yarn, beta_fast 0": ({**YARN, "beta_fast": 0}, {}, 100),
    "yarn, beta_slow 0": ({**YARN, "beta_slow": 0}, {}, 100),
    "yarn, truncate": ({**YARN, "truncate": False}, {}, 100),
    "yarn, both words": ({**YARN, "type": "linear"}, {}, 100),
    "yarn, the old word": ({**without(YARN, "rope_type"), "type": "yarn"}, {}, 100),
    "longrope, at the original": (LONG, {}, 1024),
    "longrope, one more": (LONG, {}, 1025),
    "longrope, factor": ({**LONG, "factor": 2.0}, {}, 100),
    "longrope, attention_factor": ({**LONG, "attention_factor": 1.5}, {}, 100),
    "longrope, original next to it": (
        without(LONG, "original_max_position_embeddings"), {"original_max_position_embeddings": 1024}, 1025),
    "longrope, no long list": (without(LONG, "long_factor"), {}, 100),
    "llama3": (LLAMA3, {}, 100),
    "llama3, original missing": (without(LLAMA3, "original_max_position_embeddings"), {}, 100),
    "llama3, high missing": (without(LLAMA3, "high_freq_factor"), {}, 100),
    "an unknown type": ({"rope_type": "nothing", "factor": 2.0}, {}, 100),
}  # fmt: skip


def theirs(fields, text, kind=None):
    """Return frequencies and gain of a model's own rotary module, at the last position of a text; None if it raises."""
    module = import_module(f"transformers.models.{fields['model_type'].removesuffix('_text')}")
    name = {"llama": "Llama", "gemma3_text": "Gemma3Text"}[fields["model_type"]]
    try:
        settings = getattr(module, f"{name}Config").from_dict(dict(fields))
        code = import_module(f"{module.__name__}.modeling_{module.__name__.rpartition('.')[2]}")
        rotary = getattr(code, f"{name.removesuffix('Text')}RotaryEmbedding")(settings)
        rotary(torch.zeros(1), torch.tensor([[text - 1]]), *([kind] if kind else []))
    except Exception:  # of whatever kind: transformers wraps some
        return None
    prefix = f"{kind}_" if kind else ""
    return getattr(rotary, f"{prefix}inv_freq").tolist(), getattr(rotary, f"{prefix}attention_scaling")


def ours(fields, text, kind="full_attention"):
    """Return frequencies and gain by the rules; None where they say that transformers raises."""
    plain = without(fields, "rope_scaling", "rope_parameters")
    try:
        meanings = mean(Checked(fields))
    except (ValueError, TypeError):  # a configuration without meaning: what transformers makes of it is still known
        meanings = mean(Checked(plain))
    meant = next(one.rotary for one in meanings if one.rotary.layer_type == kind)
    found = read.read(Checked(fields), {}, RULES, meant, main=kind == "full_attention", length=None)
    if found.rotation is None:
        assert found.state == "error"
        return None
    return found.rotation.inv_freq(text).tolist(), found.rotation.gains(text)


def agree(fields, text, kind=None):
    """Compare the two."""
    real, rules = theirs(fields, text, kind), ours(fields, text, kind or "full_attention")
    assert (real is None) == (rules is None)
    if real is not None:
        assert rules[0] == pytest.approx(real[0], rel=1e-5)
        assert rules[1] == pytest.approx(real[1], rel=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_every_type_and_edge_case(case, spelling):
    scaling, more, text = CASES[case]
    agree({**BASE, **more, spelling: scaling}, text)


@pytest.mark.parametrize("where", ["inside", "next to it", "nowhere"])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_kinds_of_layers_have_parameters_of_their_own(kind, where):
    scaled = {**YARN, "rope_theta": 1e6, **({"truncate": False} if where == "inside" else {})}
    nested = {"full_attention": scaled, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    nested |= {"truncate": False} if where == "next to it" else {}
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 64}
    fields = {**BASE, **kinds, "model_type": "gemma3_text", "rope_parameters": nested}
    del fields["rope_theta"]
    agree(fields, 100, kind)


def test_the_old_spelling_of_gemma_3():
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 64}
    fields = {**BASE, **kinds, "model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 2e4,
              "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    for kind in ("full_attention", "sliding_attention"):
        agree(fields, 100, kind)
