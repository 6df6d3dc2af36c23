"""Models with position biases say the same with their attention run by posenc.attend."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from interop.hf_models import (
    ATTENTIONS,
    BATCH,
    DECODERS,
    LENGTH,
    MODELS,
    asked,
    attended,
    bloom,
    built,
    cached,
    deberta,
    gradients,
    logits,
    mpt,
    padded,
    shaken,
    t5,
)
from posenc.interop.hf.interface import Mask

SIDES = ["none", "left", "right"]
CASTING = ("bloom", "mpt", "falcon")  # whose softmax is in float32 whatever they are made of; DeBERTa's scale is
DTYPES = [torch.float64, torch.float32]


def same(got, wanted, rounding=1e-6):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def rounding(name, dtype=torch.float64):
    return 1e-5 if dtype == torch.float32 else 1e-6 if name in (*CASTING, "deberta") else 1e-12


def precise(name, side="none"):
    """Return float64, but where the model itself makes NaN of rows of -1.8e308 that it casts to float32."""
    return torch.float32 if side == "left" and name in CASTING else torch.float64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_logits(name, side, dtype):
    if dtype != precise(name, side) == torch.float32:
        pytest.skip("the model itself makes NaN")
    model = built(name, dtype)
    inputs = asked(model, padded(side))
    wanted = logits(model, inputs)
    assert posenc.hf.use(model) is model
    assert attended(model, inputs) == ATTENTIONS[name]
    same(logits(model, inputs), wanted, rounding(name, dtype))


@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, side, checkpointing):
    dtype = precise(name, side)
    model = built(name, dtype).train()
    inputs = asked(model, padded(side))
    wanted = gradients(model, inputs)
    posenc.hf.use(model)
    if checkpointing:
        word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # as before 5.21
        getattr(model, f"{word}_checkpointing_enable")()
    got = gradients(model, inputs)
    assert got.keys() == wanted.keys() >= {key for key, _ in model.named_parameters() if "relative" in key}
    for key, gradient in wanted.items():
        same(got[key], gradient, rounding(name, dtype))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"num_beams": 3}, {"cache_implementation": "static"}],
    ids=["cache", "no cache", "beams", "static cache"],
)
@pytest.mark.parametrize("name", DECODERS)
def test_generate(name, options):
    model = built(name, precise(name, "left"))
    inputs = asked(model, padded("left"))
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    options |= {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "no_repeat_ngram_size": 2}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    try:
        wanted = model.generate(**inputs, **options)
    except (IndexError, ValueError):
        pytest.skip("the model itself cannot, in transformers 5.23")
    got = posenc.hf.use(model).generate(**inputs, **options)
    assert torch.equal(got.sequences, wanted.sequences)
    assert len(got.logits) == 12
    for a, b in zip(got.logits, wanted.logits, strict=True):
        same(a, b, rounding(name, precise(name, "left")))


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "switch"])  # whose own cache fails in 5.23
def test_a_cache_gives_what_the_whole_text_gives(name):
    model = posenc.hf.use(built(name))
    inputs = asked(model, padded("left"))
    wanted = logits(model, inputs)
    key, mask_key = ("decoder_input_ids", "decoder_attention_mask")
    if not model.config.is_encoder_decoder:
        key, mask_key = ("input_ids", "attention_mask")
    text, mask, cache, found = inputs[key], inputs[mask_key], None, []
    for begin, end in ((0, 9), (9, 10), (10, text.shape[1])):
        part = inputs | {key: text[:, begin:end], mask_key: mask[:, :end]}
        with torch.no_grad():
            out = model(**part, **cached(model, cache), use_cache=True)
        cache = next(out[name] for name in ("cache", "past_key_values") if name in out)
        found.append(out.logits)
    same(torch.cat(found, 1)[mask.bool()], wanted, 1e-5)  # one token goes the model's own way, in float32


def test_mpt_takes_a_cache_by_the_name_that_it_has_since_transformers_5_24():
    model = posenc.hf.use(built("mpt"))
    attention, found, mask = model.transformer.blocks[0].attn, [], {"attention_mask": Mask(None, causal=True)}
    x = torch.randn(1, 6, model.config.hidden_size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for name in ("past_key_values", "cache"):  # both ways, whatever version is here
        cache = transformers.DynamicCache()
        with torch.no_grad():
            attention(x[:, :5], **{name: cache}, **mask)
            found.append(attention(x[:, 5:], **{name: cache}, **mask)[0])
    same(found[1], found[0], 1e-12)
    with torch.no_grad():
        same(found[1], attention(x, **mask)[0][:, 5:], 1e-12)


def test_bloom_counts_the_tokens_between_which_some_are_masked():
    model = built("bloom")
    inputs = asked(model, padded("holes"))
    wanted = logits(model, inputs)
    same(logits(posenc.hf.use(model), inputs), wanted)
    shifted = torch.ones(BATCH, LENGTH, dtype=torch.long)
    assert not torch.allclose(logits(model, inputs | {"attention_mask": shifted})[: len(wanted)], wanted)


def rows_that_see_ahead(length, side=3):
    """Return who sees whom: a band on both sides."""
    i = torch.arange(length)
    return ((i[:, None] - i).abs() <= side)[None, None].expand(BATCH, 1, length, length)


def test_a_mask_of_the_callers_own_in_mpt():
    """Behind one that shows keys ahead MPT's bias differs from symmetric ALiBi."""
    model = built("mpt")
    hidden = {"attention_mask": ~rows_that_see_ahead(LENGTH)}
    inputs = asked(model, None)
    with torch.no_grad():
        wanted = model(**inputs | hidden).logits
        same(posenc.hf.use(model)(**inputs | hidden).logits, wanted)


