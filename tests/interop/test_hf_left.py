"""What posenc.hf leaves in rotary models and why, and what it turns in place."""

from unittest import mock

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import posenc
from interop.rotary_models import built, contents, text
from posenc.interop.hf import overwriting, turning
from strategies import refuses


def same(got, wanted, rounding=3e-5):
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding * max(1.0, float(wanted.abs().max())))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def turned_in_place(model, ids):
    """Return for each turn of queries whether it was in their own memory."""
    found = []
    before = turning.Turn.both

    def both(self, q, *args):
        at = q.data_ptr()
        out = before(self, q, *args)
        found.append(out[0].data_ptr() == at)
        return out

    with mock.patch.object(turning.Turn, "both", both):
        model(input_ids=ids, use_cache=False)
    return found


@pytest.mark.parametrize(
    ("name", "fresh"), [("llama", True), ("qwen3", True), ("cohere2", True), ("phi", False), ("gemma3n", False)]
)
def test_what_is_fresh_is_turned_in_place(name, fresh):
    """But where gradients or hooks look at it, and where it may be somebody else's."""
    model, ids = posenc.hf.use(built(name)), text()
    assert turned_in_place(model, ids) == [False] * len(turned_in_place(model, ids))
    with torch.no_grad():
        assert set(turned_in_place(model, ids)) == {fresh}
    if fresh:
        kept = []
        layer = model.get_submodule("model.layers.2.self_attn.k_proj")  # which turns in all of these
        hook = layer.register_forward_hook(lambda module, args, out: kept.append((out, out.clone())))
        with torch.no_grad():
            assert turned_in_place(model, ids).count(False) == 1
        hook.remove()
        assert all(torch.equal(*pair) for pair in kept)


class Aliased(nn.Module):
    """Forwards whose keys are seen by others: each source must refuse."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in "qkv")

    def values_are_keys(self, x, cos, sin):
        q = self.q_proj(x).view(1, 1, 2, 8)
        k = self.k_proj(x).view(1, 1, 2, 8)
        v = k
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, v

    def parts_of_one(self, x, cos, sin):
        q, k = self.q_proj(x).view(1, 1, 2, 8).chunk(2, -1)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k

    def the_tokens_themselves(self, x, cos, sin):
        q = x.view(1, 1, 2, 8)
        k = self.k_proj(x).view(1, 1, 2, 8)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, x

    def other_names(self, x, cos, sin):
        q = self.q_proj(x).view(1, 1, 2, 8)
        k = self.k_proj(x).view(1, 1, 2, 8)
        q_turned, k_turned = apply_rotary_pos_emb(q, k, cos, sin)
        return q, q_turned, k_turned

    def looked_at(self, x, cos, sin):
        q = self.q_proj(x).view(1, 1, 2, 8)
        k = self.k_proj(x).view(1, 1, 2, 8)
        gate = self.v_proj(q)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, gate

    def fine(self, x, cos, sin):
        q = self.q_proj(x).view(1, 1, 2, 8)
        k = self.k_proj(x).view(1, 1, 2, 8)
        length = k.shape[2]
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, length


def apply_rotary_pos_emb(q, k, cos, sin):
    return q, k


@pytest.mark.parametrize("name", [name for name in vars(Aliased) if not name.startswith("_")])
def test_which_sources_may_be_overwritten(name):
    module = type("Own", (Aliased,), {"forward": vars(Aliased)[name]})()
    wanted = ["k_proj", "q_proj"] if name == "fine" else None
    assert overwriting.sources(module, "apply_rotary_pos_emb") == wanted


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
    assert "are no cosines and sines of its frequencies" in str(posenc.hf.report(model))


def test_frequencies_of_somebody_else_stay():
    model, ids = built("llama"), text()
    rotary = model.model.rotary_emb
    rotary.inv_freq.mul_(0.7)
    rotary.original_inv_freq.mul_(0.7)
    wanted = logits(model, ids)
    same(logits(posenc.hf.use(model), ids), wanted)
    assert "others than its configuration says, and stay" in str(posenc.hf.report(model))


def test_a_forward_of_somebody_else_is_left():
    model = built("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    before = contents(model)
    with pytest.raises(ValueError, match="LlamaAttention.forward has been replaced by something else"):
        posenc.hf.use(model)
    assert contents(model).keys() == before.keys()
