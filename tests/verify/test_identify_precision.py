"""`identify` on precisions: each step of forming an angle rounded by itself, and all of them together."""

import itertools
import math

import pytest
import torch

from posenc.verify import identify

TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PARTS = ("positions", "frequencies", "products")
SHORT = ("bfloat16", "float16")
WAYS = {
    "float64": lambda x, base: base**-x,
    "power": lambda x, base: 1.0 / base ** x.float(),
    "exp": lambda x, base: torch.exp(-x.float() * math.log(base)),
}


def rope_of(steps, base=10000.0, way="float64", factor=1.0, sign=1):
    """Return rope(x, positions) whose positions, frequencies, products and tables are each rounded to a type."""
    place, frequency, product, table = (TYPES[s] for s in steps)

    def rope(x, positions):
        half = x.shape[-1] // 2
        freq = WAYS[way](torch.arange(half, dtype=torch.float64) / half, base).double() / factor
        angles = (positions.to(place).double()[:, None] * freq.to(frequency).double()).to(product).double()
        cos, sin = angles.cos().to(table).double(), sign * angles.sin().to(table).double()
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    return rope


def fits(found, is_so):
    """Whether what is reported holds, and says as much as can be known."""
    return found == is_so if is_so in SHORT else found in (is_so, "float32 or finer")


ALL = list(itertools.product(("float32", *SHORT), TYPES, TYPES, ("float64", *SHORT)))
SOME = [steps for i, steps in enumerate(ALL) if steps[3] == "float64" or i % 5 == 0]  # each pair of steps


@pytest.mark.sample(8)
@pytest.mark.parametrize("steps", [pytest.param(s, marks=() if s in SOME else pytest.mark.slow) for s in ALL])
def test_every_step_by_itself_and_with_others(steps):
    found = identify(rope_of(steps), "rope_fn", head_dim=32)
    assert (found.kind, found.base, found.scaling) == ("rotation", 10000.0, "none")
    for fed in ("float32", "bfloat16"):
        assert all(fits(found.precision[fed][part], s) for part, s in zip(PARTS, steps, strict=False))
    assert found.precision["float32"].get("cosines and sines", "float64") == steps[3]
    assert "cosines and sines" not in found.precision["bfloat16"]  # vectors are rounded as such tables are


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["power", "exp"])
@pytest.mark.parametrize("product", SHORT)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_frequencies_in_float32_behind_short_products(way, product, base):
    found = identify(rope_of(("float32", "float32", product, "float64"), base, way), "rope_fn", head_dim=64)
    assert (found.base, found.scaling) == (base, "none")
    precision = found.precision["float32"]
    assert (precision["positions"], precision["products"]) == ("float32 or finer", product)
    assert precision["frequencies"] in ("float32", "float32 or finer")
    is_hidden = any(f"rounding of products to {product} hides it" in why for why in found.unknown)
    assert is_hidden == (precision["frequencies"] == "float32 or finer")
    assert found.precision["bfloat16"]["products"] == product


@pytest.mark.parametrize("product", SHORT)
def test_a_scaled_rule_behind_short_products_the_other_way_round(product):
    rope = rope_of(("float32", "float64", product, "float64"), factor=4, sign=-1)
    found = identify(rope, "rope_fn", head_dim=64)
    assert (found.base, found.scaling, found.parameters["factor"]) == (10000.0, "linear", 4.0)
    assert (found.precision["float32"]["products"], found.direction) == (product, "clockwise")


def test_positions_that_are_counted_show_no_precision_beyond_the_text():
    """A text of 256 tokens holds no position that bfloat16 rounds, so nothing is said of it."""

    class Module(torch.nn.Module):
        def forward(self, q, k):
            if q.shape[1] > 256:
                raise ValueError("too long")
            rope, pos = rope_of(("bfloat16", "float32", "float32", "float64"), way="power"), torch.arange(q.shape[1])
            return tuple(rope(x.transpose(1, 2), pos).transpose(1, 2) for x in (q, k))

    precision = identify(Module(), "bshd_module", head_dim=32).precision["float32"]
    assert precision["positions"] in ("bfloat16 or finer", "float16 or finer")


def test_angles_by_other_code_are_not_named():
    def rope(x, positions):
        angles = (positions[:, None] * WAYS["float64"](torch.arange(16) / 16, 10000.0) * 50).round() / 50
        a, b = x.double().chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)

    found = identify(rope, "rope_fn", head_dim=32)
    assert "float32" not in found.precision
    assert "the precision of angles" in " ".join(found.unknown)
