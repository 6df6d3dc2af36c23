from typing import ClassVar

import pytest
import torch
from torch.nn import functional as F

import posenc
import strategies
from posenc import positions
from posenc.nn import Attention, Cache, Embedding, EncoderDecoder, LanguageModel

DIMS = posenc.Dims(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, max_len=64)


def language_model(encoding, n_layers=2):
    torch.manual_seed(0)
    model = LanguageModel(
        vocab_size=20, d_model=32, n_layers=n_layers, n_heads=4, n_kv_heads=2, encoding=encoding
    ).double()
    return model.eval()


def tokens(*shape):
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(1))


def test_embedding_is_token_times_root_d_model_plus_position():
    embedding, sinusoidal = Embedding(vocab_size=5, d_model=4), posenc.Sinusoidal(d_model=4)
    with torch.no_grad():
        embedding.tokens.weight.fill_(0.25)
    x = embedding(torch.tensor([[3, 3]]), sinusoidal, sinusoidal.place(positions.arange(2)))
    # 0.25 * sqrt(4) = 0.5, and the rows of Vaswani's table for positions 0 and 1
    wanted = torch.tensor([[[0.5, 1.5, 0.5, 1.5], [1.341471, 1.040302, 0.51, 1.49995]]])
    torch.testing.assert_close(x, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", strategies.HOSTED)
def test_decoding_with_a_cache_equals_one_pass(name):
    model, text = language_model(posenc.create(name, dims=DIMS).resolve(12)), tokens(2, 12)
    whole, cache = model(text), Cache()
    parts = [model(text[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 12))]
    assert len(cache) == 12
    # tables are float32 here, since the model places positions as models do
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-6, rtol=0)


def test_an_encoding_that_depends_on_the_length_is_resolved_for_the_tokens_of_a_call_and_refuses_a_cache():
    text, open_, known = tokens(2, 8), posenc.TAPE(d_model=32), posenc.TAPE(d_model=32, length=8)
    assert torch.equal(language_model(open_)(text), language_model(known)(text))
    assert not torch.allclose(language_model(open_)(text[:, :5]), language_model(known)(text[:, :5]))
    with strategies.refuses(ValueError, "TAPE: depends on the length", "Call resolve(seq_len)"):
        language_model(open_)(text, cache=Cache())


# others place anew at every layer, whose tokens they read
@pytest.mark.parametrize("name", [name for name in strategies.HOSTED if not posenc.card(name).cls.reads_x])
def test_positions_are_placed_once_in_a_forward_pass(name, monkeypatch):
    encoding = posenc.create(name, dims=DIMS).resolve(7)
    model, calls, place = language_model(encoding, n_layers=3), [], encoding.place
    monkeypatch.setattr(encoding, "place", lambda *a, **k: calls.append(a) or place(*a, **k))
    model(tokens(2, 7))
    assert len(calls) == 1


def test_per_layer_encodings_are_placed_once_each_and_differ_from_either_alone():
    rope, nope = posenc.RoPE(head_dim=8), posenc.NoPE()
    text, mixed = tokens(2, 9), posenc.PerLayer([rope, rope, nope])
    outputs = [language_model(e, n_layers=3)(text) for e in (rope, nope, mixed)]
    assert all(not torch.allclose(outputs[2], other) for other in outputs[:2])
    assert len(mixed.place(positions.arange(9)).parts) == 2


class Gate(posenc.Bias):
    """A bias that reads the tokens: how open a gate was, at each token."""

    reads_x = True

    def parts(self, pos, x, past, dtype):
        self.seen = [*getattr(self, "seen", []), tuple(x.shape)]
        return (x.mean(-1).to(dtype),)

    def at(self, h, q, k):
        return q - 2 * k


