"""posenc.hf.use changes one model: nothing that others share, hold or hook, and nothing that a later change breaks."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers

import posenc
from interop import rotary_models
from interop.hf_models import MODELS, asked, attended, built, falcon, logits, padded, shaken
from interop.rotary_models import YARN, counting, text
from strategies import refuses


def rotary(name="llama", **options):
    return rotary_models.built(name, **options)


def said(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_same_configuration_are_left_alone(name):
    model = built(name)
    there = shaken(type(model)(model.config), seed=5)
    inputs = asked(model, padded("right"))
    wanted = logits(there, inputs)
    posenc.hf.use(model)
    assert torch.equal(logits(there, inputs), wanted)
    later = shaken(type(model)(model.config), seed=5)
    assert torch.equal(logits(later, inputs), wanted)
    assert attended(later, inputs) == 0


def test_an_extended_model_shares_its_configuration_no_longer(tmp_path):
    model = rotary()
    there = type(model)(model.config)
    posenc.hf.use(model, YARN)
    assert there.config.rope_parameters["rope_type"] == "default"
    there.save_pretrained(tmp_path)
    assert "yarn" not in (tmp_path / "config.json").read_text()
    assert model.config is model.model.config
    assert model.config.rope_parameters["rope_type"] == "yarn"


@pytest.mark.parametrize("part", ["q_proj", "q_norm", "k_norm"])
@pytest.mark.parametrize("grad", [False, True])
def test_what_a_hook_keeps_stays(part, grad):
    model, ids, kept = rotary("qwen3"), text(), []
    layer = model.get_submodule(f"model.layers.0.self_attn.{part}")
    layer.register_forward_hook(lambda module, args, out: kept.append((out, out.detach().clone())))
    with torch.set_grad_enabled(grad):
        model(ids)
        posenc.hf.use(model)(ids)
    (before, _), (after, then) = kept
    assert torch.equal(after, then)
    assert torch.equal(after, before)


def test_tables_that_no_attention_uses_are_not_replaced():
    calls: list[str] = []
    model = posenc.hf.use(shaken(falcon()))
    with counting(calls):
        logits(model, asked(model, None))
    assert calls == []
    assert "rotates" not in str(posenc.hf.report(model))


def test_layers_without_positions_are_not_counted():
    model, calls = posenc.hf.use(rotary("smollm3", no_rope_layers=[1, 0, 1, 0])), []
    assert "rotates queries and keys of 2 attention layers by" in str(posenc.hf.report(model))
    with counting(calls):
        said(model, text())
    assert len(calls) == 2


def fetching(module, name="weight"):
    """Keep a module's weight elsewhere, and bring it for each call, as offloading does."""
    weight = getattr(module, name)
    setattr(module, name, nn.Parameter(torch.full_like(weight, torch.nan), requires_grad=False))

    def bring(module, args):
        getattr(module, name).data.copy_(weight)

    def take(module, args, out):
        getattr(module, name).data.fill_(torch.nan)

    module.register_forward_pre_hook(bring)
    module.register_forward_hook(take)


def test_tables_are_read_by_their_modules_so_that_hooks_may_bring_them():
    model = built("t5")
    inputs = asked(model, padded("right"))
    wanted = logits(model, inputs)
    for stack in (model.encoder, model.decoder):
        fetching(stack.block[0].layer[0].SelfAttention.relative_attention_bias)
    assert torch.equal(logits(model, inputs), wanted)
    torch.testing.assert_close(logits(posenc.hf.use(model), inputs), wanted, rtol=0, atol=1e-11)


def test_frequencies_that_change_beyond_the_declared_maximum_are_left():
    model = rotary()

    class GrowingRotaryEmbedding(type(model.model.rotary_emb)):
        def forward(self, x, position_ids):
            if position_ids.max() >= self.config.max_position_embeddings:
                self.inv_freq = self.original_inv_freq / 2
            return super().forward(x, position_ids)

    model.model.rotary_emb.__class__ = GrowingRotaryEmbedding
    with refuses(ValueError, "the tables of GrowingRotaryEmbedding are not the cosines and sines of its frequencies"):
        posenc.hf.use(model)


