"""posenc.hf: what use() leaves unchanged, what restore() undoes, what report() lists, and what is refused."""

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
from interop.rotary_models import contents
from posenc.interop.hf import interface
from strategies import refuses
from watch import Largest


def implementations(model):
    return [m.config._attn_implementation for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MODELS)
def test_restore_undoes_one_use_or_two_equal_ones(name):
    model = built(name)
    inputs = asked(model, padded("right"))
    wanted, before, chosen = logits(model, inputs), contents(model), implementations(model)
    outputs, reports = [], []
    for times in (1, 2):
        for _ in range(times):
            posenc.hf.use(model)
        outputs.append(logits(model, inputs))
        reports.append(str(posenc.hf.report(model)))
        assert attended(model, inputs) == ATTENTIONS[name]
        assert posenc.hf.restore(model) is model
        assert attended(model, inputs) == 0
        assert torch.equal(logits(model, inputs), wanted)
        after = contents(model)
        assert after.keys() == before.keys()
        assert all(after[key] is before[key] or after[key] == before[key] for key in before)
        assert implementations(model) == chosen
    assert torch.equal(*outputs)
    assert reports[0] == reports[1]
    posenc.hf.restore(model)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_files_do_not_change(name, tmp_path):
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
def test_copies_are_replaced_too_and_have_their_own_weights(name, copied):
    model = posenc.hf.use(built(name))
    inputs = asked(model, padded("right"))
    gradients(model, inputs)  # encodings that kept a graph could not be copied
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
    assert torch.equal(logits(model, inputs), wanted)
    assert posenc.hf.report(model).replaced
    assert not posenc.hf.report(other).replaced


def test_the_table_of_t5_may_be_assigned_later():
    model, other = built("t5"), shaken(t5(), seed=9)
    inputs = asked(model, None)
    assert not torch.allclose(logits(posenc.hf.use(model), inputs), logits(other, inputs))
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(logits(model, inputs), logits(other, inputs), rtol=0, atol=1e-11)


def test_the_report_lists_what_is_replaced():
    model = t5()
    assert [part.name for part in posenc.hf.report(model).left] == ["encoder", "decoder"]
    assert "it can be replaced; call posenc.hf.use(model)" in str(posenc.hf.report(model))
    report = posenc.hf.report(posenc.hf.use(model))
    assert report.left == ()
    assert str(report) == (
        "replaced  encoder: self-attention of 2 layers by T5(n_heads=4, n_buckets=8, max_distance=20, "
        "bidirectional=True, score_scale=1.0)\n"
        "replaced  decoder: self-attention of 2 layers by T5(n_heads=4, n_buckets=8, max_distance=20, "
        "bidirectional=False, score_scale=1.0), cross-attention by NoPE()"
    )


def test_the_report_names_options_that_transformers_ignores():
    model = shaken(mpt(attn_config={"alibi_bias_max": 16}))
    inputs = asked(model, None)
    wanted = logits(model, inputs)
    torch.testing.assert_close(logits(posenc.hf.use(model), inputs), wanted, rtol=0, atol=1e-5)
    assert "alibi_bias_max=16 is ignored" in str(posenc.hf.report(model))


def test_models_within_a_larger_module():
    sizes = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=16))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_positions=8))
    model = nn.ModuleDict({"one": bloom("BloomModel"), "two": gpt2, "three": llama})
    chosen = model["two"].config._attn_implementation, model["three"].config._attn_implementation
    posenc.hf.use(model)
    report = posenc.hf.report(model)
    assert [part.name for part in report.replaced] == ["one", "three.model.rotary_emb"]
    assert [str(part) for part in report.left] == [
        "two: GPT2LMHeadModel is of type 'gpt2', which posenc.hf does not support: positions enter by a learned table"
    ]
    assert (model["two"].config._attn_implementation, model["three"].config._attn_implementation) == chosen
    assert model["one"].config._attn_implementation != "posenc"
    assert posenc.hf.report(posenc.hf.restore(model)).replaced == ()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gpt2", "positions enter by a learned table"),
        ("longt5", "attends in blocks"),
        ("deberta", "in one tensor"),
        ("mpnet", "with its own code"),
    ],
)
def test_types_that_are_not_supported(kind, why):
    fields = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_layers": 1, "n_layer": 1}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **fields))
    with refuses(
        ValueError,
        f"posenc.hf.use: nothing in {type(model).__name__} can be replaced",
        f"{type(model).__name__} is of type '{kind}', which posenc.hf does not support",
        why,
        f"Pass a rotary model, or one of these types: {', '.join(posenc.hf.MODEL_TYPES)}.",
    ):
        posenc.hf.use(model)