def test_an_encoding_that_reads_the_tokens_is_placed_at_every_layer():
    gate = Gate(n_heads=4)
    model, text = language_model(gate, n_layers=3), tokens(2, 9)
    whole = model(text)
    assert gate.seen == [(2, 9, 32)] * 4  # once for the embeddings, once a layer
    cache = Cache()
    parts = [model(text[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-6, rtol=0)
    twin = EncoderDecoder(vocab_size=20, d_model=32, n_layers=2, n_heads=4, encoding=gate, cross=Gate(n_heads=4))
    assert twin(text, text[:, :4]).shape == (2, 4, 20)


def test_left_padded_rows_go_on_from_their_own_last_position():
    model, text = language_model(posenc.RoPE(head_dim=8)), tokens(2, 9)
    real = torch.ones(2, 6, dtype=torch.bool)
    real[0, :2] = False
    cache = Cache()
    model(text[:, :6], positions.left_padded(real), cache=cache, mask=real[:, None, None, :])
    seen = torch.cat((real, torch.ones(2, 3, dtype=torch.bool)), 1)
    step = model(text[:, 6:], cache=cache, mask=seen[:, None, None, :])
    assert cache.placed[0].pos[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    torch.testing.assert_close(step[:1], model(text[:1, 2:])[:, 4:], atol=2e-6, rtol=0)
    torch.testing.assert_close(step[1:], model(text[1:])[:, 6:], atol=2e-6, rtol=0)


def test_left_padded_and_packed_text_give_what_plain_text_gives():
    model, text = language_model(posenc.RoPE(head_dim=8)), tokens(1, 10)
    plain = model(text[:, :6]), model(text[:, 6:])
    real = torch.tensor([[False] * 3 + [True] * 6])
    padded = model(torch.cat((text[:, :3], text[:, :6]), 1), positions.left_padded(real), mask=real[:, None, None, :])
    torch.testing.assert_close(padded[:, 3:], plain[0], atol=2e-6, rtol=0)
    ids = torch.tensor([0] * 6 + [1] * 4)
    packed = model(text, positions.packed(ids), document_ids=ids)
    torch.testing.assert_close(packed, torch.cat(plain, 1), atol=2e-6, rtol=0)


def test_only_the_last_logits_are_those_of_all_logits():
    model, text = language_model(posenc.ALiBi(n_heads=4)), tokens(2, 9)
    torch.testing.assert_close(model(text, last=3), model(text)[:, -3:])


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="n_heads must divide d_model.*d_model=30, n_heads=4"):
        Attention(d_model=30, n_heads=4)


def test_dropout_acts_in_training_only():
    model = LanguageModel(vocab_size=20, d_model=32, n_layers=1, n_heads=4, encoding=posenc.NoPE(), dropout=0.5)
    text = tokens(1, 8)
    assert not torch.equal(model.train()(text), model(text))
    assert torch.equal(model.eval()(text), model(text))


@pytest.mark.slow
def test_an_encoder_decoder_learns_to_reverse_twelve_symbols():
    torch.manual_seed(0)
    model = EncoderDecoder(vocab_size=13, d_model=64, n_layers=1, n_heads=4, encoding=posenc.Sinusoidal(d_model=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    begin = torch.full((64, 1), 12)
    for step in range(400):
        source = torch.randint(12, (64, 12))
        target = source.flip(1)
        logits = model(source, torch.cat((begin, target[:, :-1]), 1))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and loss < 0.01:
            break
    source, written = torch.randint(12, (16, 12)), begin[:16]
    with torch.no_grad():
        encoded = model.encode(source)
        for _ in range(12):
            written = torch.cat((written, model.decode(encoded, written)[:, -1:].argmax(-1)), 1)
    assert (written[:, 1:] == source.flip(1)).float().mean() > 0.95


def test_between_decoder_and_encoder_nothing_says_where_unless_asked():
    text, found = tokens(2, 7), {}
    for name, cross in {"left out": None, "nope": posenc.NoPE(), "alibi": posenc.ALiBi(n_heads=4)}.items():
        torch.manual_seed(0)
        model = EncoderDecoder(
            vocab_size=20, d_model=32, n_layers=2, n_heads=4, encoding=posenc.ALiBi(n_heads=4), cross=cross
        )
        found[name] = model(text, text[:, :5])
    assert torch.equal(found["left out"], found["nope"])
    assert not torch.allclose(found["left out"], found["alibi"])


def test_padding_of_the_source_changes_nothing():
    torch.manual_seed(0)
    model = EncoderDecoder(vocab_size=13, d_model=32, n_layers=2, n_heads=4, encoding=posenc.RoPE(head_dim=8)).eval()
    source, target = torch.randint(13, (1, 6)), torch.randint(13, (1, 5))
    real = torch.tensor([[True] * 6 + [False] * 2])
    padded = torch.cat((source, torch.zeros(1, 2, dtype=torch.long)), 1)
    torch.testing.assert_close(model(padded, target, real), model(source, target), atol=2e-6, rtol=0)


def test_between_decoder_and_encoder_an_encoding_that_depends_on_the_length_is_resolved_for_the_source():
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "d_model": 32, "n_layers": 1, "n_heads": 4}
    models = [
        EncoderDecoder(**shape, encoding=posenc.TAPE(d_model=32), cross=posenc.Mapped(posenc.ALiBi(n_heads=4), f))
        for f in (lambda pos: pos, lambda pos: 2 * pos)
    ]
    models[1].load_state_dict(models[0].state_dict())
    assert not torch.allclose(*(model(tokens(2, 7), tokens(2, 5)) for model in models))
    for model in models:
        model.cross = Resolved(n_heads=4)
    assert models[0](tokens(2, 7), tokens(2, 5)).shape == (2, 5, 20)
    assert Resolved.lengths == [7]


class Resolved(posenc.ALiBi):
    """ALiBi that writes down for which length it was resolved."""

    lengths: ClassVar = []

    def resolve(self, seq_len):
        self.lengths.append(seq_len)
        return self


def test_a_layer_norm_takes_away_what_is_common_to_all_lanes():
    """As the docstrings of Integer and Normalised say: a model that begins with one does not see them."""
    text = tokens(2, 9)
    blind = language_model(posenc.NoPE())(text)
    for encoding in (posenc.Integer(d_model=32), posenc.Normalised(d_model=32)):
        torch.testing.assert_close(language_model(encoding)(text), blind, rtol=0, atol=1e-10)
    assert not torch.allclose(language_model(posenc.Sine(d_model=32))(text), blind)