def test_phi_moe_is_used_as_it_runs():
    """Transformers' class scales by a factor of its own, and never takes the long frequencies."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope |= {"short_mscale": 1.25, "long_mscale": 1.25, "original_max_position_embeddings": 16}
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    config = transformers.PhimoeConfig(**sizes, **heads, max_position_embeddings=256, rope_parameters=rope)
    model = rotary_models.shaken(transformers.PhimoeForCausalLM(config))
    for length in (10, 40):
        posenc.hf.restore(model)
        wanted = said(model, text(length))
        got = said(posenc.hf.use(model), text(length))
        torch.testing.assert_close(got, wanted, rtol=0, atol=3e-5 * float(wanted.abs().max()))


@pytest.mark.sample(4)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["t5", "umt5", "falcon", "bloom"])
def test_another_attention_implementation_changes_nothing(name, implementation):
    model = posenc.hf.use(built(name))
    inputs = asked(model, padded("right"))
    wanted, calls = logits(model, inputs), attended(model, inputs)
    try:
        model.set_attn_implementation(implementation)
    except ValueError:
        pytest.skip("the model has no such implementation")
    assert attended(model, inputs) == calls
    torch.testing.assert_close(logits(model, inputs), wanted, rtol=0, atol=1e-11)


def replica(model):
    """Copy a model as nn.DataParallel does for another device."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, own in copies.items():
        own._modules = {name: copies.get(child) for name, child in module._modules.items()}
        own._parameters = {name: p if p is None else p * 2 for name, p in module._parameters.items()}
    return copies[model]


@pytest.mark.parametrize("name", ["t5", "bloom", "deberta"])
def test_replicas_run_on_weights_of_their_own(name):
    model = built(name)
    inputs = asked(model, padded("right"))
    with torch.no_grad():
        wanted = logits(replica(model), inputs)
        got = logits(replica(posenc.hf.use(model)), inputs)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))


def test_a_shallow_copy_of_an_attention_runs_its_own_weights():
    model = posenc.hf.use(rotary())
    own = model.model.layers[0].self_attn
    other = copy.copy(own)
    other._modules = dict(own._modules) | {"o_proj": nn.Linear(own.o_proj.in_features, own.o_proj.out_features)}
    assert other.forward.__self__ is other
    model.model.layers[0].self_attn = other
    before = said(model, text())
    with torch.no_grad():
        other.o_proj.weight.mul_(2)
    assert not torch.allclose(said(model, text()), before)


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


@pytest.mark.filterwarnings("ignore")  # of torch.jit itself, which goes through all attributes
def test_a_trace_is_of_the_model_that_is_used():
    model, ids = Logits(posenc.hf.use(rotary().double())), text()
    traced = torch.jit.trace(model, (ids,), check_trace=False)
    torch.testing.assert_close(traced(ids), model(ids))  # in float64, since a trace fuses and float32 shows it


def test_the_report_is_of_the_model_as_it_is_now():
    model = posenc.hf.use(rotary())
    whole = str(posenc.hf.report(model))
    attention = model.model.layers[1].self_attn
    attention.forward = attention.forward
    assert str(posenc.hf.report(model)) == whole + "; 1 of them were changed since"
    for layer in model.model.layers:
        layer.self_attn.forward = layer.self_attn.forward
    assert posenc.hf.report(model).replaced == ()
    model = posenc.hf.use(built("t5"))
    attention = model.encoder.block[1].layer[0].SelfAttention
    attention.forward = attention.forward
    assert "1 of them were changed since" in str(posenc.hf.report(model))


def test_rope_parameters_without_a_type_are_refused():
    with refuses(ValueError, "rope_parameters without a rope_type mean plain RoPE, which does not read factor"):
        posenc.hf.use(rotary(), rope_parameters={"factor": 4.0})
    model = posenc.hf.use(rotary(), rope_parameters={"rope_theta": 500.0})
    assert model.config.rope_parameters["rope_theta"] == 500.0


def test_parts_without_positions_are_not_reported():
    class Connector(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

    model = nn.ModuleDict({"one": rotary(), "two": Connector(transformers.GPT2Config())})
    assert posenc.hf.report(posenc.hf.use(model)).left == ()


@pytest.mark.parametrize("build", [rotary, lambda: rotary("gptj"), lambda: built("umt5"), lambda: built("bloom")])
def test_layers_share_a_class(build):
    """So that a compiler of one layer compiles once."""
    model = posenc.hf.use(build())
    own = [type(m) for name, m in model.named_modules() if name.endswith(("self_attn", ".attn", "SelfAttention"))]
    own += [type(m) for name, m in model.named_modules() if name.endswith("self_attention")]
    stacks = 2 if "umt5" in model.config.model_type else 1  # an encoder's bias is another than a decoder's
    assert len(own) > len({*own}) == stacks