def test_other_modules_and_objects_are_refused():
    with refuses(ValueError, "it contains no model of transformers"):
        posenc.hf.use(nn.Linear(2, 2))
    for function in (posenc.hf.use, posenc.hf.restore, posenc.hf.report):
        with refuses(TypeError, "model must be a loaded model of transformers; got str"):
            function("t5-small")


def with_old_attention(model):
    """Replace the attention by one like that of transformers 5.6, which neither scales nor calls a function."""
    for module in model.modules():
        if hasattr(module, "compute_bias"):
            module.__class__ = type("T5Attention", (type(module),), {"forward": lambda module, *args, **kwargs: None})
            del module.scaling
    return model


def with_other_forward(model, path):
    module = model.get_submodule(path)
    forward = module.forward
    module.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    return model


REFUSED = {
    "forward of BLOOM": (
        lambda: with_other_forward(bloom(), "transformer.h.1.self_attention"),
        "BloomAttention.forward has been replaced by other code",
    ),
    "forward of MPT": (
        lambda: with_other_forward(mpt(), "transformer.blocks.0.attn"),
        "MptAttention.forward has been replaced",
    ),
    "forward of DeBERTa": (
        lambda: with_other_forward(deberta(), "deberta.encoder.layer.2.attention.self"),
        "DisentangledSelfAttention.forward has been replaced",
    ),
    "old attention": (
        lambda: with_old_attention(t5()),
        "encoder: T5Attention does not call transformers' attention functions",
    ),
    "order of sums": (lambda: bloom(pretraining_tp=2, slow_but_exact=True), "with slow_but_exact it must sum"),
    "too few buckets": (
        lambda: deberta(position_buckets=6, max_relative_positions=4),
        "posenc.DeBERTa refuses its options: DeBERTa: max_distance must be at least 5",
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_layers_are_refused_and_left(build, message):
    model = build()
    before = contents(model)
    with refuses(ValueError, message):
        posenc.hf.use(model)
    assert contents(model).keys() == before.keys()


def test_only_the_unsupported_stack_is_left():
    model = shaken(t5())
    attention = model.encoder.block[0].layer[0].SelfAttention
    attention.relative_attention_bias = nn.Sequential(attention.relative_attention_bias)
    report = posenc.hf.report(posenc.hf.use(model))
    assert [part.name for part in report.replaced] == ["decoder"]
    (left,) = report.left
    assert str(left) == "encoder: its table of biases is not a plain nn.Embedding but Sequential"


def test_only_use_imports_transformers():
    code = "import sys, posenc; posenc.hf.use; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "hf" in dir(posenc)


def test_masks_of_other_patterns_are_built_whole():
    """Packed rows, as Falcon passes them since transformers 5.24, and overlays; causal and padding masks are not."""
    config, x = transformers.LlamaConfig(attn_implementation="sdpa"), torch.empty(2, 6, 0)
    create = transformers.masking_utils.create_causal_mask

    def ours(attention_mask=None, **given):
        given |= {"config": config, "inputs_embeds": x, "attention_mask": attention_mask, **cached(create, None)}
        return create(**given), interface._mask(create=create, counts=False, hides=False, **given)

    packed = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]])}
    band = {"and_mask_function": lambda batch, head, i, j: j > i - 2}
    for pattern in (packed, band):
        theirs, mask = ours(**pattern)
        assert theirs.shape[-2:] == (6, 6)
        assert torch.equal(mask.seen, theirs)
    assert ours(position_ids=torch.arange(6)[None] + 3)[1] == interface.Mask(None, causal=True)
    assert ours(torch.ones(2, 6))[1].seen is None
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    assert torch.equal(ours(padding)[1].seen, padding.bool()[:, None, None])


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # BLOOM's activation
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", ["t5", "bloom", "mpt", "deberta"])
def test_a_model_compiles_without_graph_breaks(name, side):
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
