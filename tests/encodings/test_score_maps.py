"""CoPE and DAPE against loops over single scores, and score maps within other encodings and within attention."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import posenc
from posenc import Compose, Encoding, OnAxes, PerLayer
from strategies import check, normal, randomise, refuses


def cope_loop(scores: Tensor, q: Tensor, weight: Tensor, pos: list[int], seen: Tensor) -> Tensor:
    """Golovneva 2024, equations 3 to 5 and the listing in appendix B, one pair of tokens at a time."""
    out, most = scores.clone(), weight.shape[1] - 1
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in scores.shape[:3])).tolist():
        for j in range(scores.shape[3]):
            between = [t for t in range(len(pos)) if pos[t] >= pos[j] and bool(seen[i, t])]
            count = min(sum(1 / (1 + math.exp(-float(scores[b, h, i, t]))) for t in between), float(most))
            below, share = int(count), count - int(count)
            vector = weight[:, below] * (1 - share) + weight[:, min(below + 1, most)] * share
            out[b, h, i, j] += float(q[b, h, i] @ vector)
    return out


def cope(max_count: int = 4, head_dim: int = 3) -> posenc.CoPE:
    made: posenc.CoPE = randomise(posenc.CoPE(head_dim=head_dim, max_count=max_count), 7)
    return made


def rescored(encoding: Encoding, scores: Tensor, pos: Tensor, seen: Tensor | None, head_dim: int = 3) -> Any:
    q = normal(*scores.shape[:3], head_dim, seed=1)
    k = normal(scores.shape[0], scores.shape[1], scores.shape[3], head_dim, seed=2)
    placed = encoding.place(pos, dtype=torch.float64)
    return q, encoding.rescore(scores, q, k, placed, placed, seen).detach()


@given(data=st.data())
@check(40)
def test_cope_counts_what_may_be_seen_from_each_key_on(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    pos = data.draw(st.lists(st.integers(-3, 9), min_size=n, max_size=n))  # in any order, and some alike
    seen = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).view(n, n)
    encoding = cope(data.draw(st.integers(1, 5)))
    scores = 3 * normal(2, 2, n, n, seed=n)
    q, got = rescored(encoding, scores, torch.tensor(pos), seen)
    wanted = cope_loop(scores, q, encoding.weight.detach(), pos, seen)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def test_cope_by_hand() -> None:
    """Gates of 1 and 0: the counts are 2, 1, 1 for keys of which the second is not counted, and end at P - 1 = 1."""
    encoding = cope(max_count=3)
    placed, scores = encoding.place(torch.arange(3)), torch.tensor([[[[50.0, -50.0, 50.0]]]]).double()
    assert encoding.counts(scores, placed, None).tolist() == [[[[2.0, 1.0, 1.0]]]]
    assert cope(max_count=2).counts(scores, placed, None).tolist() == [[[[1.0, 1.0, 1.0]]]]
    unseen = torch.tensor([True, True, False])
    assert encoding.counts(scores, placed, unseen).flatten().tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_cope_starts_as_nope() -> None:
    q, k, v = (normal(1, 2, 5, 4, seed=i) for i in range(3))
    got = posenc.attend(q, k, v, posenc.CoPE(head_dim=4), torch.arange(5))
    torch.testing.assert_close(got.detach(), posenc.attend(q, k, v, posenc.NoPE(), torch.arange(5)))


@pytest.mark.parametrize("encoding", [cope(head_dim=4), randomise(posenc.DAPE(n_heads=2, width=3), 1)])
def test_attention_rescores_whole_rows_and_what_is_ahead_does_not_count(encoding: Encoding) -> None:
    q, k, v = (normal(1, 2, 6, 4, seed=i) for i in range(3))
    pos = torch.arange(6)
    got = posenc.attend(q, k, v, encoding, pos).detach()
    changed = k.clone()
    changed[:, :, 4:] += 1.0
    other = posenc.attend(q, changed, v, encoding, pos).detach()
    torch.testing.assert_close(got[:, :, :4], other[:, :, :4], rtol=0, atol=1e-14)
    assert not torch.allclose(got[:, :, 4:], other[:, :, 4:])
    seen = torch.ones(6, 6).tril().bool()
    scores = q @ k.mT / 2
    placed = encoding.place(pos, dtype=torch.float64)
    wanted = encoding.rescore(scores, q, k, placed, placed, seen).detach().masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(got, wanted.softmax(-1) @ v, rtol=0, atol=1e-13)
    assert not torch.allclose(got, posenc.attend(q, k, v, posenc.NoPE(), pos))


@pytest.mark.parametrize(("name", "n_heads"), [("kerple", 3), ("alibi", 2)])
def test_dape_is_the_authors_network(name: str, n_heads: int) -> None:
    """Zheng 2024's code: a network over the last dimension of [scores; bias], a linear layer, LeakyReLU, another."""
    dape = randomise(posenc.DAPE(n_heads=n_heads, width=5, encoding=name), 2)
    network = nn.Sequential(nn.Linear(2 * n_heads, 5), nn.LeakyReLU(), nn.Linear(5, n_heads)).double()
    learned = [dape.w1, dape.b1, dape.w2, dape.b2]
    for theirs, ours in zip(network.parameters(), learned, strict=True):
        theirs.data = ours.detach().clone()
    scores, pos = normal(2, n_heads, 4, 4), torch.tensor([5, 0, 2, 9])
    _, got = rescored(dape, scores, pos, None)
    bias = dape.encoding.dense(pos, dtype=torch.float64).detach()
    for b in range(2):
        for i in range(4):
            for j in range(4):
                a, here = scores[b, :, i, j], bias[0, :, i, j]
                wanted = a + here + network(torch.cat((a, here)))
                torch.testing.assert_close(got[b, :, i, j], wanted.detach(), rtol=0, atol=1e-12)


