"""Models of transformers in padded batches and with a cache: right as they are, and found where spoilt."""

import inspect
import json
import types

import pytest
import torch

pytest.importorskip("transformers")

from posenc.cli import run
from posenc.verify import models, rules
from small_models import build, finite, small

LEFT, RIGHT, STEPS, CHUNK = "model.padding.left", "model.padding.right", "model.cache.steps", "model.cache.chunk"


def judged(name, spoil=None, **options):
    theirs = small(name, **options)
    model = build(theirs)
    if spoil is not None:
        spoil(model)
    return models.check_model(model, finite(theirs.to_dict()))


NO_CACHE = {"decoding token by token with a cache, decoding several tokens in one call with a cache, decoding with a "
            "cache in a batch padded on the left": "the model returns no cache"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "left"),
    [
        *((name, {}, {}) for name in ("gpt2", "opt", "biogpt", "gpt_bigcode", "switch_transformers")),
        *((name, {}, NO_CACHE) for name in ("bert", "modernbert", "nomic_bert", "distilbert")),
        ("roberta", {"pad_token_id": 1}, NO_CACHE),  # counts from the row after that for padding
        ("jamba", {}, {"decoding several tokens in one call with a cache": "its Mamba layers restart in a call with "
                       "several tokens"}),
        ("hy_v4", {}, {"padded batches and a cache": "its indexer selects a few keys, and rounding may change "
                       "the selection"}),
        ("vit", {}, {"padded batches and a cache": "the model's input is pixel_values instead of tokens"}),
    ],
)  # fmt: skip
def test_what_differs_by_design_is_said_and_not_judged(name, options, left):
    report = judged(name, **options)
    assert (report.causes, report.not_judged) == ((), tuple(f"{what}: {why}" for what, why in left.items()))


def raises_for_one_token(model):
    def hook(_module, _args, given):
        if given["input_ids"].shape[1] == 1:
            raise TypeError("one token is too few")

    model.register_forward_pre_hook(hook, with_kwargs=True)


def test_a_path_that_raises_is_not_judged():
    report = judged("llama", raises_for_one_token)
    assert report.status == "pass"
    paths = "decoding token by token with a cache, decoding with a cache in a batch padded on the left"
    assert report.not_judged == (f"{paths}: TypeError: one token is too few",)


def test_coarse_numbers_are_not_judged():
    report = judged("gpt2", lambda model: model.bfloat16())
    assert report.not_judged == ("padded batches and a cache: hidden states in torch.bfloat16 are too coarse",)


def test_a_model_may_call_its_cache_by_either_name(monkeypatch):
    """Since transformers 5.24 it is `cache`, in calls and in results."""
    from transformers import LlamaModel

    theirs = LlamaModel.forward

    def renamed(self, input_ids, attention_mask=None, position_ids=None, cache=None, use_cache=None):
        names = inspect.signature(theirs).parameters
        given = {"past_key_values" if "past_key_values" in names else "cache": cache}
        out = theirs(self, input_ids, attention_mask, position_ids, use_cache=use_cache, **given)
        kept = out.get("past_key_values", out.get("cache"))
        return types.SimpleNamespace(last_hidden_state=out.last_hidden_state, cache=kept)

    monkeypatch.setattr(LlamaModel, "forward", renamed)
    report = judged("llama")
    assert (report.status, report.causes) == ("pass", ())
    assert not [line for line in report.not_judged if "cache" in line]


# ---- spoilt models


def positions(change):
    """Change the positions by which a rotary model forms cos and sin."""

    def spoil(model):
        formed = model.rotary_emb.forward
        model.rotary_emb.forward = lambda x, position_ids: formed(x, change(position_ids))

    return spoil


def by_columns(pos):
    """As short texts have them where no mask is read; later steps have those of the mask."""
    return pos if pos.shape[1] in (1, 256) else torch.arange(pos.shape[1]).expand_as(pos)


def off_by_one(pos):
    return pos + 1 if pos.shape[1] == 1 else pos


def from_zero(pos):
    return pos - pos[:, :1] if 1 < pos.shape[1] < 24 else pos


def without(key):
    def spoil(model):
        whole = model.forward
        model.forward = lambda **given: whole(**{name: value for name, value in given.items() if name != key})

    return spoil


without_mask = without("attention_mask")


def all_but_the_last_layer(model):
    """Let the last layer see padding."""

    def hook(_module, args, kwargs):
        mask = kwargs["attention_mask"]
        own = torch.full(mask.shape[-2:], torch.finfo(mask.dtype).min).triu(1 + mask.shape[-1] - mask.shape[-2])
        return args, {**kwargs, "attention_mask": own.expand_as(mask)}

    model.set_attn_implementation("eager")
    model.layers[-1].self_attn.register_forward_pre_hook(hook, with_kwargs=True)


def distances_off_by_one(model):
    """Form T5's bias of a step for the query before."""
    for module in model.modules():
        if hasattr(module, "compute_bias"):
            module.compute_bias = lambda n, *args, formed=module.compute_bias, past_seen_tokens=0, **named: formed(
                n, *args, past_seen_tokens=past_seen_tokens - (n == 1), **named
            )


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("name", "spoil", "found"),
    [
        ("llama", positions(by_columns), [CHUNK, LEFT]),  # found by steps in a padded batch alone
        ("llama", positions(off_by_one), [STEPS, LEFT]),
        ("qwen3", positions(from_zero), [CHUNK]),
        ("llama", without_mask, [LEFT]),
        ("llama", all_but_the_last_layer, [LEFT]),
        ("gpt2", without("position_ids"), [LEFT]),
        ("opt", without_mask, [LEFT]),
        ("bert", without_mask, [LEFT, RIGHT]),
        ("t5", without_mask, [LEFT, RIGHT]),
        ("bloom", without_mask, [LEFT]),
        ("t5", distances_off_by_one, [STEPS, LEFT]),
    ],
)
def test_faults_are_found(name, spoil, found):
    report = judged(name, spoil)
    assert report.status == "fail"
    assert sorted(cause.code for cause in report.causes) == sorted(found)
    for cause in report.causes:
        assert cause.fix == rules.find(cause.code).fix
        assert "of the largest entry; rounding explains up to 3e-05" in cause.message
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_first_token_and_the_path_are_named():
    (steps, padded) = judged("llama", positions(off_by_one)).causes
    assert steps.message.startswith("decoding token by token with a cache gives other hidden states than a single pass")
    assert steps.smallest_case == {"token": 20}
    assert padded.message.startswith("decoding with a cache in a batch padded on the left gives other hidden states")


@pytest.mark.parametrize("saved", [False, True])
def test_the_command_says_what_no_directory_shows(tmp_path, capsys, saved):
    theirs = small("llama", num_hidden_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(finite(theirs.to_dict())))
    if saved:
        build(theirs).save_pretrained(tmp_path)
    assert run(["verify-model", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not judged: config.json itself: transformers reads the same file" in said
    assert ("not judged: whether weights fit it: permuted rows" in said) == saved
    assert ("not judged: weights: they are random here" in said) == (not saved)
