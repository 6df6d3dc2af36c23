"""What the definitions do not say: lengths, random numbers, members, and what each constructor refuses."""

from typing import Any

import pytest
import torch

import posenc
from posenc import positions
from strategies import normal, refuses


@pytest.mark.parametrize("name", ["normalised", "tape"])
def test_an_encoding_of_the_length_must_know_it(name: str) -> None:
    open_ = posenc.create(name, d_model=4)
    with refuses(ValueError, f"{open_.name}: depends on the length", "got length=None", "Call resolve(seq_len)"):
        open_.place(positions.arange(3))
    at_eight, at_nine = open_.resolve(8), open_.resolve(9)
    assert open_.length is None
    assert (at_eight.length, at_nine.length) == (8, 9)
    assert at_eight.resolve(9) is at_eight
    assert not torch.equal(at_eight.vectors(positions.arange(3)), at_nine.vectors(positions.arange(3)))
    with refuses(ValueError, "length must be at least 1; got length=0"):
        open_.resolve(0)


def test_a_sequence_of_one_token_stands_at_zero() -> None:
    assert posenc.Normalised(d_model=1, over="last", length=1).vectors(torch.tensor([0])).tolist() == [[0.0]]


def test_cape_shakes_while_training_and_only_then() -> None:
    cape, pos = posenc.CAPE(d_model=4, max_global_scaling=2.0), positions.arange(50).expand(2000, 50)
    torch.manual_seed(0)
    moved = cape.augment(pos)
    again = cape.augment(pos)
    assert not torch.equal(moved, again)
    # between two tokens of a row lies the stretch, up to the jitter; the shift is common
    stretch = (moved[:, -1] - moved[:, 0]) / 49
    assert 0.49 < float(stretch.min()) < 0.55
    assert 1.85 < float(stretch.max()) < 2.05
    middle = stretch.log().mean()
    assert abs(float(middle)) < 0.05  # log stretch is uniform, so its mean is zero
    plain = posenc.CAPE(d_model=4, max_global_scaling=1.0, max_local_shift=0.0)
    shift = plain.augment(pos) - pos
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=1e-12)
    assert 4.9 < float(shift.max()) <= 5.0
    assert -5.0 <= float(shift.min()) < -4.9
    jitter = posenc.CAPE(d_model=4, max_global_scaling=1.0, max_global_shift=0.0).augment(pos) - pos
    assert 0.49 < float(jitter.max()) <= 0.5
    assert float(jitter.std()) == pytest.approx(1 / 12**0.5, rel=0.02)


def test_cape_in_evaluation_is_the_sinusoid() -> None:
    cape, sinusoidal, pos = posenc.CAPE(d_model=6), posenc.Sinusoidal(d_model=6), positions.arange(9)
    assert not torch.equal(cape.vectors(pos), sinusoidal.vectors(pos))
    assert torch.equal(cape.eval().vectors(pos), sinusoidal.vectors(pos))
    off = posenc.CAPE(d_model=6, max_global_shift=0.0, max_local_shift=0.0, max_global_scaling=1.0)
    assert torch.equal(off.vectors(pos), sinusoidal.vectors(pos))


def test_frequencies_may_be_a_function_of_their_numbers() -> None:
    octaves = posenc.Sinusoidal(d_model=6, inv_freq=lambda k: 2.0**-k, trainable=True)
    assert octaves.inv_freq.tolist() == [1.0, 0.5, 0.25]
    assert octaves.options()["inv_freq"] == (1.0, 0.5, 0.25)
    assert posenc.RoPE(head_dim=4, inv_freq=lambda k: k).frequencies().tolist() == [[0.0, 1.0]]
    with refuses(ValueError, "RoPE: inv_freq must hold 2 frequencies", "got 3"):
        posenc.RoPE(head_dim=4, inv_freq=lambda k: torch.ones(3))


def test_a_learned_scale_multiplies_all_lanes_and_learns() -> None:
    plain, scaled = posenc.Sinusoidal(d_model=4), posenc.Sinusoidal(d_model=4, learned_scale=0.25)
    pos = positions.arange(5)
    torch.testing.assert_close(scaled.vectors(pos), plain.vectors(pos) * 0.25)
    (gradient,) = torch.autograd.grad(scaled.vectors(pos).sum(), scaled.scale)
    assert float(gradient) == pytest.approx(float(plain.vectors(pos).sum()))


