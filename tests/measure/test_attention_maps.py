"""Attention weights of the small models: against NumPy, and against what the models themselves compute."""

import numpy as np
import pytest
import torch

import posenc
from posenc.measure import attention_by_distance, attention_maps
from posenc.nn import EncoderDecoder, LanguageModel

TOKENS = np.array([3, 0, 2, 2, 1, 4, 0])
DIMS = posenc.Dims(d_model=16, n_heads=2, n_kv_heads=2, head_dim=8, max_len=32, original_max_len=16)


def model(name: str, n_layers: int = 2, n_kv_heads: int = 1) -> LanguageModel:
    torch.manual_seed(5)
    sizes = {"d_model": 16, "n_layers": n_layers, "n_heads": 2, "n_kv_heads": n_kv_heads}
    made = LanguageModel(vocab_size=5, encoding=posenc.create(name, dims=DIMS), **sizes)
    for parameter in made.parameters():  # large enough that the weights are far from even
        parameter.data = torch.randn_like(parameter)
    return made


@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "sinusoidal", "t5", "transformer_xl"])
def test_weights_times_values_are_what_the_model_computes(name: str) -> None:
    made = model(name, n_kv_heads=2 if name == "transformer_xl" else 1)
    seen: list[torch.Tensor] = []
    for block in made.blocks:
        block.attention.kv.register_forward_hook(lambda _, __, out: seen.append(out))
        block.attention.out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    maps = attention_maps(made, TOKENS)
    seen.clear()
    with torch.no_grad():
        made.eval()(torch.from_numpy(TOKENS)[None])
    for layer in range(2):
        kv, joined = (t[0].double().numpy() for t in seen[2 * layer : 2 * layer + 2])
        n_kv = kv.shape[1] // 16
        values = kv[:, n_kv * 8 :].reshape(len(TOKENS), n_kv, 8)
        expected = np.stack([maps[layer, h] @ values[:, h * n_kv // 2] for h in range(2)], 1).reshape(len(TOKENS), 16)
        np.testing.assert_allclose(expected, joined, rtol=1e-4, atol=1e-5 * np.abs(joined).max())


def test_of_equal_scores_the_weights_are_even_and_causal() -> None:
    made = model("nope", 1)
    made.blocks[0].attention.q.weight.data.zero_()
    maps = attention_maps(made, [0, 1, 2])
    np.testing.assert_allclose(maps[0, 0], [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]], atol=1e-15)


def test_rotated_values_leave_weights_as_they_are() -> None:
    made, plain = model("vo_rope", 1), model("nope", 1)
    np.testing.assert_allclose(attention_maps(made, TOKENS), attention_maps(plain, TOKENS), rtol=0, atol=1e-15)


def test_where_only_the_bias_speaks_the_weights_are_its_softmax() -> None:
    made = model("alibi", 1)
    made.blocks[0].attention.q.weight.data.zero_()
    maps = attention_maps(made, TOKENS)
    distance = np.arange(7)
    for head, slope in enumerate((2.0**-4, 2.0**-8)):
        expected = np.exp(-slope * distance)
        np.testing.assert_allclose(maps[0, head, 6, ::-1], expected / expected.sum(), rtol=1e-12)


def test_the_model_is_left_as_it_was() -> None:
    made = model("rope")
    made.train()
    attention_maps(made, TOKENS)
    assert made.training
    assert not any(block.attention._forward_pre_hooks for block in made.blocks)


def test_by_distance_is_the_mean_along_diagonals() -> None:
    maps = np.array([[[1.0, 0, 0], [0.2, 0.8, 0], [0.5, 0.3, 0.2]]])
    np.testing.assert_allclose(attention_by_distance(maps), [[2 / 3, 0.25, 0.5]])
    with pytest.raises(ValueError, match="a row and a column for each token"):
        attention_by_distance(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("tokens", "kind", "said"),
    [
        ([0.5], TypeError, "tokens must be integers"),
        ([True], TypeError, "tokens must be real numbers"),
        (np.zeros((1, 2), int), ValueError, "must be one text"),
        (np.zeros(0, int), ValueError, "must be one text"),
        ([5], ValueError, "from 0 to 4"),
        ([-1], ValueError, "from 0 to 4"),
        (np.zeros(20_000, int), ValueError, "over 2 GiB"),
    ],
)
def test_wrong_tokens_are_refused(tokens: object, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        attention_maps(model("rope"), tokens)  # type: ignore[arg-type]


def test_other_models_are_refused() -> None:
    other = EncoderDecoder(vocab_size=5, d_model=16, n_layers=1, n_heads=2, encoding=posenc.create("nope"))
    with pytest.raises(Exception, match="LanguageModel"):
        attention_maps(other, TOKENS)  # type: ignore[arg-type]