def test_a_mask_of_the_callers_own_in_t5():
    model = built("t5")
    inputs = asked(model, None)
    far = torch.finfo(torch.float64).min
    length = inputs["decoder_input_ids"].shape[1]
    inputs["decoder_attention_mask"] = (
        torch.zeros(BATCH, 1, length, length).double().masked_fill(~rows_that_see_ahead(length), far)
    )
    with torch.no_grad():
        wanted = model(**inputs).logits
        got = posenc.hf.use(model)(**inputs).logits
    same(got, wanted)


@pytest.mark.parametrize("build", [bloom, mpt, lambda **kw: t5(**kw)], ids=["bloom", "mpt", "t5"])
def test_a_configuration_that_says_not_causal(build):
    model = shaken(build())
    model.config.is_causal = False
    if model.config.is_encoder_decoder:
        model.decoder.config.is_causal = False
    inputs = asked(model, padded("right"))
    wanted = logits(model, inputs)
    same(logits(posenc.hf.use(model), inputs), wanted)
    if model.config.is_encoder_decoder:
        model.decoder.config.is_causal = True
    model.config.is_causal = True
    assert not torch.allclose(logits(model, inputs), wanted)


@pytest.mark.parametrize("n_head", [1, 3, 8])
@pytest.mark.parametrize("build", [bloom, lambda n_head: mpt(n_heads=n_head)], ids=["bloom", "mpt"])
def test_slopes_for_any_number_of_heads(build, n_head):
    model = shaken(build(n_head=n_head))
    inputs = asked(model, padded("right"))
    wanted = logits(model, inputs)
    same(logits(posenc.hf.use(model), inputs), wanted)


def test_mpt_scales_as_configured():
    model = shaken(mpt(attn_config={"softmax_scale": 0.7}))
    inputs = asked(model, None)
    wanted = logits(model, inputs)
    same(logits(posenc.hf.use(model), inputs), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["t5", "bloom", "mpt", "deberta"])
def test_half_precision(name, dtype):
    """No further from float64 than the model's own attention is."""
    exact = built(name)
    inputs = asked(exact, padded("right"))
    wanted = logits(exact, inputs)
    model = built(name, torch.float32).to(dtype)
    before = (logits(model, inputs).double() - wanted).norm()
    after = (logits(posenc.hf.use(model), inputs).double() - wanted).norm()
    assert after < 1.2 * before < 0.5 * wanted.norm()


@pytest.mark.parametrize(
    "cls",
    ["T5Model", "T5EncoderModel", "T5ForTokenClassification", "T5ForSequenceClassification"],
)
def test_heads_of_t5(cls):
    model = shaken(t5(cls, num_labels=3))
    inputs = asked(model, padded("right"))
    if cls == "T5ForSequenceClassification":
        inputs["input_ids"][:, -1] = 2  # the token that is read
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if cls != "T5Model":
        inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        wanted = model(**inputs)[0]
        got = posenc.hf.use(model)(**inputs)[0]
    keep = inputs["attention_mask"].bool()
    if wanted.shape[:2] == keep.shape:
        got, wanted = got[keep], wanted[keep]
    same(got, wanted)