def test_gaussian_features_are_those_of_the_seed_everywhere() -> None:
    """The first numbers of RandomState(0) are known to everybody: 1.76405235, 0.40015721."""
    features = posenc.GaussianFourier(d_model=4, sigma=1.0, extent=1.0)
    angle = 2 * torch.pi * torch.tensor([1.76405235, 0.40015721], dtype=torch.float64)
    torch.testing.assert_close(
        features.vectors(torch.tensor([1]))[0], torch.cat((angle.sin(), angle.cos())), atol=1e-7, rtol=0
    )
    other = posenc.GaussianFourier(d_model=4, sigma=1.0, extent=1.0, seed=1)
    assert not torch.allclose(other.vectors(torch.tensor([1])), features.vectors(torch.tensor([1])))


def test_hierarchical_takes_encodings_too_and_their_learned_parts() -> None:
    table = posenc.Learned(d_model=4, max_len=3)
    both = posenc.Hierarchical(d_model=4, axes=(table, "sinusoidal"))
    pos = torch.tensor([[2, 5], [0, 1]])
    wanted = table.vectors(pos[:, 0]) + posenc.Sinusoidal(d_model=4).vectors(pos[:, 1])
    torch.testing.assert_close(both.vectors(pos), wanted.float())
    assert [name for name, _ in both.named_parameters()] == ["members.0.weight"]
    with refuses(ValueError, "Learned: positions must lie in 0..2", "got position 3"):
        both.place(torch.tensor([[3, 0]]))
    resolved = posenc.Hierarchical(d_model=4, axes=(table, posenc.TAPE(d_model=4))).resolve(8)
    assert resolved.members[0] is table
    assert resolved.members[1].length == 8


def heads(n: int, width: int) -> torch.Tensor:
    return normal(1, n, 3, width)


