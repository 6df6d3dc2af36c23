"""Rotary models say the same with their queries and keys turned by posenc."""

import copy
import pickle

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from interop.rotary_models import (
    FAMILIES,
    SWITCHING,
    built,
    contents,
    counted,
    counting,
    padding,
    shaken,
    text,
)
from small_models import N, finite, seen, small

ROUNDING = 3e-5  # theirs forms angles in float32


def same(got, wanted, rounding=ROUNDING):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def logits(model, ids, **inputs):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **inputs).logits


def gradients(model, ids, mask):
    model.zero_grad()
    out = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    torch.nn.functional.cross_entropy(out[mask.bool()], ids.flip(1)[mask.bool()]).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_with_padding_and_back(name):
    model, ids = built(name), text()
    asked = [{"attention_mask": padding(side)} for side in ("none", "left", "right")]
    asked += [a | {"position_ids": counted(a["attention_mask"])} for a in asked[:2]]
    wanted = [logits(model, ids, **a) for a in asked]
    before, state = contents(model), copy.deepcopy(model.state_dict())
    for _ in range(2):
        assert posenc.hf.use(model) is model
    said = posenc.hf.report(model)
    assert said.replaced
    assert said.left == ()
    for a, theirs in zip(asked, wanted, strict=True):
        seen, turns = a["attention_mask"].bool(), []
        with counting(turns):
            got = logits(model, ids, **a)
        assert turns
        same(got[seen], theirs[seen])
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[key]) for key, t in model.state_dict().items())
    assert posenc.hf.restore(model) is model
    after = contents(model)
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)
    for a, theirs in zip(asked, wanted, strict=True):
        assert torch.equal(logits(model, ids, **a), theirs)


def test_positions_matter_to_these_models():
    for name in FAMILIES:
        model = posenc.hf.use(built(name))
        pos = torch.arange(12).expand(3, -1)
        mask = padding("none")
        a, b = (logits(model, text(), attention_mask=mask, position_ids=p) for p in (pos, pos * 0))
        assert (a - b).abs().max() > 0.01 * a.abs().max(), name


@pytest.mark.sample(6)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gptj", "deepseek_v3", "llama4", "glm4", "gpt_oss", "gemma3n"])
def test_gradients(name, checkpointing):
    model, ids, mask = built(name).train(), text(), padding("right")
    wanted = gradients(model, ids, mask)
    posenc.hf.use(model)
    if checkpointing:
        word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # as before 5.21
        getattr(model, f"{word}_checkpointing_enable")()
    got = gradients(model, ids, mask)
    assert got.keys() == wanted.keys()
    for key, gradient in wanted.items():
        same(got[key], gradient, 1e-4)


CACHES = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "beams": {"num_beams": 2},
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SWITCHING])
def test_generate(name, cache):
    model = built(name)
    if cache == "static" and not model._can_compile_fullgraph:
        pytest.skip("the model has no static cache")
    inputs = {"input_ids": text(), "attention_mask": padding("left")}
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **CACHES[cache]}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    wanted = model.generate(**inputs, **options)
    got = posenc.hf.use(model).generate(**inputs, **options)
    assert torch.equal(got.sequences, wanted.sequences)
    for a, b in zip(got.logits, wanted.logits, strict=True):
        same(a, b)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gptj", "glm4"])
def test_float64(name):
    model = built(name, torch.float64)
    wanted = logits(model, text())
    got = logits(posenc.hf.use(model), text())
    assert got.dtype == wanted.dtype
    same(got, wanted)


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3", "olmo2"])
def test_bfloat16_is_rounded_once(name):
    """Queries and keys of the first attention are those of float64, rounded; theirs are up to 1 % further."""
    model = built(name, torch.bfloat16)
    model.set_attn_implementation("keep_in_order")
    pos = torch.randint(200, 4000, (2, N), generator=torch.Generator().manual_seed(0))
    plain, theirs = seen(model.base_model, pos * 0)[0], seen(model.base_model, pos)[0]
    ours = seen(posenc.hf.use(model).base_model, pos)[0]
    layers = posenc.PerLayer.from_config(finite(model.config.to_dict()))
    encoding, placed = layers.layer(0, layers.place(pos, dtype=torch.float64))
    start = layers.layer(0, layers.place(pos * 0, dtype=torch.float64))[1]
    if name == "deepseek_v3":  # whose code sorts the lanes that turn
        encoding = posenc.RoPE.from_config(finite(model.config.to_dict()), pairing="half")
        start, placed = (encoding.place(at, dtype=torch.float64) for at in (pos * 0, pos))
    unturned = encoding.rotate(plain.q.double(), plain.k.double(), start, inverse=True)
    exact = encoding.rotate(*unturned, placed)
    for lane, ours_x, theirs_x in zip(exact, ours[1:], theirs[1:], strict=True):
        size = lane.abs().amax()
        off = (ours_x - lane).abs().amax() / size, (theirs_x - lane).abs().amax() / size
        assert off[0] < 2**-8
        if name != "olmo2":  # which turns in float32 itself
            assert off[0] < 0.8 * off[1]


