"""What posenc.hf leaves in rotary models and why."""

import pytest
import torch

pytest.importorskip("transformers")

import posenc
from interop.rotary_models import built, contents, text
from strategies import refuses


def same(got, wanted, rounding=3e-5):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


# ---- what cannot be replaced


def test_a_function_that_turns_otherwise_is_left(monkeypatch):
    from transformers.models.llama import modeling_llama

    def other(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return q * cos - q.flip(-1) * sin, k * cos - k.flip(-1) * sin

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    with refuses(ValueError, "posenc.hf.use: nothing in LlamaForCausalLM can be replaced"):
        posenc.hf.use(built("llama"))


def test_tables_of_another_kind_are_left():
    model = built("llama")

    class OtherRotaryEmbedding(type(model.model.rotary_emb)):
        def forward(self, x, position_ids):
            cos, sin = super().forward(x, position_ids)
            return cos * 1.01, sin

    model.model.rotary_emb.__class__ = OtherRotaryEmbedding
    assert "are not the cosines and sines of its frequencies" in str(posenc.hf.report(model))


def test_frequencies_of_somebody_else_stay():
    model, ids = built("llama"), text()
    rotary = model.model.rotary_emb
    rotary.inv_freq.mul_(0.7)
    rotary.original_inv_freq.mul_(0.7)
    wanted = logits(model, ids)
    same(logits(posenc.hf.use(model), ids), wanted)
    assert "differ from its configuration and are kept" in str(posenc.hf.report(model))


def test_a_forward_of_somebody_else_is_left():
    model = built("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    before = contents(model)
    with pytest.raises(ValueError, match="LlamaAttention.forward has been replaced by other code"):
        posenc.hf.use(model)
    assert contents(model).keys() == before.keys()