@pytest.mark.parametrize(
    ("construct", "kind", "words"),
    [
        (lambda: posenc.ALiBi(n_heads=2.5), TypeError, "ALiBi: n_heads must be a whole number; got n_heads=2.5"),
        (lambda: posenc.ALiBi(n_heads=True), TypeError, "ALiBi: n_heads must be a whole number; got n_heads=True"),
        (lambda: posenc.RoPE(head_dim=64.0), TypeError, "RoPE: head_dim must be a whole number; got head_dim=64.0"),
        (lambda: posenc.Integer(d_model="4"), TypeError, "Integer: d_model must be a whole number; got d_model='4'"),
        (lambda: posenc.Normalised(d_model=1, length=2.5), TypeError, "length must be a whole number; got length=2.5"),
        (lambda: posenc.GaussianFourier(d_model=2, sigma=float("inf")), ValueError, "sigma must be a finite number"),
        (lambda: posenc.GaussianFourier(d_model=4, matrix=torch.ones(2, 1)), ValueError, "the shape (1, 2); got"),
        (lambda: posenc.TransformerXL(d_model=2, n_heads=1, head_dim=2, order="sin"), ValueError, "order must be"),
        (lambda: posenc.GaussianFourier(d_model=2, matrix=[[float("nan")]]), ValueError, "matrix must be finite"),
        (lambda: posenc.GaussianFourier(d_model=2, matrix="B"), TypeError, "matrix must be a table of real numbers"),
        (lambda: posenc.GaussianFourier(d_model=2, seed=None), TypeError, "seed must be a whole number; got seed=None"),
        (lambda: posenc.NeRFFourier(d_model=400, n_octaves=60), ValueError, "float64 resolves 50 octaves"),
        (lambda: posenc.CAPE(d_model=2, max_global_shift=float("inf")), ValueError, "all of them finite"),
        (lambda: posenc.Sinusoidal(d_model=2, learned_scale=float("nan")), ValueError, "learned_scale must be finite"),
        (lambda: posenc.QueryTemperature(law="warm"), ValueError, "'beam' or 'inkling'; got 'warm'"),
        (lambda: posenc.QueryTemperature(original_max_len=1), ValueError, "original_max_len must be at least 2"),
        (lambda: posenc.QueryTemperature(weight=-0.1), ValueError, "weight must be finite and not negative"),
        (lambda: posenc.RoPE(head_dim=4, score_factor=0.0), ValueError, "score_factor must be a finite number"),
        (lambda: posenc.NoPE(n_axes=0), ValueError, "NoPE: n_axes must be at least 1; got n_axes=0"),
        (lambda: posenc.Integer(d_model=0), ValueError, "Integer: d_model must be at least 1; got d_model=0"),
        (lambda: posenc.Normalised(d_model=1, over="end"), ValueError, "over must be 'length' or 'last'; got 'end'"),
        (lambda: posenc.Sine(d_model=2, spectrum="loud"), ValueError, "'octaves' or 'geometric'; got 'loud'"),
        (lambda: posenc.Sine(d_model=2, base=1.0), ValueError, "Sine: base must be a finite number greater than 1"),
        (lambda: posenc.TAPE(d_model=2, length=0), ValueError, "TAPE: length must be at least 1; got length=0"),
        (lambda: posenc.CAPE(d_model=2, max_local_shift=-1.0), ValueError, "CAPE: shifts must be at least 0"),
        (lambda: posenc.CAPE(d_model=2, max_global_scaling=0.5), ValueError, "got max_global_shift=5.0"),
        (lambda: posenc.ComplexOrder(d_model=3), ValueError, "ComplexOrder: d_model must be even"),
        (lambda: posenc.GaussianFourier(d_model=3), ValueError, "GaussianFourier: d_model must be even"),
        (lambda: posenc.GaussianFourier(d_model=2, sigma=0.0), ValueError, "sigma=0.0"),
        (lambda: posenc.NeRFFourier(d_model=1), ValueError, "NeRFFourier: d_model must be at least 2 for each axis"),
        (lambda: posenc.NeRFFourier(d_model=8, n_octaves=5), ValueError, "n_octaves=5"),
        (lambda: posenc.LearnableFourier(d_model=2, n_features=3), ValueError, "n_features must be even"),
        (lambda: posenc.LearnableFourier(d_model=2, gamma=0.0), ValueError, "gamma=0.0"),
        (lambda: posenc.Learned2D(d_model=2, height=0, width=1), ValueError, "height must be at least 1; got height=0"),
        (lambda: posenc.Hierarchical(d_model=3, combine="concat"), ValueError, "got d_model=3 and 2 axes"),
        (lambda: posenc.Hierarchical(d_model=4, combine="mix"), ValueError, "combine must be 'sum' or 'concat'"),
        (lambda: posenc.Hierarchical(d_model=4, axes=("rope",)), TypeError, "constructed with only d_model=4"),
        (lambda: posenc.Hierarchical(d_model=4, axes="sine"), TypeError, "one encoding per axis; got 'sine'"),
        (lambda: posenc.Hierarchical(d_model=4, axes=(3, 4)), TypeError, "must be additive encodings"),
        (lambda: posenc.Hierarchical(d_model=4, axes=(posenc.NoPE(),)), TypeError, "members must be additive"),
        (lambda: posenc.Hierarchical(d_model=4, axes=(posenc.Sine(d_model=3),)), ValueError, "n_axes=1 and d_model=3"),
        (lambda: posenc.ALiBi(n_heads=2, bias_max=0.0), ValueError, "bias_max must be a finite number above zero"),
        (lambda: posenc.ALiBi(n_heads=2, sides="left"), ValueError, "sides must be 'symmetric' or 'one-sided'"),
        (lambda: posenc.Sandwich(n_heads=2, width=3), ValueError, "Sandwich: width must be even"),
        (lambda: posenc.Shaw(head_dim=2, max_distance=-1), ValueError, "max_distance must be at least 0; got"),
        (lambda: posenc.Shaw(head_dim=2).bias(heads(1, 3), heads(1, 3), None, None), ValueError, "made for head_dim=2"),
    ],
)  # fmt: skip
def test_refusals_name_the_encoding_and_what_it_got(construct: Any, kind: type[Exception], words: str) -> None:
    with refuses(kind, words):
        construct()


