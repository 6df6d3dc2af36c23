"""Biases: FIRE by line segments, the network of the distance, ALiBi's slopes, and biases of the distance only."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import posenc
from posenc import attend, positions
from posenc.encodings import fire as fire_module
from strategies import normal, randomise, refuses
from watch import Largest


def network(fire: Any, pos: Tensor, k_pos: Tensor) -> Tensor:
    """FIRE as printed, a network for each pair: (n_heads, q_len, k_len)."""
    c, floor = fire.log_c.exp(), fire.init_threshold * fire.threshold_scale.abs()
    distance = (pos[:, None] - k_pos).abs().to(c.dtype)
    reach = torch.where(pos.abs() > floor, pos.abs().to(c.dtype), floor)[:, None]
    t = (c * distance + 1).log() / ((c * reach + 1).log() + fire.eps)
    return F.linear(F.linear(t[..., None], fire.w1[:, None], fire.b1).relu(), fire.w2, fire.b2).movedim(-1, 0)


def drawn(seed: int = 3, n_heads: int = 3, width: int = 16, threshold: float = 20.0) -> Any:
    fire = randomise(posenc.FIRE(n_heads=n_heads, width=width), seed)
    with torch.no_grad():
        fire.threshold_scale.fill_(-threshold / fire.init_threshold)  # its absolute value counts
        fire.w1[0], fire.b1[0] = 0.0, 0.7  # a unit that never switches, on
        fire.w1[1], fire.b1[1] = 0.0, -0.7  # and off
        fire.w1[3], fire.b1[3] = 2 * fire.w1[2], 2 * fire.b1[2]  # two that switch together
        fire.w1[4], fire.b1[4] = -fire.w1[2], -fire.b1[2]
    return fire


@pytest.mark.parametrize("piece", [fire_module._PIECE, 7])
def test_fires_segments_are_the_network(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(fire_module, "_PIECE", piece)
    fire, pos = drawn(), torch.tensor([3, 0, 21, -40, 90, 1_000_000])
    k_pos = torch.cat((pos, torch.arange(30)))
    ours, theirs = fire.dense(pos, k_pos, dtype=torch.float64)[0], network(fire, pos, k_pos)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weight, learned = normal(*ours.shape), list(fire.parameters())
    for mine, peer in zip(*(torch.autograd.grad((b * weight).sum(), learned) for b in (ours, theirs)), strict=True):
        assert peer.any()
        torch.testing.assert_close(mine, peer, rtol=1e-10, atol=1e-10)


def test_fire_of_a_batch_and_of_real_positions() -> None:
    fire, pos = drawn(), torch.stack((torch.arange(9.0) * 3.5, torch.arange(9.0) + 0.25)).double()
    for rows in (pos, pos.long()):
        both = fire.dense(rows, dtype=torch.float64)
        assert both.shape == (2, 3, 9, 9)
        for row, bias in zip(rows, both, strict=True):
            torch.testing.assert_close(bias, network(fire, row, row), rtol=1e-12, atol=1e-12)


def test_fire_accepts_heads_in_any_shape() -> None:
    fire, q, k = drawn(), torch.tensor([5, 30, 8]), torch.tensor([4, 4, 90])
    whole = network(fire, q, k)[:, range(3), range(3)]
    for h, wanted in (
        (torch.tensor([2, 0, 1]), whole[[2, 0, 1], range(3)]),  # another head for each pair
        (torch.tensor(1), whole[1]),
        (torch.tensor([[2], [0]]), whole[[2, 0]]),
    ):
        torch.testing.assert_close(fire.at(h, q.double(), k.double()), wanted, rtol=1e-12, atol=1e-12)


def test_fire_makes_no_tensor_of_its_width() -> None:
    """The backward pass keeps a few numbers per pair, however wide the network is."""
    fire, pos, kept = posenc.FIRE(n_heads=4, width=64), torch.arange(128), []

    def keep(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    with Largest() as seen, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        fire.dense(pos).sum().backward()
    assert seen.numbers <= 4 * 128 * 128
    assert sum(kept) <= 8 * 128 * 128
    assert all(p.grad is not None for p in fire.parameters())


def test_fires_gradients_in_float32_are_near_those_in_float64() -> None:
    """The network as printed is up to 5e-5 off."""
    torch.manual_seed(0)
    fire, pos = posenc.FIRE(n_heads=2, init_threshold=64.5), torch.arange(512)
    exact = posenc.FIRE(n_heads=2, init_threshold=64.5).double()
    exact.load_state_dict(fire.state_dict())
    weight, found = normal(2, 512, 512), []
    for module, dtype in ((fire, torch.float32), (exact, torch.float64)):
        out = module.dense(pos, dtype=dtype)[0] if module is fire else network(exact, pos, pos)
        found.append(torch.autograd.grad((out * weight.to(dtype)).sum(), list(module.parameters())))
    for mine, true in zip(*found, strict=True):
        assert float((mine - true).abs().max() / true.abs().max()) < 2e-5


@pytest.mark.compiles
@pytest.mark.parametrize(
    "encoding",
    [
        drawn().float(),
        randomise(posenc.DynamicPositionBias(n_heads=3, width=4), 5).float(),
        randomise(posenc.ALiBi(n_heads=3, slopes="learned", heads=(2, 0)), 6).float(),
        posenc.ALiBi(n_heads=3, slopes=(1.0, 0.5), heads=2, sides="key"),
        posenc.ALiBi(n_heads=3, sides="key", precision="falcon-bfloat16"),
    ],
    ids=str,
)
def test_score_mod_is_the_bias(encoding: Any) -> None:
    q, k, v = (normal(2, 3, n, 16, seed=n).float() for n in (8, 16, 16))
    k_pos = torch.arange(16) * 9
    placed, k_placed = encoding.place(k_pos[-8:]), encoding.place(k_pos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it advises to compile
        got = flex_attention(q, k, v, score_mod=encoding.score_mod(placed, k_placed))
    wanted = attend(q, k, v, encoding, placed, k_placed, causal=False, backend="reference-float64")
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.compiles
@pytest.mark.parametrize("encoding", [drawn(), randomise(posenc.DynamicPositionBias(n_heads=3, width=4), 5)], ids=str)
def test_compiled_at_is_at(encoding: Any) -> None:
    h, q, k = torch.arange(3)[:, None, None], torch.arange(30, 40.0)[:, None].double(), torch.arange(40.0).double()
    compiled = torch.compile(encoding.at, backend="aot_eager", fullgraph=True)
    weight = normal(3, 10, 40)
    results = []
    for at in (compiled, encoding.at):
        out = at(h, q, k)
        results.append([out, *torch.autograd.grad((out * weight).sum(), list(encoding.parameters()))])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def layers(bias: Any) -> nn.Sequential:
    """A network of torch's modules with the same parameters."""
    act = nn.SiLU if bias.activation == "silu" else nn.ReLU
    found: list[nn.Module] = []
    for i in range(bias.depth):
        linear = nn.Linear(bias.n_axes if i == 0 else bias.width, bias.width)
        linear.weight, linear.bias = (
            (bias.w_in, bias.b_in) if i == 0 else (nn.Parameter(bias.w_mid[i - 1]), nn.Parameter(bias.b_mid[i - 1]))
        )
        found.append(linear)
        if bias.norm:
            found.append(nn.LayerNorm(bias.width))
            found[-1].weight, found[-1].bias = nn.Parameter(bias.ln_g[i]), nn.Parameter(bias.ln_b[i])
        found.append(act())
    found.append(nn.Linear(bias.width, bias.n_heads))
    found[-1].weight, found[-1].bias = bias.w_out, bias.b_out
    return nn.Sequential(*found)


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"depth": 1}, {"depth": 4, "norm": False}, {"activation": "silu", "log_distance": True}],
    ids=str,
)
def test_dynamic_position_bias_is_a_network_of_torchs_layers(n_axes: int, options: dict[str, Any]) -> None:
    """Integer positions use a table of distances; others are computed pair by pair."""
    bias = randomise(posenc.DynamicPositionBias(n_heads=3, width=5, n_axes=n_axes, **options), 4)
    pos = torch.randint(-4, 9, (40, n_axes), generator=torch.Generator().manual_seed(1))
    distance = (pos[:6, None] - pos).double()
    wanted = layers(bias)(distance.sign() * distance.abs().log1p() if bias.log_distance else distance).movedim(-1, 0)
    flat = pos if n_axes > 1 else pos[:, 0]
    for flat_pos in (flat, flat.double(), flat.float()):
        got = bias.dense(flat_pos[:6], flat_pos, dtype=torch.float64)[0]
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    rows = torch.stack((flat + 1, flat))
    for dtype in (torch.float32, torch.float64):
        got = bias.dense(rows[:, :6], rows, dtype=dtype)
        torch.testing.assert_close(got, torch.stack((wanted, wanted)).to(dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_axes", [1, 2])
def test_dynamic_position_bias_runs_once_for_each_distance(n_axes: int) -> None:
    bias, size = posenc.DynamicPositionBias(n_heads=4, width=64, n_axes=n_axes), 256
    pos = positions.grid(16, 16) if n_axes == 2 else torch.arange(size)
    with Largest() as seen:
        bias.dense(pos).sum().backward()
    assert seen.numbers <= 4 * size * size
    assert all(p.grad is not None and p.grad.any() for name, p in bias.named_parameters() if name != "b_mid")


def test_dynamic_position_bias_accepts_heads_in_any_shape() -> None:
    bias = randomise(posenc.DynamicPositionBias(n_heads=3, width=4), 7)
    q, k = torch.tensor([5, 3, 8]), torch.tensor([4, 4, 9])
    wanted = layers(bias)((q - k).double()[:, None])  # (pairs, heads)
    torch.testing.assert_close(bias.at(torch.tensor([2, 0, 1]), q, k).double(), wanted[range(3), [2, 0, 1]])
    torch.testing.assert_close(bias.over(q - k), wanted.T)


DISTANCES = torch.arange(-300, 300)
BY_DISTANCE = [
    posenc.ALiBi(n_heads=4),
    posenc.ALiBi(n_heads=4, sides="one-sided"),
    randomise(posenc.ALiBi(n_heads=5, slopes="learned", heads=3), 1),
    randomise(posenc.KERPLE(n_heads=4), 1),
    randomise(posenc.KERPLEPower(n_heads=4), 1),
    posenc.Sandwich(n_heads=4),
    randomise(posenc.RelativeBias(n_heads=4, max_distance=9), 1),
    randomise(posenc.T5(n_heads=4), 1),
    randomise(posenc.T5(n_heads=4, bidirectional=True), 1),
    randomise(posenc.DynamicPositionBias(n_heads=4, width=6), 1),
]


@pytest.mark.parametrize("encoding", BY_DISTANCE, ids=str)
def test_biases_declared_by_distance_depend_on_it_only(encoding: Any) -> None:
    assert encoding.by_distance
    over = encoding.over(DISTANCES)
    for start in (0, 12_345, 1_000_000):
        pos = torch.full_like(DISTANCES, start)
        h = torch.arange(encoding.n_heads)[:, None]
        torch.testing.assert_close(encoding.at(h, pos + DISTANCES, pos), over, rtol=1e-6, atol=1e-6)


def test_sandwich_makes_no_table_of_all_distances() -> None:
    far = torch.tensor([0, 3, 2**40])  # a table of all distances would take terabytes
    found = posenc.Sandwich(n_heads=2, width=8).over(far)
    waves = [sum(math.cos(d * 10.0**-k) for k in range(4)) for d in far.tolist()]
    wanted = torch.tensor([[2 / 8 * wave for wave in waves], [2 / 16 * wave for wave in waves]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)  # 2^40 radians in float64


@pytest.mark.parametrize(
    "encoding",
    [posenc.ALiBi(n_heads=2, sides="key"), drawn(), posenc.DynamicPositionBias(n_heads=2, n_axes=2)],
    ids=str,
)
def test_biases_of_more_than_the_distance_are_not_declared_by_distance(encoding: Any) -> None:
    assert not encoding.by_distance


def slopes(alibi: Any) -> list[float]:
    """Minus the bias of a query one position after its key."""
    return (-alibi.dense(torch.tensor([1]), torch.tensor([0]), dtype=torch.float64)).flatten().tolist()


def test_slopes_of_heads() -> None:
    halves, quarters = [0.5**i for i in range(1, 9)], [0.25**i for i in range(1, 5)]
    assert slopes(posenc.ALiBi(n_heads=8)) == halves
    assert slopes(posenc.ALiBi(n_heads=6, heads=4)) == [*quarters, 0.0, 0.0]
    assert slopes(posenc.ALiBi(n_heads=6, heads=(5, 1, 2, 0))) == [quarters[3], quarters[1], quarters[2], 0, 0, 0.25]
    assert slopes(posenc.ALiBi(n_heads=3, slopes=(0.75, -1, 0))) == [0.75, -1.0, 0.0]
    assert slopes(posenc.ALiBi(n_heads=3, slopes=[2.0, 3.0], heads=(2, 0))) == [3.0, 0.0, 2.0]
    assert slopes(posenc.ALiBi(n_heads=4, heads=(0, 2), slopes="geometric", bias_max=4.0)) == [0.25, 0.0, 0.0625, 0.0]


@pytest.mark.parametrize("options", [{}, {"heads": 5}, {"heads": (6, 2, 3), "bias_max": 4.0}])
def test_learned_slopes_start_at_the_authors_and_stay_positive(options: dict[str, Any]) -> None:
    alibi = posenc.ALiBi(n_heads=7, slopes="learned", **options)
    torch.testing.assert_close(slopes(alibi), slopes(posenc.ALiBi(n_heads=7, **options)), rtol=1e-7, atol=0.0)
    q, k, v = (normal(1, 7, 12, 4, seed=i).float() for i in range(3))
    optimizer = torch.optim.Adam(alibi.parameters(), lr=0.5)  # steps of a slope itself would end below zero
    for _ in range(5):
        attend(q, k, v, alibi, positions.arange(12), backend="reference").square().sum().backward()
        optimizer.step()
    sloped = torch.tensor(slopes(posenc.ALiBi(n_heads=7, **options))) > 0
    assert (torch.tensor(slopes(alibi)) > 0).equal(sloped)
    assert alibi.log_slope.grad.abs().min() > 0  # type: ignore[union-attr]


def test_learned_slopes_stay_in_float32() -> None:
    alibi = posenc.ALiBi(n_heads=3, slopes="learned")
    before = alibi.log_slope.detach().clone()
    assert torch.equal(alibi.bfloat16().log_slope, before)
    assert alibi.double().log_slope.dtype == torch.float64
    assert "log_slope" in alibi.state_dict()
    assert not posenc.ALiBi(n_heads=3).state_dict()


@pytest.mark.parametrize("options", [{}, {"slopes": "learned"}, {"heads": 2}, {"slopes": (1.0, 0.25, 0.5)}])
def test_by_key_is_by_distance_behind_a_causal_mask(options: dict[str, Any]) -> None:
    by_key, by_distance = (posenc.ALiBi(n_heads=3, sides=s, **options) for s in ("key", "one-sided"))
    assert by_key.dense(torch.tensor([5]), torch.tensor([0, 2, 9])).flatten(0, 2).tolist() == [
        [0.0, 2 * m, 9 * m] for m in slopes(by_distance)
    ]
    q, k, v = (normal(1, 3, 30, 8, seed=i) for i in range(3))
    got, wanted = (attend(q, k, v, e, positions.arange(30), backend="reference") for e in (by_key, by_distance))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_falcon_rounds_slope_position_and_product() -> None:
    """bfloat16 has 8 bits: 257 is 256, 259 is 260; 2^-0.5 is 181/256, and 181/256 times 260 is 183.8, which is 184."""
    alibi = posenc.ALiBi(n_heads=1, slopes=(2.0**-0.5,), sides="key", precision="falcon-bfloat16")
    for dtype in (torch.float32, torch.float64):
        got = alibi.dense(torch.tensor([0]), torch.tensor([1, 256, 257, 259]), dtype=dtype)
        assert got.dtype == dtype
        assert got.flatten().tolist() == [181 / 256, 181.0, 181.0, 184.0]


REFUSED: list[tuple[type[posenc.Bias], dict[str, Any], type[Exception], str]] = [
    (posenc.FIRE, {"width": 0}, ValueError, "width must be at least 1; got width=0"),
    (posenc.FIRE, {"init_c": 0.0}, ValueError, "init_c must be a finite number above zero; got init_c=0.0"),
    (posenc.FIRE, {"init_threshold": -1.0}, ValueError, "init_threshold must be a finite number above zero"),
    (posenc.FIRE, {"eps": math.inf}, ValueError, "eps must be a finite number above zero"),
    (posenc.FIRE, {"eps": "small"}, TypeError, "eps must be a number"),
    (posenc.DynamicPositionBias, {"width": 0}, ValueError, "width must be at least 1"),
    (posenc.DynamicPositionBias, {"depth": 0}, ValueError, "depth must be at least 1"),
    (posenc.DynamicPositionBias, {"n_axes": 0}, ValueError, "n_axes must be at least 1"),
    (posenc.DynamicPositionBias, {"activation": "gelu"}, ValueError, "activation must be 'relu' or 'silu'; got 'gelu'"),
    (posenc.ALiBi, {"slopes": "steep"}, ValueError, "slopes must be 'authors' or 'geometric' or 'learned', or a list"),
    (posenc.ALiBi, {"slopes": (1.0, 2.0, 3.0), "heads": 2}, ValueError, "for each head that has a slope, 2; got 3"),
    (posenc.ALiBi, {"slopes": (1.0, math.nan, 2.0)}, ValueError, "slopes[1] must be finite"),
    (posenc.ALiBi, {"slopes": 3.0}, TypeError, "slopes must be a list of numbers; got slopes=3.0"),
    (posenc.ALiBi, {"heads": 0}, ValueError, "heads must be at least 1; got heads=0"),
    (posenc.ALiBi, {"heads": 4}, ValueError, "heads must name different heads of 0..2, and at least one; got heads=4"),
    (posenc.ALiBi, {"heads": (1, 1)}, ValueError, "heads must name different heads of 0..2"),
    (posenc.ALiBi, {"heads": ()}, ValueError, "and at least one; got heads=tuple of 0 entries"),
    (posenc.ALiBi, {"heads": (-1,)}, ValueError, "heads must be at least 0; got heads=-1"),
    (posenc.ALiBi, {"heads": (0.5,)}, TypeError, "heads must be a whole number"),
    (posenc.ALiBi, {"sides": "left"}, ValueError, "sides must be 'symmetric' or 'one-sided' or 'key'; got 'left'"),
    (posenc.ALiBi, {"precision": "half"}, ValueError, "precision must be 'falcon-bfloat16'; got 'half'"),
    (posenc.ALiBi, {"precision": "falcon-bfloat16"}, ValueError, "needs sides='key'; got sides='symmetric'"),
]


@pytest.mark.parametrize(
    ("cls", "options", "kind", "words"), REFUSED, ids=[f"{cls.__name__}-{words[:20]}" for cls, *_, words in REFUSED]
)
def test_refused_arguments(cls: type[posenc.Bias], options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with refuses(kind, f"{cls.__name__}: ", words):
        cls(**{"n_heads": 3} | options)
