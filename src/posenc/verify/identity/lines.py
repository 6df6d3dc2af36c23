"""Write what was identified as the line of posenc that computes the same."""

from dataclasses import replace
from typing import Any

from posenc.verify.identity.identify import Identification


def call(name: str, **options: Any) -> str:
    """Return a call of an encoding's constructor; options that are None are left out.

    >>> call("RoPE", head_dim=64, base=10000.0, pairing=None)
    'posenc.RoPE(head_dim=64, base=10000.0)'
    """
    return f"posenc.{name}({', '.join(f'{key}={value!r}' for key, value in options.items() if value is not None)})"


def unless(value: Any, default: Any) -> Any:
    """Return None for an option's default, which `call` leaves out."""
    return None if value == default else value


class Code(str):
    """A string that is written as the code that it holds."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


N_HEADS = Code("n_heads")  # of functions that work for any number


def assumed(found: Identification, turns: tuple[str | None, str | None], guess: str = "half") -> Identification:
    """Return a rotation that numbers show, with the pairing and the direction that they do not show in words.

    >>> assumed(Identification("module", line="posenc.RoPE(head_dim=64)"), ("half", None)).line
    'posenc.RoPE(head_dim=64)  # counterclockwise is assumed'
    """
    if all(turns):
        return found
    names, values = "pairing and direction", f"{guess} and counterclockwise are"
    if turns[0]:
        names, values = "direction", "counterclockwise is"
    why = f"{names}, which a buffer does not show: {values} assumed; compare outputs"
    line = found.line and f"{found.line}{', ' if '  # ' in found.line else '  # '}{values} assumed"
    return replace(found, line=line, unknown=(*found.unknown, why))


def line_of(found: Identification) -> str | None:
    """Return the line to write in place of the code; None if no encoding is known to compute the same.

    >>> known = {"pairing": "half", "rotary_dim": 64, "first_lane": 0, "base": 1e4, "scaling": "none", "gain": 1.0}
    >>> line_of(Identification("rope_fn", "rotation", 64, **known, direction="clockwise", first_position=0.0))
    'posenc.RoPE(head_dim=64, inv_freq=lambda k: -(10000.0 ** (-2 * k / 64)))'
    """
    known = found.parameters
    if found.kind == "rotation":
        return _rotation(found)
    if found.kind == "slopes" and found.scaling in ("authors", "geometric"):
        other = {"slopes": None if found.scaling == "authors" else found.scaling}
        return call("ALiBi", n_heads=N_HEADS, **other, bias_max=unless(known["bias_max"], 8.0))
    if found.kind == "buckets" and "max_distance" in known:
        options = {"n_buckets": known["num_buckets"], "max_distance": known["max_distance"]}
        return call("T5", n_heads=N_HEADS, **options, bidirectional=known["bidirectional"] or None)
    if found.kind == "angles" and found.base is not None and found.scaling in ("none", "ntk"):
        return _axes(found)
    return None


def _rotation(found: Identification) -> str | None:
    head_dim, known, clockwise = found.head_dim or 0, found.parameters, found.direction == "clockwise"
    width, gain, first = found.rotary_dim or 0, found.gain, found.first_position
    sides = {head_dim - width: "last", 0: None}
    if found.pairing not in ("half", "interleaved") or found.first_lane not in sides or first is None:
        return None
    if found.scaling == "xpos":
        options = {"pairing": unless(found.pairing, "interleaved"), "scale_base": unless(known["scale_base"], 512.0)}
        same = known["keys_inverse"] and known["decays"] and not first
        return call("XPos", head_dim=head_dim, base=found.base, **options) if same else None
    if gain is None or not (clockwise or found.direction == "counterclockwise"):
        return None
    name, options = _frequencies(found, clockwise)
    if found.pairing == "half" and found.measured.get("partner", width // 2) != width // 2:  # pairs that do not move
        if (
            name != "RoPE"
            or 2 * found.measured["partner"] != head_dim
            or gain != 1.0
            or found.scaling != "proportional"
        ):
            return None
        line = call("ProportionalRoPE", head_dim=head_dim, share=known["share"], base=found.base)
    else:
        widths = {"rotary_dim": unless(width, head_dim), "rotary_side": sides[found.first_lane]}
        rest = widths | {"pairing": unless(found.pairing, "half"), "attention_factor": unless(gain, 1.0)}
        line = call(name, head_dim=head_dim, **options, **rest)
    return f"{line}  # at positions + {first:g}" if first else line


def _frequencies(found: Identification, clockwise: bool) -> tuple[str, dict[str, Any]]:
    """Return a class and its options: a formula where one is known, else the measured frequencies."""
    base, known, kind = found.base, found.parameters, found.scaling
    trained = {"original_max_len": known.get("original_max_len")}
    if kind == "dynamic" and "factor" in known and not clockwise:
        return "DynamicNTK", {"base": base, **trained, "factor": known["factor"]}
    if kind == "longrope" and not clockwise:
        lists = {f"{name}s": Code(f'found.parameters["{name}"]') for name in ("short_factor", "long_factor")}
        return "LongRoPE", {"base": base, **trained, **lists}
    if kind in ("none", "ntk") and not clockwise:
        return "RoPE", {"base": base}
    if kind in ("none", "ntk", "linear", "proportional"):
        width = round((found.rotary_dim or 0) / (known["share"] if kind == "proportional" else 1))
        power = f"{base!r} ** (-2 * k / {width})"
        power = f"-({power})" if clockwise else power
        divided = f" / {known['factor']!r}" if "factor" in known and kind != "ntk" else ""
        return "RoPE", {"inv_freq": Code(f"lambda k: {power}{divided}")}
    measured = 'found.measured["frequencies"]'  # of `found = posenc.identify(...)`
    return "RoPE", {"inv_freq": Code(f"[-f for f in {measured}]" if clockwise else measured)}


def _axes(found: Identification) -> str | None:
    """Return the rotation of a table of angles, or of positions on several axes."""
    section, words = found.parameters["section"], found.parameters["axes"]
    if found.direction not in (None, "counterclockwise") or found.gain not in (None, 1.0):
        return None
    known = {"head_dim": 2 * sum(section), "base": found.base, "pairing": unless(found.pairing or "half", "half")}
    order, ladder, even = words.partition(", in blocks: ")[2], found.parameters["ladder"], len(set(section)) == 1
    own: dict[str, Any] = {"n_axes": unless(len(section), 2)} if even else {"widths": tuple(2 * n for n in section)}
    if order and (ladder == "axis" or (ladder == "dealt" and even)):
        return call("AxialRoPE", **known, **own, spectrum=unless(ladder, "axis")) + f"  # at positions ({order})"
    if ladder != "shared":
        return None
    if order:
        return call("MRoPE", **known, sections=tuple(section)) + f"  # at positions ({order})"
    return call("MRoPE", **known, layout=Code('found.measured["axes"]'))  # of `found = posenc.identify(...)`
