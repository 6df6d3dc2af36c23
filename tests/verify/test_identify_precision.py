"""`identify` on precisions: each step of forming an angle rounded by itself, and all of them together."""

import itertools
import math

import pytest
import torch

from posenc.verify import identify

TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PARTS = ("positions", "frequencies", "products")
SHORT = ("bfloat16", "float16")


def honest(n, base, way):
    """Frequencies as honest code forms them."""
    x = torch.arange(n, dtype=torch.float64) / n
    if way == "float64":
        return base**-x
    f = x.float()
    ways = {
        "power": lambda: 1.0 / base**f,
        "exp": lambda: torch.exp(-f * math.log(base)),
        "of two": lambda: torch.pow(torch.tensor(float(base)), -f),
    }
    return ways[way]().double()


def rope_of(steps, base=10000.0, way="float64", gain=1.0, clockwise=False):
    """Return rope(x, positions) whose positions, frequencies, products and tables are each rounded to a type."""
    place, frequency, product, table = (TYPES[s] for s in steps)

    def rope(x, positions):
        half = x.shape[-1] // 2
        freq = honest(half, base, way).to(frequency).double()
        angles = (positions.to(place).double()[:, None] * freq).to(product).double()
        cos, sin = (gain * t.to(table).double() for t in (angles.cos(), angles.sin()))
        sin = -sin if clockwise else sin
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    return rope


def fits(told, is_so, coarsest="float32"):
    """Whether what is told holds, and says as much as can be known."""
    if is_so in SHORT:
        return told == is_so
    return told in (is_so, "float32 or finer") or (coarsest != "float32" and told == f"{coarsest} or finer")


ALL = list(itertools.product(("float32", *SHORT), TYPES, TYPES, ("float64", *SHORT)))
# all of them take a minute; these hold each pair of steps
SOME = [steps for i, steps in enumerate(ALL) if steps[3] == "float64" or i % 5 == 0]


@pytest.mark.sample(8)
@pytest.mark.parametrize("steps", [pytest.param(s, marks=() if s in SOME else pytest.mark.slow) for s in ALL])
def test_every_step_by_itself_and_with_others(steps):
    found = identify(rope_of(steps), "rope_fn", head_dim=32)
    assert (found.kind, found.base, found.scaling) == ("rotation", 10000.0, "none")
    for fed in ("float32", "bfloat16"):
        told = found.precision[fed]
        assert all(fits(told[part], s) for part, s in zip(PARTS, steps, strict=False))
    assert found.precision["float32"].get("cosines and sines", "float64") == steps[3]
    # vectors in bfloat16 are rounded as such tables are
    assert "cosines and sines" not in found.precision["bfloat16"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["power", "exp", "of two"])
@pytest.mark.parametrize("product", SHORT)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_frequencies_in_float32_behind_short_products(way, product, base):
    found = identify(rope_of(("float32", "float32", product, "float64"), base, way), "rope_fn", head_dim=64)
    assert (found.base, found.scaling) == (base, "none")
    told = found.precision["float32"]
    assert (told["positions"], told["products"]) == ("float32 or finer", product)
    assert told["frequencies"] in ("float32", "float32 or finer")
    hidden = any("the rounding of products hides" in why for why in found.unknown)
    assert hidden == (told["frequencies"] == "float32 or finer")
    assert found.precision["bfloat16"]["products"] == product


@pytest.mark.parametrize("product", SHORT)
def test_frequencies_in_bfloat16_are_told_from_those_in_float32_behind_short_products(product):
    found = identify(rope_of(("float32", "bfloat16", product, "float64")), "rope_fn", head_dim=64)
    assert found.precision["float32"] == {
        "positions": "float32 or finer",
        "frequencies": "bfloat16",
        "products": product,
    }
    assert not any("hides" in why for why in found.unknown)


def test_a_turn_the_other_way_round():
    steps = ("float32", "float32", "bfloat16", "float64")
    found = identify(rope_of(steps, clockwise=True), "rope_fn", head_dim=32)
    assert (found.direction, found.base) == ("clockwise", 10000.0)
    assert found.precision["float32"]["products"] == "bfloat16"


@pytest.mark.parametrize("product", SHORT)
def test_a_scaled_rule_behind_short_products(product):
    def rope(x, positions):
        freq = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]) / 4
        angles = (positions[:, None] * freq).to(TYPES[product]).double()
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)

    found = identify(rope, "rope_fn", head_dim=64)
    assert (found.base, found.scaling, found.parameters["factor"]) == (10000.0, "linear", 4.0)
    assert found.precision["float32"]["products"] == product


def test_positions_that_are_counted_tell_no_precision_beyond_the_text():
    """A text of 256 tokens holds no position that bfloat16 rounds, so nothing is said of it."""

    class Module(torch.nn.Module):
        def forward(self, q, k):
            if q.shape[1] > 256:
                raise ValueError("too long")
            turn = rope_of(("bfloat16", "float32", "float32", "float64"), way="power")
            pos = torch.arange(q.shape[1])
            return tuple(turn(x.transpose(1, 2), pos).transpose(1, 2) for x in (q, k))

    told = identify(Module(), "bshd_module", head_dim=32).precision["float32"]
    assert told["positions"] in ("bfloat16 or finer", "float16 or finer")


def test_angles_by_other_code_are_not_named():
    def rope(x, positions):
        freq = honest(x.shape[-1] // 2, 10000.0, "float64")
        angles = (positions[:, None] * freq * 50).round() / 50  # a grid of its own
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)

    found = identify(rope, "rope_fn", head_dim=32)
    assert "float32" not in found.precision
    assert "in which precision angles are formed" in " ".join(found.unknown)
