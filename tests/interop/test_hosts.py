"""What trainers and servers do to models, done to models with posenc's encodings: the results stay the same."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import posenc
from interop import models
from posenc.nn import LanguageModel

DIMS = posenc.Dims(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, max_len=64)
OPTIONS = {"rope": {}, "learned rope": {"trainable": True}, "shaw": {"max_distance": 5}}
ENCODINGS = (
    "rope",
    "learned rope",
    "learned",
    "sinusoidal",
    "alibi",
    "t5",
    "fire",
    "shaw",
    "transformer_xl",
    "cope",
    "vo_rope",
)


def encoding(name):
    return posenc.create(name.removeprefix("learned ") or name, dims=DIMS, **OPTIONS.get(name, {}))


def host(name):
    """Return a model and its arguments: posenc's own with an encoding, or one of transformers with `hf.use`."""
    torch.manual_seed(0)
    if name in ENCODINGS:
        model = LanguageModel(vocab_size=40, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, encoding=encoding(name))
        for parameter in model.encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    else:
        model = models.build(models.configuration(name))
        posenc.hf.use(model)
    return model.eval()


TEXT = torch.randint(3, 40, (2, 11), generator=torch.Generator().manual_seed(2))


def logits(model, text=TEXT):
    """Return the logits of a text."""
    if isinstance(model, LanguageModel):
        return model(text)
    return model(input_ids=text, use_cache=False).logits


def copied(model):
    return logits(copy.deepcopy(model))


def pickled(model):
    return logits(pickle.loads(pickle.dumps(model)))


def from_meta(model):
    """Build on the meta device, allocate, and load the weights, as large checkpoints are loaded."""
    hollow = copy.deepcopy(model).to("meta").to_empty(device="cpu")
    hollow.load_state_dict(model.state_dict(), strict=True)
    return logits(hollow)


def functional(model):
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    spoilt = copy.deepcopy(model)
    for parameter in spoilt.parameters():
        parameter.data.zero_()
    given = (TEXT,) if isinstance(model, LanguageModel) else ()
    named = {} if given else {"input_ids": TEXT, "use_cache": False}
    found = functional_call(spoilt, values, given, named)
    return found if given else found.logits


SAME = {"deepcopy": copied, "pickle": pickled, "meta device": from_meta, "functional_call": functional}
MODELS = (*ENCODINGS, "llama", "qwen3")


@pytest.mark.parametrize("way", SAME)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_numbers_are_the_same(name, way):
    model = host(name)
    torch.testing.assert_close(SAME[way](model), logits(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing_gives_the_same_gradients(name):
    found = []
    for through in (logits, lambda model: checkpoint(logits, model, use_reentrant=False)):
        model = host(name)
        through(model).square().mean().backward()
        found.append({n: p.grad for n, p in model.named_parameters()})
    assert all(g is not None for g in found[0].values())
    for n, wanted in found[0].items():
        torch.testing.assert_close(found[1][n], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_in_half_precision_differs_by_rounding(name, dtype):
    model = host(name)
    wanted = logits(model)
    off = (
        logits(copy.deepcopy(model).to(dtype)).float() - wanted
    ).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert off < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_quantised_linear_layers_next_to_it(name):
    model = host(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces torchao
        quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)
    assert any("quantized" in type(m).__module__ for m in quantised.modules())
    wanted = logits(model)
    off = (logits(quantised) - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert off < 0.2


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_an_exported_model_reads_other_lengths(name):
    model = host(name)
    length = torch.export.Dim("length", min=2, max=60)
    program = torch.export.export(Host(model), (TEXT,), dynamic_shapes=({1: length},), strict=False)
    for n in (11, 7):
        torch.testing.assert_close(program.module()(TEXT[:, :n]), logits(model, TEXT[:, :n]), rtol=1e-5, atol=1e-5)


class Host(torch.nn.Module):
    """A model whose only argument is the text."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, text):
        return logits(self.model, text)


@pytest.mark.parametrize("name", posenc.names())
def test_no_parameter_is_a_scalar(name):
    """FSDP refuses them."""
    for example in posenc.card(name).examples():
        assert [n for n, p in example.named_parameters() if not p.ndim] == []