def test_one_sided_alibi_tells_before_from_after_and_is_the_same_behind_a_mask() -> None:
    one, both = (posenc.ALiBi(n_heads=2, sides=s) for s in ("one-sided", "symmetric"))
    pos = positions.arange(5)
    assert torch.equal(one.dense(pos, causal=True), both.dense(pos, causal=True))
    assert not one.dense(pos).triu(1).any()
    assert (both.dense(pos)[0, 0].triu(1) != 0).sum() == 10


def test_shaw_reads_grouped_keys_batches_and_half_precision() -> None:
    shaw = posenc.Shaw(head_dim=4, max_distance=2)
    q, k = normal(2, 4, 3, 4).bfloat16(), normal(2, 2, 5, 4).bfloat16()
    placed, k_placed = shaw.place(positions.continued(2, 3)), shaw.place(positions.arange(5).expand(2, 5))
    bias = shaw.bias(q, k, placed, k_placed)
    assert (bias.shape, bias.dtype) == ((2, 4, 3, 5), torch.float32)
    # the first query stands at 2, two ahead of the first key and two behind the last
    torch.testing.assert_close(bias[:, :, 0, 0], q[:, :, 0].float() @ shaw.weight[4] / 2)
    torch.testing.assert_close(bias[:, :, 0, 4], q[:, :, 0].float() @ shaw.weight[0] / 2)


WIDE = [e for name in posenc.names() for e in posenc.card(name).examples() if e.keeps_float32 and list(e.parameters())]


@pytest.mark.parametrize("encoding", WIDE, ids=str)
def test_learned_frequencies_are_float32_whatever_the_default_and_the_cast(encoding: Any) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        made = type(encoding)(**encoding.options())
    finally:
        torch.set_default_dtype(torch.float32)
    for module in (made, made.half(), made.bfloat16()):
        kinds = {name: p.dtype for name, p in module.named_parameters() if name != "scale"}
        assert set(kinds.values()) <= {torch.float32}, kinds


def test_what_is_learned_starts_where_the_docstring_says() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        check_starts()


def check_starts() -> None:
    t2v = posenc.Time2Vec(d_model=4000)
    assert float(t2v.inv_freq[0]) == pytest.approx(1e-4)
    assert float(t2v.inv_freq[1]) == 1.0
    assert float(t2v.phase.std()) == pytest.approx(2 * torch.pi / 12**0.5, rel=0.05)
    assert float(posenc.Time2Vec(d_model=1).inv_freq) == pytest.approx(1e-4)
    assert float(posenc.LearnableFourier(d_model=4000, gamma=5.0).weight_r.std()) == pytest.approx(0.2, rel=0.05)
    cpvt = posenc.CPVT(d_model=2000)
    assert float(cpvt.weight.abs().max()) == pytest.approx(1 / 3, rel=0.01)
    power = 2 * posenc.KERPLEPower(n_heads=4000).logit_r2.sigmoid()
    assert (float(power.min()), float(power.max())) == pytest.approx((0.01, 1.99), abs=0.01)
    both = posenc.Hierarchical(d_model=4, axes=(posenc.Learned(d_model=4, max_len=3), "sine"))
    before = both.members[0].weight.detach().clone()
    both.reset_parameters()
    assert not torch.equal(before, both.members[0].weight)


def test_a_network_of_features_is_not_rounded_by_autocast() -> None:
    encoding, pos = posenc.LearnableFourier(d_model=16), positions.arange(9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.place(pos).parts[0], encoding.vectors(pos))


def test_tokens_without_a_batch_or_with_two_stand_where_they_are() -> None:
    integer = posenc.Integer(d_model=1)
    assert integer(torch.zeros(3, 1), positions.arange(3)).flatten().tolist() == [0.0, 1.0, 2.0]
    assert integer(torch.zeros(2, 5, 3, 1), positions.arange(3)).shape == (2, 5, 3, 1)
    for x in (torch.zeros(3, 1), torch.zeros(2, 2, 3, 1)):
        with refuses(ValueError, "Integer: x must have a token for each position"):
            integer(x, torch.arange(6).view(2, 3))


@pytest.mark.parametrize("name", posenc.names())
def test_no_parameter_is_a_scalar(name: str) -> None:
    """FSDP refuses them: it shards the first dimension."""
    card = posenc.card(name)
    for options in (card.example, *({**card.example, **more} for more in card.variants)):
        assert all(parameter.ndim for parameter in posenc.create(name, **options).parameters())