def test_dape_without_its_network_is_its_bias() -> None:
    dape = randomise(posenc.DAPE(n_heads=2, width=3), 5)
    for parameter in (dape.w2, dape.b2):
        parameter.data.zero_()
    q, k, v = (normal(2, 2, 7, 4, seed=i) for i in range(3))
    wanted = posenc.attend(q, k, v, dape.encoding, torch.arange(7), window=4)
    torch.testing.assert_close(posenc.attend(q, k, v, dape, torch.arange(7), window=4), wanted)
    assert dape.bias(q, k, dape.place(torch.arange(7)), dape.place(torch.arange(7))) is None


def test_dape_draws_as_torch_draws_linear_layers() -> None:
    torch.manual_seed(0)
    dape = posenc.DAPE(n_heads=8, width=50)
    for parameter, fan_in in ((dape.w1, 16), (dape.b1, 16), (dape.w2, 50), (dape.b2, 50)):
        largest = float(parameter.detach().abs().max())
        assert 0.75 * fan_in**-0.5 < largest <= fan_in**-0.5
    before = dape.w1.detach().clone(), dape.encoding.log_r1.detach().clone()
    dape.reset_parameters()
    assert not torch.equal(dape.w1, before[0])
    assert not torch.equal(dape.encoding.log_r1, before[1])


def test_dape_takes_an_encoding_and_resolves_it() -> None:
    class Longer(posenc.ALiBi):
        def resolve(self, seq_len: int) -> posenc.ALiBi:
            return posenc.ALiBi(n_heads=self.n_heads, bias_max=float(seq_len))

    dape = posenc.DAPE(n_heads=2, encoding=Longer(n_heads=2)).eval()
    resolved = dape.resolve(16)
    assert resolved.encoding.bias_max == 16.0
    assert resolved.w1 is dape.w1
    assert not resolved.training
    plain = posenc.DAPE(n_heads=2, encoding="alibi")
    assert plain.resolve(16) is plain
    assert plain.options() == {"n_heads": 2, "width": 32, "encoding": "alibi"}


