"""Say what position code computes where nobody has said what it should."""

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Identification:
    """What was read off a subject; None where nothing can be said, and `unknown` says why.

    Args:
        convention: How the subject was called.
        kind: "rotation", "slopes", "buckets", "angles", or "unknown".
        head_dim: Lanes of a head, as they were fed.
        pairing: "half", "interleaved" or "other".
        rotary_dim: How many lanes turn.
        first_lane: The first of them.
        base: The base of the frequencies over the width that `parameters` names, else over `rotary_dim`.
        scaling: "none", "linear", "ntk", "yarn", "llama3", "step", "lists", "longrope", "dynamic", "proportional",
            "xpos", or "other".
        parameters: Its numbers, by name.
        gain: What multiplies turned lanes, of queries and keys alike.
        direction: "counterclockwise" (x cos - y sin), "clockwise", or "opposite" for queries and keys apart.
        first_position: As what position 0 is turned.
        precision: By the dtype fed: in which positions, frequencies and products are formed.
        unknown: What cannot be told, and why.
        measured: Other numbers, frequencies in radians a position among them.
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

    @property
    def told(self) -> bool:
        """Whether it is known what the subject computes, if not all of it; `unknown` says what is not."""
        if self.kind == "unknown" or self.scaling == "other":
            return False
        return bool(self.parameters) if self.kind == "buckets" else self.scaling is not None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts, as JSON has them."""
        found = asdict(self)
        return {"schema": SCHEMA, **found, "unknown": list(self.unknown)}

    def words(self) -> str:
        """Return one paragraph that says it all.

        >>> print(Identification("attention", unknown=("it identifies rotations alone",)).words())
        Called as attention. Cannot tell: it identifies rotations alone.
        """
        said = [f"Called as {self.convention}.", self.sentence(), *(f"Cannot tell: {why}." for why in self.unknown)]
        return " ".join(filter(None, said))

    def sentence(self) -> str:
        """Return what is known alone, empty if that is nothing."""
        told = {"rotation": self._rotation, "slopes": self._slopes, "buckets": self._buckets, "angles": self._angles}
        return " ".join(told[self.kind]()) if self.kind in told else ""

    def _rotation(self) -> list[str]:
        of = f" of {self.head_dim}" if self.head_dim != self.rotary_dim else ""
        said = [f"A rotation of {self.rotary_dim}{of} lanes, from lane {self.first_lane} on, paired {self.pairing}."]
        if self.scaling is not None:
            base = "no base that can be told" if self.base is None else f"base {number(self.base)}"
            listed = ", ".join(f"{key} {number(value)}" for key, value in self.parameters.items() if value is not None)
            said.append(f"Frequencies: {base}, scaling {self.scaling}{f' ({listed})' if listed else ''}.")
        if self.gain is not None:
            said.append(f"Turned lanes are multiplied by {number(self.gain)}.")
        if self.direction == "opposite":
            said.append("Queries and keys turn in opposite directions.")
        elif self.direction is not None:
            said.append(f"Both sides turn {self.direction}.")
        if self.first_position is not None:
            said.append(f"Position 0 is turned as {number(self.first_position)}.")
        for dtype, parts in self.precision.items():
            listed = ", ".join(f"{what} in {name}" for what, name in parts.items())
            short = " (vectors in it show no more)" if dtype == "bfloat16" and "finer" in listed else ""
            said.append(f"Fed {dtype}: {listed}{short}.")
        return said

    def _slopes(self) -> list[str]:
        if self.scaling == "other":
            return ["Slopes by no rule that is known."]
        return [f"ALiBi's slopes by the rule {self.scaling!r}, exponents to {number(self.parameters['bias_max'])}."]

    def _buckets(self) -> list[str]:
        if not self.parameters:
            return ["Buckets by no rule that is known."]
        p = self.parameters
        side = "of both sides" if p["bidirectional"] else "of keys behind the query alone"
        reach = number(p["max_distance"]) if p["max_distance"] is not None else "an unknown distance"
        return [f"{p['num_buckets']} buckets {side}, logarithmic up to {reach}; {self.direction}."]

    def _angles(self) -> list[str]:
        base = "no base that can be told" if self.base is None else f"base {number(self.base)}"
        return [f"Angles of {self.measured['pairs']} pairs: {base}; {self.parameters['axes']}."]


def identify(subject: Any, convention: str, *, head_dim: int | None = None) -> Identification:
    """Read off what an implementation computes, by calling it and nothing else; no spec is needed.

    Args:
        subject: What `build()` of a file returns.
        convention: How it is called: one of `posenc.verify.FAMILIES`.
        head_dim: Lanes of a head; None tries what the subject says of itself, then the usual sizes.

    Raises:
        ValueError: There is no such convention, or the subject cannot be called so.

    >>> import posenc
    >>> found = identify(posenc.RoPE(head_dim=64, base=123456.0), "encoding")
    >>> found.pairing, found.rotary_dim, found.base, found.scaling
    ('half', 64, 123456.0, 'none')
    """
    from posenc.verify import conventions

    if convention not in conventions.CONVENTIONS:
        raise ValueError(
            f"identify: there is no convention {convention!r}. Use one of {', '.join(conventions.CONVENTIONS)}."
        )
    if head_dim is not None and not (isinstance(head_dim, int) and 2 <= head_dim <= 4096):
        raise ValueError(f"identify: head_dim must be an integer from 2 to 4096; got {head_dim!r}. Pass it or None.")
    if (wrong := conventions.misfit(subject, convention)) is not None:
        raise ValueError(f"identify: {wrong}.")
    from posenc.verify.guard import SubjectError

    try:
        return _of(subject, convention, head_dim)
    except SubjectError as error:
        cause = error.cause
        return Identification(convention, unknown=(f"a call cannot be used ({cause.code}): {cause.message}",))


def _of(subject: Any, convention: str, head_dim: int | None) -> Identification:
    from posenc.verify.identity.others import KINDS
    from posenc.verify.identity.rotation import rotation, turner_of

    if (turner := turner_of(subject, convention)) is not None:
        return rotation(turner, convention, head_dim)
    if convention in KINDS:
        return KINDS[convention](subject)
    why = f"it identifies rotations alone, and a few tables; {convention} is no rotation that can be fed vectors"
    return Identification(convention, unknown=(why,))


def number(value: Any) -> str:
    """Return a parameter in words.

    >>> number(500000.0), number([1, 2, 3, 4])
    ('500,000', '[1, 2, 3, ..]')
    """
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return f"{value:,.8g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(number(v) for v in value[:3])}{', ..' if len(value) > 3 else ''}]"
    return str(value)
