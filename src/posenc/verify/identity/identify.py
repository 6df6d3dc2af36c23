"""Report what position code computes, without a specification."""

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Identification:
    """The measured properties of a subject; None where one is unknown, and `unknown` gives the reason.

    Args:
        convention: The convention by which the subject was called.
        kind: "rotation", "slopes", "buckets", "angles", "table" (learned or fixed), "model" (several), or "unknown".
        head_dim: The head dimension of the calls.
        pairing: "half", "interleaved" or "other".
        rotary_dim: The number of dimensions that rotate.
        first_lane: The first rotated dimension.
        base: The base of the frequencies.
        scaling: "none", "linear", "ntk", "yarn", "llama3", "lists", "longrope", "dynamic", "proportional", "xpos",
            or "other".
        parameters: Its numbers, by name.
        gain: The factor of rotated dimensions, of queries and keys alike.
        direction: "counterclockwise" (x cos - y sin), "clockwise", or "opposite" if keys rotate against queries.
        first_position: The position by whose angle position 0 is rotated.
        precision: By dtype of the input, the dtypes in which positions, frequencies and products are computed.
        unknown: The properties that cannot be determined, and why.
        measured: Other numbers, including frequencies in radians per position.
        line: The line of posenc that computes the same, if it is known; of a model one for each module, after its path.
    """

    convention: str
    kind: str = "unknown"
    head_dim: int | None = None
    pairing: str | None = None
    rotary_dim: int | None = None
    first_lane: int | None = None
    base: float | None = None
    scaling: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    gain: float | None = None
    direction: str | None = None
    first_position: float | None = None
    precision: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    line: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the kind of the subject is known, if not everything about it; `unknown` has the rest."""
        is_named = self.parameters if self.kind == "buckets" else self.scaling not in (None, "other")
        return self.kind != "unknown" and bool(is_named or self.line)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts, ready for JSON."""
        return {"schema": SCHEMA, **asdict(self), "unknown": list(self.unknown)}

    def lines(self) -> dict[str, str]:
        """Return the known properties, by name."""
        width = f"{self.rotary_dim} of {self.head_dim} dimensions, from {self.first_lane} on"
        found: dict[str, Any] = {"pairing": self.pairing, "rotated width": self.rotary_dim and width}
        found |= {"base": self.base, "scaling": self.scaling}
        found |= {name.replace("_", " "): value for name, value in self.parameters.items()}
        found |= {"gain": self.gain, "direction": self.direction, "first position": self.first_position}
        for dtype, parts in self.precision.items():
            found[f"fed {dtype}"] = ", ".join(f"{what} in {name}" for what, name in parts.items())
        for number, line in enumerate((self.line or "").splitlines()):
            found["in posenc" + f" ({number + 1})" * (number > 0)] = line
        return {name: _number(value) for name, value in found.items() if value is not None}


def identify(subject: Any, convention: str | None = None, *, head_dim: int | None = None) -> Identification:
    """Determine what an implementation computes, only by calling it; no specification is needed.

    Of a module the tensors are read too: its buffers of frequencies and sines, its learned tables, and the same in all
    modules within, so that a whole model can be passed. `line` is what to write in their place.

    Args:
        subject: The object that `build()` of a file returns, or a module or model whose positions posenc takes over.
        convention: How to call it: one of `posenc.verify.FAMILIES`; None to find out.
        head_dim: The head dimension to use; None tries the usual sizes.

    Raises:
        ValueError: The convention is unknown, or the subject cannot be called by it or by any.

    >>> import posenc, torch
    >>> found = identify(posenc.RoPE(head_dim=64, base=123456.0), "encoding")
    >>> found.pairing, found.rotary_dim, found.base, found.scaling
    ('half', 64, 123456.0, 'none')
    >>> identify(torch.nn.Embedding(1024, 768)).line
    'posenc.Learned(d_model=768, max_len=1024)'
    """
    from posenc.verify import conventions

    if convention is not None and convention not in conventions.CONVENTIONS:
        raise ValueError(
            f"identify: unknown convention {convention!r}. Use one of {', '.join(conventions.CONVENTIONS)}."
        )
    if head_dim is not None and not (isinstance(head_dim, int) and 2 <= head_dim <= 4096):
        raise ValueError(f"identify: head_dim must be an integer from 2 to 4096; got {head_dim!r}. Pass it or None.")
    if convention is None:
        if (held := of_module(subject, head_dim)) is not None:
            return held
        fits = conventions.fitting(subject, {})[0]
        if hasattr(subject, "named_parameters") and not _reads(fits):
            why = "positions: no tensor has a name and a shape of known position code, and no call of such code fits"
            return Identification("module", unknown=(why,))
        convention = conventions.only(fits, subject)
    if (wrong := conventions.misfit(subject, convention)) is not None:
        raise ValueError(f"identify: {wrong}.")
    return called(subject, convention, head_dim)


def of_module(subject: Any, head_dim: int | None = None) -> Identification | None:
    """Return what the tensors or the methods of a module show; None if it is no module, or holds no positions."""
    from torch import nn

    from posenc.encoding import Encoding
    from posenc.verify.identity import modules

    if not isinstance(subject, nn.Module) or isinstance(subject, Encoding):
        return None
    found = modules.read(subject, head_dim)
    if len(found) < 2:
        return next(iter(found.values()), None) or modules.of_methods(subject, head_dim)
    lines = {path: one.line for path, one in found.items() if one.line}
    listed = [f"{path}: " + re.sub(r"found\.\w+", f"found.measured[{path!r}]", line) for path, line in lines.items()]
    unknown = tuple(f"{path}: {why}" for path, one in found.items() for why in one.unknown)
    measured = {path: found[path].measured | found[path].parameters for path, line in lines.items() if "found." in line}
    return Identification("module", "model", line="\n".join(listed) or None, unknown=unknown, measured=measured)


def called(subject: Any, convention: str, head_dim: int | None) -> Identification:
    """Return what calls by a convention that fits show."""
    from posenc.verify.guard import SubjectError
    from posenc.verify.identity import lines

    why = f"only rotations and a few tables are identified, and {convention} is neither"
    try:
        if (found := _by_calls(subject, convention, head_dim)) is not None:
            return replace(found, line=lines.line_of(found))
    except SubjectError as error:
        why = f"a call cannot be used ({error.cause.code}): {error.cause.message}"
    return Identification(convention, unknown=(why,))


def _reads(fits: list[str]) -> bool:
    """Return whether calls by the one convention that fits are identified."""
    from posenc.verify.families.rotation_calls import REACH
    from posenc.verify.identity import others

    return len(fits) == 1 and fits[0] in {*REACH, *others.KINDS, "encoding", "rope_axes_fn"}


def _by_calls(subject: Any, convention: str, head_dim: int | None) -> Identification | None:
    from posenc.verify.families.rotation_calls import REACH
    from posenc.verify.identity import others, rotation

    if convention == "encoding" and getattr(subject, "family", None) == "rotary" and not isinstance(subject, type):
        rotate = (lambda x, ids: (ids[0], ids), lambda q, k, pos, _: subject.rotate(q, k, subject.place(pos)))
        return rotation.identified(rotate, "hf_rope", convention, head_dim or subject.head_dim)
    if convention in REACH:
        return rotation.identified(subject, convention, convention, head_dim)
    if convention == "rope_axes_fn":
        return others.of_axes(subject, head_dim)
    return others.KINDS[convention](subject) if convention in others.KINDS else None


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value[:3]))}{', ..' if len(value) > 3 else ''}]"
    return f"{value:,.8g}" if isinstance(value, float) else str(value)
