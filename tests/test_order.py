"""The reason for it all: attention sees a set, and an encoding makes a sequence of it."""

from typing import Any

import pytest
import torch

import posenc
import strategies
from posenc import positions
from posenc.laws.case import Case

WORDS = {"dog": 0, "bites": 1, "man": 2}
THERE, BACK = ("dog", "bites", "man"), ("man", "bites", "dog")


def read(encoding: Any, sentence: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """What an attention layer without a mask makes of each word of a sentence."""
    case = Case(encoding, torch.float64)
    table = torch.randn(3, case.d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = table[[WORDS[word] for word in sentence]][None]
    out = case.layer(x, case.positions(3), causal=False)
    return {word: out[0, :, i].detach() for i, word in enumerate(sentence)}


def difference(encoding: Any) -> float:
    there, back = read(encoding, THERE), read(encoding, BACK)
    return max(float((there[word] - back[word]).abs().max()) for word in WORDS)


def test_without_position_a_sentence_and_its_reversal_are_one() -> None:
    assert difference(posenc.NoPE()) < 1e-14


BLIND = ("nope", "query_temperature")  # the latter works on long texts, beside another
SHORT = ("fire",)  # up to its threshold, which three words do not reach, it sees |i - j| alone


@pytest.mark.parametrize("name", [name for name in posenc.names() if name not in BLIND])
def test_with_position_who_bites_whom_is_known_unless_the_encoding_is_blind_to_direction(name: str) -> None:
    encoding, traits = posenc.card(name).examples()[0], posenc.card(name).traits
    if name in SHORT or (traits["symmetric"] and traits["shift_invariant"]):  # a graph may be another read backwards
        # a symmetric bias sees the same distances in both; two words swapped with the third between them move it
        assert difference(encoding) < 1e-12
        assert any_order(encoding) > 1e-3
    else:
        assert difference(encoding) > 1e-3


def any_order(encoding: Any) -> float:
    there, turned = read(encoding, THERE), read(encoding, ("bites", "dog", "man"))
    return max(float((there[word] - turned[word]).abs().max()) for word in WORDS)


def test_attention_without_position_is_permutation_equivariant_and_with_it_is_not() -> None:
    case = Case(posenc.NoPE(), torch.float64)
    x, pos, order = case.tokens(7), case.positions(7), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    plain = case.layer(x, pos, causal=False)
    torch.testing.assert_close(case.layer(x[:, order], pos, causal=False), plain[:, :, order], rtol=0, atol=1e-13)
    turned = Case(posenc.RoPE(head_dim=8), torch.float64)
    shuffled = turned.layer(x[:, order], pos, causal=False)
    assert float((shuffled - turned.layer(x, pos, causal=False)[:, :, order]).abs().max()) > 1e-2


def test_what_tokens_forget_follows_the_order_of_the_sequence_and_not_the_positions() -> None:
    """So that permuting tokens with their positions does not permute what comes out, as an exception says."""
    case = Case(posenc.FoX(d_model=16, n_heads=4), torch.float64)
    x, pos, order = case.tokens(7), case.positions(7), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    with torch.no_grad():
        plain = case.layer(x, pos, causal=False)
        assert torch.equal(case.layer(x, pos[order], causal=False), plain)
        shuffled = case.layer(x[:, order], pos[order], causal=False)
    assert float((shuffled - plain[:, :, order]).abs().max()) > 1e-2


def test_a_causal_mask_alone_breaks_the_symmetry() -> None:
    """Which is why a decoder can do without an encoding (Haviv 2022)."""
    case = Case(posenc.NoPE(), torch.float64)
    x, pos = case.tokens(3), case.positions(3)
    there, back = case.layer(x, pos), case.layer(x.flip(1), pos).flip(2)
    assert float((there - back).abs().max()) > 1e-2


HYBRIDS = {
    "absolute and relative": posenc.Compose(posenc.Learned(d_model=32, max_len=64), posenc.T5(n_heads=4)),
    "three doors": posenc.Compose(
        posenc.Sinusoidal(d_model=32), posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=4), posenc.Shaw(head_dim=8)
    ),
}


@pytest.mark.parametrize("encoding", HYBRIDS.values(), ids=HYBRIDS)
def test_a_hybrid_is_the_sum_of_its_doors(encoding: posenc.Compose) -> None:
    """Scores written out: embedded tokens, turned queries and keys, and every bias."""
    case, pos = Case(encoding, torch.float64), positions.arange(6)
    x, members = case.tokens(6), list(case.encoding.encodings)
    placed = [m.place(pos, dtype=torch.float64) for m in members]
    y = x
    for member, p in zip(members, placed, strict=True):
        y = member.embed(y, p)
    q, k = ((y @ case.projections[name]).unflatten(-1, (-1, 8)).transpose(1, 2) for name in "qk")
    turned_q, turned_k, bias = q, k, 0
    for member, p in zip(members, placed, strict=True):
        term = member.bias(q, k, p, p)
        turned_q, turned_k = member.rotate_q(turned_q, p), member.rotate_k(turned_k, p)
        bias = bias if term is None else bias + term
    wanted = turned_q @ turned_k.repeat_interleave(2, 1).mT * case.encoding.score_scale(8) + bias
    got_q, got_k, _ = case.project(x, case.place(pos, x))
    torch.testing.assert_close(case.scores(got_q, got_k, case.place(pos, x)), wanted, rtol=0, atol=1e-12)


def test_nope_in_every_fourth_layer_is_position_free_there_and_nowhere_else() -> None:
    """Llama 4 and SmolLM3: in layers 3, 7, .. the scores do not move with the positions, in the others they do."""
    rope, nope = posenc.RoPE(head_dim=8), posenc.NoPE()
    layers = posenc.PerLayer([nope if i % 4 == 3 else rope for i in range(8)])
    assert len(layers.distinct) == 2
    q, placed = strategies.normal(1, 2, 6, 8), layers.place(positions.arange(6), dtype=torch.float64)
    free = []
    for i in range(8):
        encoding, here = layers.layer(i, placed)
        turned, _ = encoding.rotate(q, q, here)
        free.append(torch.equal(turned, q))
    assert [i for i, same in enumerate(free) if same] == [3, 7]


def test_encodings_may_differ_by_depth() -> None:
    sinusoidal, alibi = posenc.Sinusoidal(d_model=32), posenc.ALiBi(n_heads=4)
    layers = posenc.PerLayer([posenc.Compose(sinusoidal, alibi), alibi, posenc.RoPE(head_dim=8)])
    kinds = [layers.layer(i, layers.place(positions.arange(3)))[0].name for i in range(3)]
    assert kinds == ["Compose", "ALiBi", "RoPE"]