def test_a_score_map_runs_behind_all_biases() -> None:
    alibi, dape, rope = posenc.ALiBi(n_heads=2), randomise(posenc.DAPE(n_heads=2, width=3), 4), posenc.RoPE(head_dim=4)
    q, k, v, pos = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1), normal(1, 2, 6, 4, seed=2), torch.arange(6)
    placed = dape.place(pos, dtype=torch.float64)
    turned = rope.rotate(q, k, rope.place(pos, dtype=torch.float64))
    scores = turned[0] @ turned[1].mT / 2 + alibi.dense(pos, dtype=torch.float64)
    seen = torch.ones(6, 6).tril().bool()
    wanted = dape.rescore(scores, q, k, placed, placed, seen).masked_fill(~seen, -torch.inf).softmax(-1) @ v
    for members in ((alibi, dape, rope), (dape, rope, alibi)):
        got = posenc.attend(q, k, v, Compose(*members), pos)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def test_score_maps_within_other_encodings() -> None:
    q, k, v = (normal(1, 2, 5, 3, seed=i) for i in range(3))
    pos = torch.tensor([4, 1, 0, 2, 3])
    wanted = posenc.attend(q, k, v, cope(), pos)
    on_axes = OnAxes(cope(), (1,), n_axes=2)
    assert on_axes.rescores
    got = posenc.attend(q, k, v, on_axes, torch.stack((torch.zeros(5).long(), pos), -1))
    torch.testing.assert_close(got, wanted)
    layers = PerLayer([posenc.NoPE(), cope()])
    assert layers.rescores
    encoding, placed = layers.layer(1, layers.place(pos, dtype=torch.float64))
    torch.testing.assert_close(posenc.attend(q, k, v, encoding, placed), wanted)
    with refuses(ValueError, "PerLayer: each layer has its own encoding"):
        layers.rescore(q @ k.mT, q, k, placed, placed, None)
    nothing = Encoding()
    assert not nothing.rescores
    scores, nowhere = q @ k.mT, nothing.place(pos)
    assert nothing.rescore(scores, q, k, nowhere, nowhere, None) is scores


def test_a_score_map_may_stand_beside_another_score_scale() -> None:
    both = Compose(posenc.T5(n_heads=2, score_scale=1.0), cope())
    assert both.rescores
    assert both.score_scale(64) == 1.0


def test_what_is_refused() -> None:
    with refuses(ValueError, "Compose: at most one member may map the scores", "got ['CoPE', 'DAPE']"):
        Compose(cope(), posenc.DAPE(n_heads=2))
    with refuses(ValueError, "CoPE: max_count must be at least 1; got max_count=0"):
        posenc.CoPE(head_dim=4, max_count=0)
    with refuses(ValueError, "CoPE: made for head_dim=3; got q of shape (1, 2, 5, 4)"):
        rescored(cope(), normal(1, 2, 5, 5), torch.arange(5), None, head_dim=4)
    with refuses(TypeError, "CoPE: needs integer positions"):
        cope().place(torch.tensor([0.5]))
    with refuses(ValueError, "DAPE: made for n_heads=2; got scores of 3 heads"):
        rescored(posenc.DAPE(n_heads=2), normal(1, 3, 5, 5), torch.arange(5), None)
    with refuses(TypeError, "DAPE: needs a bias, which depends only on positions; got encoding=RoPE("):
        posenc.DAPE(n_heads=2, encoding=posenc.RoPE(head_dim=4))
    with refuses(TypeError, "a bias given by name is constructed with only n_heads=2; got encoding='rope'", "head_dim"):
        posenc.DAPE(n_heads=2, encoding="rope")
    with refuses(ValueError, "as many heads as the network; got n_heads=2 and ALiBi with n_heads=3"):
        posenc.DAPE(n_heads=2, encoding=posenc.ALiBi(n_heads=3))