def test_far_positions_are_exact():
    """At position 3,000,000 angles in float32 are wrong by 0.1; ours give what the same distances give near 0."""
    model = posenc.hf.use(built("llama", torch.float64))
    ids, pos, mask = text(), torch.arange(12)[None], padding("none")
    near, far = (logits(model, ids, attention_mask=mask, position_ids=pos + start) for start in (0, 3_000_000))
    torch.testing.assert_close(far, near, rtol=0, atol=1e-7)
    posenc.hf.restore(model)
    far = logits(model, ids, attention_mask=mask, position_ids=pos + 3_000_000)
    assert (far - near).abs().max() > 1e-3


def test_frequencies_that_were_cast_are_exact_again():
    model, ids = built("llama"), text(64)
    wanted = logits(model, ids)
    model.model.rotary_emb.to(torch.bfloat16)
    assert (logits(model, ids) - wanted).abs().max() > 1e-2
    same(logits(posenc.hf.use(model), ids), wanted)
    assert "had been cast to torch.bfloat16; they are exact now" in str(posenc.hf.report(model))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("name", ["llama", "phi3 longrope", "gptj", "deepseek_v3"])
def test_copies(name, copied):
    model, ids = posenc.hf.use(built(name)), text()
    wanted = logits(model, ids)
    other = copied(model)
    assert torch.equal(logits(other, ids), wanted)
    posenc.hf.restore(other)
    turns = []
    with counting(turns):
        same(logits(other, ids), wanted)
    assert not turns
    assert torch.equal(logits(model, ids), wanted)


def test_files_stay(tmp_path):
    model = built("llama")
    model.save_pretrained(tmp_path / "before")
    posenc.hf.use(model).save_pretrained(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes()


def test_other_models_of_the_process_stay():
    one, other = built("llama"), built("llama")
    posenc.hf.use(one)
    turns = []
    with counting(turns):
        logits(other, text())
    assert not turns


def test_no_random_number_is_drawn():
    models = [built(name) for name in ("llama", "gptj", "deepseek_v3")]
    state = torch.get_rng_state()
    for model in models:
        posenc.hf.use(model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("values", [False, True])
def test_roformer(values):
    config = small("roformer", embedding_size=64, num_hidden_layers=2, rotary_value=values)
    model, ids = shaken(transformers.RoFormerForMaskedLM(config), std=0.1), text()
    asked = {"attention_mask": padding("right")}
    wanted, shifted = (model(ids.roll(n, 1), **asked).logits.detach() for n in (0, 1))
    assert (wanted - shifted.roll(-1, 1)).abs().max() > 1e-2
    posenc.hf.use(model)
    turns = []
    with counting(turns):
        same(model(ids, **asked).logits.detach(), wanted)
    assert len(turns) == 2 + 2 * values
    assert "rotates queries and keys of 2 attention layers by RoPE" in str(posenc.hf.report(model))
    turns.clear()
    with counting(turns):
        assert torch.equal(posenc.hf.restore(model)(ids, **asked).logits, wanted)
    assert not turns


# ---- several axes, parts of larger models


def test_positions_on_three_axes():
    config = small("qwen2_vl_text", head_dim=16, hidden_size=64, rope_parameters=M_ROPE)
    model = shaken(transformers.Qwen2VLTextModel(config))
    pos = torch.randint(0, 40, (3, 3, 12), generator=torch.Generator().manual_seed(3))
    inputs = {"position_ids": pos, "attention_mask": padding("none"), "use_cache": False}
    with torch.no_grad():
        wanted = model(text(), **inputs).last_hidden_state
        got = posenc.hf.use(model)(text(), **inputs).last_hidden_state
        same(got, wanted)
        other = model(text(), **inputs | {"position_ids": pos[[0, 2, 1]]}).last_hidden_state
    assert (other - wanted).abs().max() > 1e-2
    assert "over 3 axes of [2, 3, 3] pairs" in str(posenc.hf.report(model))


M_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def test_a_tower_that_looks_at_pictures_is_left():
    vision = {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 1}
    text_config = small("qwen2_vl_text", head_dim=16, hidden_size=64, rope_parameters=M_ROPE).to_dict()
    model = transformers.Qwen2VLModel(transformers.Qwen2VLConfig(text_config=text_config, vision_config=vision))
    said = posenc.hf.report(posenc.hf.use(model))
    assert [part.name for part in said.replaced] == ["language_model.rotary_emb"]
    (left,) = [part for part in said.left if "rotary" in part.name]
    assert left.name == "visual.rotary_pos_emb"
    assert "at text positions" in left.note


# ---- compiled


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_a_model_compiles_in_one_piece(name):
    model, ids = built(name), text()
    wanted = logits(model, ids)
    posenc.hf.use(model)
    torch.compiler.reset()
    with torch.no_grad():
        got = torch.compile(model, backend="eager", fullgraph=True)(input_ids=ids, use_cache=False).logits
    same(got, wanted)
