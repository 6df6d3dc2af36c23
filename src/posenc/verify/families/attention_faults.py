"""Faults of attention's scores, the likeliest first."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.verify.engine import Fault, precision
from posenc.verify.engine.records import Array
from posenc.verify.families.attention_scores import Asked, geometric

BASES = (10_000.0, 100_000.0, 160_000.0, 500_000.0, 1_000_000.0, 5_000_000.0, 10_000_000.0)  # that models have
SIDES = {"q": "queries", "k": "keys"}
FACTORS = (2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 2 * math.pi, math.pi / 180)  # of frequencies


def other(here: Asked) -> str:
    """Return the pairing that is not asked for."""
    return "interleaved" if here.layout == "half" else "half"


def faults(here: Asked, spec: Mapping[str, Any], *, open_pairing: bool = False) -> Iterator[Fault]:
    """Yield the faults of an encoding; those of a rotation also in the other pairing, where either is right."""
    yield Fault(
        "positions.given_ignored", {"given": False}, {"how": "tokens are counted, whatever positions are given"}
    )
    if here.encoding == "alibi":
        yield from _of_alibi(here)
        return
    known = list(_of_xpos() if here.encoding == "xpos" else _of_rope(here))
    swapped = {"layout_q": other(here), "layout_k": other(here)}
    if not open_pairing:
        yield from known[:1]
        yield Fault(f"{here.encoding}.layout.wrong_pairing", swapped)
        for side in "kq":
            yield Fault(f"{here.encoding}.layout.mixed", {f"layout_{side}": other(here)})
        yield from known[1:]
        return
    yield from known
    for fault in known:
        yield Fault(fault.code, {**swapped, **fault.change}, fault.values)


def _of_rope(here: Asked) -> Iterator[Fault]:
    yield Fault("rope.not_applied", {"sign_q": 0, "sign_k": 0})
    for side in "kq":
        yield Fault("rope.sign.one_side", {f"sign_{side}": -1})
    for shift in (1, -1):
        yield Fault("rope.query.off_by_one", {"shift_q": shift}, {"shift": f"{shift:+d}"})
    yield Fault("rope.query.not_turned", {"sign_q": 0})
    yield Fault("rope.key.not_turned", {"sign_k": 0})
    yield Fault("rope.config.scaling_ignored", _both(geometric(here.rotary_dim, here.base)))
    if here.base != 10000.0:
        yield Fault("rope.config.theta_not_read", _both(geometric(here.rotary_dim, 10000.0)))
    for base in BASES:
        yield Fault("rope.frequency.base", _both(geometric(here.rotary_dim, base)), {"base": base})
    for base in BASES:
        for side in "kq":
            values = {"side": SIDES[side], "base": base}
            yield Fault("rope.side.differ", {f"inv_{side}": geometric(here.rotary_dim, base)}, values)
    if here.heads:
        ladder = geometric(here.heads * here.rotary_dim, here.base)
        yield Fault("rope.heads.differ", _both(ladder.reshape(here.heads, 1, -1)))
    whole = {**_both(geometric(here.head_dim, here.base)), "rotary": here.head_dim}
    yield Fault("rope.partial.factor_not_read", whole)
    yield Fault("rope.partial.head_dim_used", _both(geometric(here.rotary_dim, here.base, here.head_dim)))
    for by in ("head", "place"):
        yield Fault("rope.axis.heads", {"by": by})
    for factor in FACTORS:
        yield Fault("rope.frequency.factor", _both(factor * here.inv_freq), {"factor": factor})
    yield from precision.faults("rope", ("positions", "frequencies", "table"))
    for rows in (256, 512, 1024, 2048):
        yield Fault("rope.table.too_short", {"last": rows - 1}, {"rows": rows})
    for rows in (64, 128, 256, 512, 1024, 2048):
        yield Fault("rope.table.wraps", {"wraps": rows}, {"rows": rows})


def _both(inv_freq: Array) -> dict[str, Any]:
    return {"inv_q": inv_freq, "inv_k": inv_freq}


def _of_xpos() -> Iterator[Fault]:
    yield Fault("xpos.scale.missing", {"size_q": 0, "size_k": 0})
    yield Fault("xpos.scale.inverted", {"size_q": -1, "size_k": 1})
    yield Fault("xpos.scale.same_side", {"size_q": 1, "size_k": 1})


def _of_alibi(here: Asked) -> Iterator[Fault]:
    yield Fault("alibi.no_effect", {"bias": 0.0})
    yield Fault("alibi.sign", {"bias": 1.0})
    yield Fault("alibi.slopes.not_power_of_two", {"slopes": "geometric"})
    yield Fault("alibi.slopes.exponent_off_by_one", {"slopes": "from one"})
    yield Fault("alibi.scale.applied_to_bias", {"bias": -here.scale})
