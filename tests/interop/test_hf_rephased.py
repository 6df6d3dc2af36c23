"""Models whose frequencies depend on the length: cached keys are turned on when it changes."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import posenc
from interop.hf_models import cached
from interop.rotary_models import DYNAMIC, LONGROPE, built, counted, padding, shaken, text
from small_models import small

SWITCH = 16  # the length of both, beyond which frequencies are others
MODELS = {
    "longrope": lambda layers, **kw: built("phi3 longrope", num_hidden_layers=layers, **kw),
    "dynamic": lambda layers, **kw: built("llama dynamic", num_hidden_layers=layers, **kw),
}
OPTIONS = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
CACHES = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}


def same(got, wanted, rounding=3e-5):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def fresh(model, sequences, mask):
    """Return the last logits of a forward over the whole text, without a cache."""
    more = mask.new_ones(len(mask), sequences.shape[1] - mask.shape[1])
    mask = torch.cat((mask, more), 1)
    with torch.no_grad():
        return model(sequences, attention_mask=mask, position_ids=counted(mask), use_cache=False).logits[:, -1]


def furthest(model, ids, mask, **options):
    """Return how far cached logits are from those of whole texts at most, over the largest of them."""
    out = model.generate(ids, attention_mask=mask, max_new_tokens=10, **OPTIONS, **options)
    found = []
    for i, got in enumerate(out.logits):
        wanted = fresh(model, out.sequences[:, : ids.shape[1] + i], mask)
        found.append(float((got - wanted).abs().max() / wanted.abs().max()))
    return max(found)


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic cache", "static cache"])
@pytest.mark.parametrize("name", MODELS)
def test_one_layer_gives_what_the_whole_text_gives(name, cache, side):
    """Keys of the first layer depend on their own token alone, so that turned on they are those of a fresh forward."""
    model, ids, mask = MODELS[name](1), text(), padding(side)
    if name == "dynamic":  # transformers mixes keys of several frequencies; of Phi-3 it drops the cache
        assert furthest(model, ids, mask, **CACHES[cache]) > 0.05
    posenc.hf.use(model)
    assert furthest(model, ids, mask, **CACHES[cache]) < 3e-5


def inv_freq_and_gain(config, length):
    """Return transformers' own frequencies for a length."""
    kind = config.rope_parameters["rope_type"]
    n = length if kind == "longrope" or length > SWITCH else None
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=n)


class Unturned(transformers.DynamicCache):
    """Keeps keys as they were before the turn, and turns all of them by the frequencies of the moment."""

    def update(self, k, v, layer_idx, *args, **kwargs):
        seen = self.get_seq_length(layer_idx)
        total = seen + k.shape[2]
        k = self.turned(k, torch.arange(seen, total), total, -1)
        k, v = super().update(k, v, layer_idx, *args, **kwargs)
        return self.turned(k, torch.arange(total), total, 1), v

    def turned(self, k, pos, length, sign):
        inv_freq, gain = inv_freq_and_gain(self.of, length)
        angle = pos[:, None].double() * inv_freq.double()
        cos, sin = (t.float() * gain**sign for t in (angle.cos(), sign * angle.sin()))
        a, b = k.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@pytest.mark.parametrize("name", MODELS)
def test_deeper_models_attend_to_keys_turned_on(name):
    """What earlier layers made of a token stays; its angle is the newest one in every layer."""
    model, ids = MODELS[name](3), text()
    model.config.use_cache = True
    reference = Unturned(config=model.config)
    reference.of = copy.deepcopy(model.config)
    cache, wanted, got = transformers.DynamicCache(config=model.config), [], []
    more = text(10, seed=5)
    for run, into, kept in ((model, wanted, reference), (posenc.hf.use(copy.deepcopy(model)), got, cache)):
        for begin in (None, *range(10)):
            part = ids if begin is None else more[:, begin : begin + 1]
            with torch.no_grad():
                into.append(run(part, **cached(model, kept)).logits)
    for a, b in zip(got, wanted, strict=True):
        same(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_a_short_text_again_behind_a_long_one(name):
    """Cropped below the switch, a cache is one of a short text again."""
    model = posenc.hf.use(MODELS[name](1))
    ids, cache = text(), transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.cat((ids, text(8, seed=4)), 1), **cached(model, cache))
        cache.crop(-8)
        got = model(ids[:, -1:], **cached(model, cache)).logits[:, -1]
    whole = torch.cat((ids, ids[:, -1:]), 1)
    same(got, fresh(model, whole, torch.ones_like(whole)))


def test_windows_of_a_static_cache():
    model = posenc.hf.use(MODELS["longrope"](1, sliding_window=6))
    for options in (CACHES["dynamic cache"], CACHES["static cache"]):
        assert furthest(model, text(), padding("none"), **options) < 3e-5


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_beams(name, cache):
    """Rows of a cache change places and are repeated."""
    model = posenc.hf.use(MODELS[name](1))
    options = OPTIONS | {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 10, "output_scores": True}
    inputs = {"input_ids": text(), "attention_mask": padding("left")}
    got, wanted = (model.generate(**inputs, **options | how) for how in (CACHES[cache], {"use_cache": False}))
    assert torch.equal(got.sequences, wanted.sequences)
    same(got.sequences_scores, wanted.sequences_scores)


def test_a_cache_that_was_filled_before():
    model = MODELS["longrope"](1)
    ids, cache = text(), transformers.DynamicCache(config=model.config)
    more = text(8, seed=4)
    with torch.no_grad():
        model(ids, **cached(model, cache))
        posenc.hf.use(model)
        got = model(more, **cached(model, cache)).logits[:, -1]
    whole = torch.cat((ids, more), 1)
    same(got, fresh(model, whole, torch.ones_like(whole)))


def test_layers_without_position_are_not_turned():
    """The first layer turns nothing, so what it hands on has no angles, and the whole text gives the same."""
    rope = {"rope_parameters": DYNAMIC, "max_position_embeddings": SWITCH, "no_rope_layers": [0, 1]}
    config = small("smollm3", **rope, num_hidden_layers=2)
    model = posenc.hf.use(shaken(transformers.SmolLM3ForCausalLM(config)))
    assert furthest(model, text(), padding("left")) < 3e-5


def test_phi3_keeps_its_cache():
    model = MODELS["longrope"](2)
    lengths = []

    def note(module, args, kwargs):
        lengths.append(kwargs["input_ids"].shape[1])

    for used in (False, True):
        lengths.clear()
        if used:
            posenc.hf.use(model)
        hook = model.register_forward_pre_hook(note, with_kwargs=True)
        model.generate(text(), max_new_tokens=10, **OPTIONS)
        hook.remove()
        assert lengths == [12, *[1] * 9] if used else SWITCH + 1 in lengths
    posenc.hf.restore(model)
    assert "prepare_inputs_for_generation" not in vars(model)


def test_long_runs_in_bfloat16_do_not_drift():
    """Each step of dynamic NTK turns keys on from where they were cached: roundings do not add up."""
    model = posenc.hf.use(MODELS["dynamic"](1).bfloat16())
    ids, mask = text(batch=1), padding("none", batch=1)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=120, **OPTIONS)
    errors = []
    for i in (5, 40, 119):
        wanted = fresh(model, out.sequences[:, : 12 + i], mask).float()
        errors.append(float((out.logits[i] - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()))
    assert max(errors) < 0.02


def test_extended_in_the_middle_of_a_life():
    """LongRoPE given to a loaded model switches as one that was made so."""
    model = built("phi3 longrope", num_hidden_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    posenc.hf.use(model, LONGROPE)
    assert furthest(model, text(), padding("none")) < 3e-5
