"""Devices without float64, long texts of other steps, one side in place, and factors of scores: each is checked."""

import math
from threading import Thread

import pytest
import torch

import posenc
from posenc import verify
from posenc.laws import ways
from posenc.positions import has_float64
from posenc.positions.checks import without_float64


class RoundsWithoutFloat64(posenc.RoPE):
    def parts(self, pos, x, past, dtype):
        if has_float64(pos.device):
            return super().parts(pos, x, past, dtype)
        angle = pos.float()[..., None] * self.frequencies()[0].float()
        return angle.cos(), angle.sin()


class DropsFractionsWithoutFloat64(posenc.RoPE):
    def parts(self, pos, x, past, dtype):
        return super().parts(pos if has_float64(pos.device) else pos.floor(), x, past, dtype)


class CountsOnInLongTexts(posenc.RoPE):
    def parts(self, pos, x, past, dtype):
        if pos.shape[-1] > 1000:
            pos = pos[..., :1] + torch.arange(pos.shape[-1])
        return super().parts(pos, x, past, dtype)


class LeavesTheOtherSlot(posenc.RoPE):
    def rotate(self, q, k, *places, out=None, **options):
        turned = super().rotate(q, k, *places, **options)
        if out is None:
            return turned
        halves = (out[0] is q) != (out[1] is k)
        return tuple(o if halves and o is not x else o.copy_(t) for o, x, t in zip(out, (q, k), turned, strict=True))


SPOILT = {
    "rotate_q, without float64": RoundsWithoutFloat64(head_dim=16),
    "rotate_q, in a long text": CountsOnInLongTexts(head_dim=16),
    "rotate, one in place": LeavesTheOtherSlot(head_dim=16),
}


@pytest.mark.parametrize("way", SPOILT)
def test_a_way_that_gives_other_numbers_is_named(way):
    assert {name for name, _ in ways.differences(SPOILT[way])} == {way}


def test_fractions_that_are_dropped_without_float64_are_seen():
    found = {name for name, _ in ways.differences(DropsFractionsWithoutFloat64(head_dim=16))}
    assert found == {"rotate_q, without float64"}


RIGHT = (
    *(posenc.RoPE(head_dim=16), posenc.RoPE(head_dim=16, trainable=True), posenc.XPos(head_dim=16)),
    *(posenc.AxialRoPE(head_dim=16), posenc.ALiBi(n_heads=3), posenc.Sinusoidal(d_model=16)),
    *(posenc.FoX(n_heads=2, d_model=16), posenc.RetNet(**posenc.card("retnet").example)),
)


@pytest.mark.parametrize("encoding", RIGHT, ids=lambda e: type(e).__name__)
def test_what_is_right_on_both_kinds_of_device_passes(encoding):
    assert list(ways.differences(encoding)) == []


def test_float64_is_denied_in_one_thread_and_comes_back():
    cpu, elsewhere = torch.device("cpu"), []

    def denied():
        with without_float64():
            assert not has_float64(cpu)
            thread = Thread(target=lambda: elsewhere.append(has_float64(cpu)))
            thread.start()
            thread.join()
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        denied()
    assert has_float64(cpu)
    assert elsewhere == [True]


YARN = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256}
DEEPSEEK = {
    **{"model_type": "deepseek_v3", "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "rope_theta": 10000.0},
    "max_position_embeddings": 4096,
}


def attention(encoding, *, first=False, factor=1.0):
    """Attend with an encoding; `first` turns the wrong end of a head, `factor` multiplies scores besides."""

    def run(q, k, v, pos):
        placed = encoding.place(pos)
        if first:
            q, k = q.roll(8, -1), k.roll(8, -1)
        q, k = encoding.rotate(q, k, placed)
        scores = factor * encoding.score_scale(q.shape[-1]) * q @ k.mT
        return scores.masked_fill(pos[:, None] < pos, -math.inf).softmax(-1) @ v

    return run


@pytest.mark.parametrize("weights", [{"mscale": 1.0, "mscale_all_dim": 1.0}, {}], ids=["a factor", "a gain"])
def test_scores_of_a_configuration_have_its_factor_its_gain_and_its_lanes(weights):
    config = DEEPSEEK | {"rope_scaling": YARN | weights}
    spec = {"encoding": "rope", "heads": 4, "head_dim": 16, "causal": True, "config": config}
    rope = posenc.RoPE.from_config(config)

    def status(**spoilt):
        return verify.check(attention(rope, **spoilt), convention="attention", spec=spec).status

    assert status() == "pass"
    assert status(first=True) == "fail"
    assert status(factor=1 / rope.score_scale(16) / 4 if weights else 1.6) == "cannot_tell"