DEBERTAS = {
    "tables of their own": {"share_att_key": False},
    "content to position": {"pos_att_type": "c2p"},
    "position to content": {"pos_att_type": "p2c", "share_att_key": False},
    "no relative terms": {"pos_att_type": None},
    "no relative attention": {"relative_attention": False, "position_biased_input": True},
    "clipped distances": {"position_buckets": -1, "max_relative_positions": 5},
    "distances never clipped": {"position_buckets": -1, "max_relative_positions": -1},
    "an odd number of buckets": {"position_buckets": 7},
    "a convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "tables as they are": {"norm_rel_ebd": "none"},
    "narrow embeddings": {"embedding_size": 12},
}


@pytest.mark.parametrize("fields", DEBERTAS.values(), ids=DEBERTAS)
def test_kinds_of_deberta(fields):
    model = shaken(deberta(**fields)).train()
    inputs = asked(model, padded("right"))
    wanted, slopes = logits(model, inputs), gradients(model, inputs)
    same(logits(posenc.hf.use(model), inputs), wanted)
    got = gradients(model, inputs)
    assert got.keys() == slopes.keys()
    for key, slope in slopes.items():
        same(got[key], slope)


@pytest.mark.parametrize("cls", ["DebertaV2Model", "DebertaV2ForTokenClassification", "DebertaV2ForMultipleChoice"])
def test_heads_of_deberta(cls):
    model = shaken(deberta(cls, num_labels=3))
    inputs = asked(model, padded("right"))
    if "Choice" in cls:
        inputs = {key: t[None] for key, t in inputs.items()}
    with torch.no_grad():
        wanted = model(**inputs)[0]
        got = posenc.hf.use(model)(**inputs)[0]
    keep = inputs["attention_mask"].bool() if wanted.ndim == 3 else slice(None)
    same(got[keep], wanted[keep])


def test_a_mask_of_the_callers_own_in_deberta():
    model = shaken(deberta("DebertaV2Model")).encoder
    x, mask = torch.randn(BATCH, LENGTH, 24).double(), rows_that_see_ahead(LENGTH)[:, 0]
    with torch.no_grad():
        wanted = model(x, mask).last_hidden_state
        same(posenc.hf.use(model)(x, mask).last_hidden_state, wanted)
        with pytest.raises(ValueError, match="cannot use the caller's own distances; got relative_pos of shape"):
            model(x, mask, relative_pos=torch.zeros(1, LENGTH, LENGTH))


@pytest.mark.parametrize("cls", ["BloomModel", "BloomForSequenceClassification", "BloomForTokenClassification"])
def test_heads_of_bloom(cls):
    model = shaken(bloom(cls, num_labels=3), dtype=torch.float32)
    inputs = asked(model, padded("left"))
    with torch.no_grad():
        wanted = model(**inputs)[0]
        got = posenc.hf.use(model)(**inputs)[0]
    if wanted.ndim == 3:
        keep = inputs["attention_mask"].bool()
        got, wanted = got[keep], wanted[keep]
    same(got, wanted, 1e-5)


@pytest.mark.parametrize("name", ["t5", "bloom", "mpt", "deberta"])
def test_dropout_drops_in_training_alone(name):
    """Of attention weights, the only dropout here."""
    model = posenc.hf.use(built(name, dropout=0.5))
    inputs = asked(model, None)
    assert torch.equal(logits(model, inputs), logits(model, inputs))
    model.train()
    first, second = gradients(model, inputs), gradients(model, inputs)
    assert all(g.isfinite().all() for g in first.values())
    assert any(not torch.equal(first[key], second[key]) for key in first)


def test_attention_weights_are_refused():
    for name in ("t5", "bloom", "mpt"):
        model = posenc.hf.use(built(name))
        with pytest.raises(ValueError, match="cannot return attention weights, because posenc.attend never forms them"):
            model(**asked(model, None), output_attentions=True)
        posenc.hf.restore(model)
        if name != "t5":
            assert model(**asked(model, None), output_attentions=True).attentions[0] is not None


def test_hidden_states_are_still_collected():
    model = built("t5")
    inputs = asked(model, None)
    with torch.no_grad():
        wanted = model(**inputs, output_hidden_states=True).decoder_hidden_states
        got = posenc.hf.use(model)(**inputs, output_hidden_states=True).decoder_hidden_states
    assert len(got) == len(wanted) == 3
    for a, b in zip(got, wanted, strict=True):
        same(a, b)


def test_transformers_is_the_version_these_were_written_for():
    assert transformers.__version__.startswith("5.")
