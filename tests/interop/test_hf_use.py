"""posenc.hf: what use() leaves as it is, what restore() puts back, what report() says, and what is refused."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers

import posenc
from interop.hf_models import (
    ATTENTIONS,
    MODELS,
    VOCAB,
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
from posenc.interop.hf import interface
from watch import Largest


def contents(model):
    """Return everything that stands in the modules themselves, by name."""
    hooks = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
    return {
        (name, key): len(value) if key in hooks else value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
    }


def implementations(model):
    return [m.config._attn_implementation for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MODELS)
def test_restore_leaves_no_trace(name):
    model = built(name)
    inputs = asked(model, padded("right"))
    wanted, before, chosen = logits(model, inputs), contents(model), implementations(model)
    for _ in range(2):
        posenc.hf.use(model)
        assert attended(model, inputs) == ATTENTIONS[name]
        assert posenc.hf.restore(model) is model
        assert attended(model, inputs) == 0
        assert torch.equal(logits(model, inputs), wanted)
        after = contents(model)
        assert after.keys() == before.keys()
        assert all(after[key] is before[key] or after[key] == before[key] for key in before)
        assert implementations(model) == chosen
    posenc.hf.restore(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MODELS)
def test_using_twice_is_using_once(name):
    model = posenc.hf.use(built(name))
    inputs = asked(model, padded("right"))
    once, said = logits(model, inputs), str(posenc.hf.report(model))
    assert torch.equal(logits(posenc.hf.use(model), inputs), once)
    assert str(posenc.hf.report(model)) == said
    posenc.hf.restore(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_files_stay(name, tmp_path):
    model = built(name)
    state = model.state_dict()
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    model.save_pretrained(tmp_path / "before")
    posenc.hf.use(model)
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[key]) for key, t in model.state_dict().items())
    assert dict(model.named_modules()) == modules
    assert all(p is parameters[key] for key, p in model.named_parameters())
    model.save_pretrained(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes()
    inputs = asked(model, padded("right"))
    again = type(model).from_pretrained(tmp_path / "after", dtype=torch.float64)
    torch.testing.assert_close(logits(again, inputs), logits(posenc.hf.restore(model), inputs), rtol=0, atol=1e-12)


def test_no_random_number_is_drawn():
    models = [built(name) for name in MODELS]
    state = torch.get_rng_state()
    for model in models:
        posenc.hf.use(model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.sample(4)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_are_routed_with_weights_of_their_own(name, copied):
    model = posenc.hf.use(built(name))
    inputs = asked(model, padded("right"))
    gradients(model, inputs)  # of which nothing may be left in the encodings: it could not be copied
    other = copied(model)
    wanted = logits(model, inputs)
    assert torch.equal(logits(other, inputs), wanted)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    assert torch.equal(logits(model, inputs), wanted)
    changed = logits(other, inputs)
    posenc.hf.restore(other)
    torch.testing.assert_close(logits(other, inputs), changed, rtol=0, atol=1e-5 * float(changed.abs().max()))
    assert torch.equal(logits(model, inputs), wanted)  # routed still
    assert posenc.hf.report(model).replaced
    assert not posenc.hf.report(other).replaced


def test_the_table_of_t5_is_read_where_the_model_has_it():
    """Loading by assignment puts another parameter there."""
    model, other = built("t5"), shaken(t5(), seed=9)
    inputs = asked(model, None)
    assert not torch.allclose(logits(posenc.hf.use(model), inputs), logits(other, inputs))
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(logits(model, inputs), logits(other, inputs), rtol=0, atol=1e-11)
    learned = gradients(model, inputs)
    for stack in ("encoder", "decoder"):
        assert learned[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"].abs().max() > 0


def test_a_step_of_training_is_the_same():
    model = built("t5").train()
    other = copy.deepcopy(model)
    posenc.hf.use(model)
    inputs = asked(model, padded("right"))
    for one in (model, other):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
        for _ in range(3):
            gradients(one, inputs)
            optimizer.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-9)


def test_the_report_says_what_is_replaced():
    model = t5()
    assert [part.name for part in posenc.hf.report(model).left] == ["encoder", "decoder"]
    assert "it can be replaced; call posenc.hf.use(model)" in str(posenc.hf.report(model))
    said = posenc.hf.report(posenc.hf.use(model))
    assert said.left == ()
    assert str(said) == (
        "replaced  encoder: self-attention of 2 layers by T5(n_heads=4, n_buckets=8, max_distance=20, "
        "bidirectional=True, score_scale=1.0)\n"
        "replaced  decoder: self-attention of 2 layers by T5(n_heads=4, n_buckets=8, max_distance=20, "
        "bidirectional=False, score_scale=1.0), cross-attention by NoPE()"
    )


def test_the_report_names_what_transformers_leaves_unread():
    model = shaken(mpt(attn_config={"alibi_bias_max": 16}))
    inputs = asked(model, None)
    wanted = logits(model, inputs)
    torch.testing.assert_close(logits(posenc.hf.use(model), inputs), wanted, rtol=0, atol=1e-5)
    assert "alibi_bias_max=16 is ignored" in str(posenc.hf.report(model))


def rotary():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    )


def without():
    """A model whose positions are a learned table added to the tokens."""
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=24, n_layer=1, n_head=2, n_positions=8)
    return transformers.GPT2LMHeadModel(config)


def test_a_model_beside_others():
    model = nn.ModuleDict({"one": bloom("BloomModel"), "two": without(), "three": rotary()})
    chosen = model["two"].config._attn_implementation, model["three"].config._attn_implementation
    posenc.hf.use(model)
    said = posenc.hf.report(model)
    assert [part.name for part in said.replaced] == ["one", "three.model.rotary_emb"]
    assert [str(part) for part in said.left] == [
        "two: GPT2LMHeadModel is of type 'gpt2', which posenc.hf does not support: positions enter by a learned table"
    ]
    assert (model["two"].config._attn_implementation, model["three"].config._attn_implementation) == chosen
    assert model["one"].config._attn_implementation != "posenc"
    assert posenc.hf.report(posenc.hf.restore(model)).replaced == ()


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="^posenc.hf.use: nothing in GPT2LMHeadModel can be replaced") as caught:
        posenc.hf.use(without())
    assert "GPT2LMHeadModel is of type 'gpt2', which posenc.hf does not support" in str(caught.value)
    assert f"Pass a rotary model, or one of these types: {', '.join(posenc.hf.MODEL_TYPES)}." in str(caught.value)
    with pytest.raises(ValueError, match="it contains no model of transformers"):
        posenc.hf.use(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("longt5", "attends in blocks"),
        ("deberta", "in one tensor"),
        ("mpnet", "with its own code"),
    ],
)
def test_types_that_are_left_say_why(kind, why):
    fields = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_layers": 1, "n_layer": 1}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **fields))
    with pytest.raises(ValueError, match=f"is of type '{kind}', which posenc.hf does not support") as caught:
        posenc.hf.use(model)
    assert why in str(caught.value)


@pytest.mark.parametrize("function", [posenc.hf.use, posenc.hf.restore, posenc.hf.report])
def test_no_module_at_all(function):
    with pytest.raises(TypeError):
        function("t5-small")


def hooked(module):
    forward = module.forward
    module.forward = lambda *args, **kwargs: forward(*args, **kwargs)


def with_adapter(model):
    attention = model.encoder.block[0].layer[0].SelfAttention
    attention.relative_attention_bias = nn.Sequential(attention.relative_attention_bias)
    return model


def with_attention_of_its_own(model):
    """Return a model whose attention is that of transformers 5.6, which neither scales nor calls a function."""
    for module in model.modules():
        if hasattr(module, "compute_bias"):
            module.__class__ = type("T5Attention", (type(module),), {"forward": lambda module, *args, **kwargs: None})
            del module.scaling
    return model


def with_hook(model, path):
    hooked(model.get_submodule(path))
    return model


REFUSED = {
    "a forward of somebody else's": (
        lambda: with_hook(bloom(), "transformer.h.1.self_attention"),
        "BloomAttention.forward has been replaced by other code",
    ),
    "the same in MPT": (
        lambda: with_hook(mpt(), "transformer.blocks.0.attn"),
        "MptAttention.forward has been replaced",
    ),
    "the same in DeBERTa": (
        lambda: with_hook(deberta(), "deberta.encoder.layer.2.attention.self"),
        "DisentangledSelfAttention.forward has been replaced",
    ),
    "an attention of its own": (
        lambda: with_attention_of_its_own(t5()),
        "encoder: T5Attention does not call transformers' attention functions",
    ),
    "sums in another order": (lambda: bloom(pretraining_tp=2, slow_but_exact=True), "with slow_but_exact it must sum"),
    "buckets without room": (
        lambda: deberta(position_buckets=6, max_relative_positions=4),
        "posenc.DeBERTa refuses its options: DeBERTa: max_distance must be at least 5",
    ),
}


@pytest.mark.parametrize(("build", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_routed_is_left(build, sentence):
    model = build()
    before = contents(model)
    with pytest.raises(ValueError, match=sentence):
        posenc.hf.use(model)
    assert contents(model).keys() == before.keys()


def test_a_stack_that_cannot_be_routed_is_left_alone():
    model = with_adapter(shaken(t5()))
    said = posenc.hf.report(posenc.hf.use(model))
    assert [part.name for part in said.replaced] == ["decoder"]
    assert [str(part) for part in said.left] == [
        "encoder: its table of biases is not a plain nn.Embedding but Sequential"
    ]


def test_transformers_is_imported_by_use_alone():
    code = "import sys, posenc; posenc.hf.use; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "hf" in dir(posenc)


def test_masks_of_other_patterns_are_built_whole():
    """Of texts one after the other in a row, as Falcon says them since transformers 5.24; others stay as they are."""
    config, x = transformers.LlamaConfig(attn_implementation="sdpa"), torch.empty(2, 6, 0)
    create = transformers.masking_utils.create_causal_mask

    def ours(**given):
        given = {"config": config, "inputs_embeds": x, **cached(create, None), **given}
        return create(**given), interface._mask(create=create, counts=False, hides=False, **given)

    packed = {"attention_mask": None, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]])}
    theirs, mask = ours(**packed)
    assert theirs.shape == (2, 1, 6, 6)
    assert torch.equal(mask.seen, theirs)
    band = {"attention_mask": None, "and_mask_function": lambda batch, head, i, j: j > i - 2}
    theirs, mask = ours(**band)
    assert torch.equal(mask.seen, theirs)
    plain = {"attention_mask": None, "position_ids": torch.arange(6)[None] + 3}
    assert ours(**plain)[1] == interface.Mask(None, causal=True)
    assert ours(attention_mask=torch.ones(2, 6))[1].seen is None
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    assert torch.equal(ours(attention_mask=padding)[1].seen, padding.bool()[:, None, None])


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # BLOOM's activation
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", ["t5", "bloom", "mpt", "deberta"])
def test_a_routed_model_compiles_in_one_piece(name, side):
    model = built(name, torch.float32)
    inputs = asked(model, padded(side))
    wanted = logits(model, inputs)
    posenc.hf.use(model)
    torch.compiler.reset()
    got = logits(model, inputs, run=torch.compile(model, backend="eager", fullgraph=True))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


LONG = 2048
LITTLE = {
    "t5": lambda: t5(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, relative_attention_num_buckets=32),
    "bloom": lambda: bloom(hidden_size=8, n_layer=1, n_head=2),
    "mpt": lambda: mpt(d_model=8, n_layers=1, n_heads=2),
    "deberta": lambda: deberta(hidden_size=8, num_hidden_layers=1, num_attention_heads=2),
}


def largest(model, inputs, learns):
    with torch.set_grad_enabled(learns), Largest() as seen:
        out = model(**inputs)[0]
        if learns:
            out.square().mean().backward()
    return seen


@pytest.mark.sample(4)
@pytest.mark.parametrize("learns", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", LITTLE)
def test_nothing_of_the_length_squared_is_built(name, side, learns):
    model = LITTLE[name]().train(learns)
    mask = torch.ones(1, LONG, dtype=torch.long)
    mask[:, :100] = side == "none"
    inputs = {"input_ids": torch.randint(3, VOCAB, (1, LONG)), "attention_mask": mask}
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    assert largest(model, inputs, learns).numbers >= LONG * LONG  # so that the measure is one
    seen = largest(posenc.hf.use(model), inputs, learns)
    assert seen.numbers < LONG * LONG, seen.made_by
