"""The card of an encoding: its facts, declared properties and an example."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posenc.declared import Declared

# The properties that a card declares; `posenc.character` measures each of them.
TRAITS = [
    "distinct",
    "longest",
    "real_positions",
    "smooth",
    "bounded",
    "shift_invariant",
    "symmetric",
    "recency",
    "linear_shift",
    "length_dependent",
    "learned",
    "cost",
]
Trait = bool | int | str | None | Mapping[str, int]


@dataclass(frozen=True)
class Card:
    """The card of an encoding: its facts, declared properties and an example.

    Args:
        name: The registry key, which is also the file's name in `encodings/`.
        declared: The declaration of the class; `cls` is the class itself, which needs torch.
        paper: Authors and title; `year` and `arxiv` (an id, or None) are separate.
        formula: The mathematics in one line.
        parameters: The number of learned numbers, as a formula of the dimensions.
        cost: A description of the cost at run time.
        example: Arguments that construct a small one, on which the laws run.
        variants: Changes to `example` on which the laws run as well.
        traits: Properties of the example, declared by the author and measured by `posenc.character`; None if one does
            not apply. `distinct`: the number of positions whose signatures all differ, by dtype (65,536 means at least
            that). `longest`: the largest position that is accepted, or None. `real_positions`: fractional positions are
            accepted. `smooth`: neighbouring positions have similar signatures. `bounded`: signatures do not grow with
            the position. `shift_invariant`: scores depend only on distances. `symmetric`: scores do not depend on the
            direction. `recency`: scores fall with distance. `linear_shift`: a shift is one linear map of the added or
            rotated vectors. `length_dependent`: it must be resolved for a length. `learned`: the number of learned
            numbers. `cost`: the work grows with "token" or "score", or is "nothing".
        serves: Its uses, the most common first: text, long, image, video, graph, camera or textbook
            (`posenc list --for`).
        plans: Names that papers give to this class with other options, each with these options.
        plan_positions: The call of `posenc.positions` that numbers the parts of a sequence as such a paper does.
        used_by: Models that were released with it.
    """

    name: str
    declared: Declared
    paper: str
    year: int
    formula: str
    parameters: str
    cost: str
    example: Mapping[str, Any]
    traits: Mapping[str, Trait]
    arxiv: str | None = None
    aliases: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plan_positions: Mapping[str, str] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ()

    @property
    def cls(self) -> type:
        """The class.

        Raises:
            ModuleNotFoundError: There is no torch.
        """
        return self.declared.load()

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of the constructor, each with its default."""
        return self.declared.options

    @property
    def family(self) -> str:
        """The hook that the encoding uses.

        One of none, additive, embedded, rotary, piecewise, bias, content_bias, score_map and values.
        """
        return self.declared.family

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return self.declared.docstring.partition("\n")[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """All names in the registry, except that of its class."""
        return (self.name, *self.aliases, *self.plans)

    @property
    def call(self) -> str:
        """The example as a call."""
        return _write_call(self._spelt_class, self.example)

    @property
    def _spelt_class(self) -> str:
        home = "posenc" if self.declared.module.startswith("posenc.") else self.declared.module
        return f"{home}.{self.declared.cls_name}"

    @property
    def plan_calls(self) -> dict[str, str]:
        """The line that creates each plan, what that constructs, and the positions that the plan is for.

        >>> from posenc import card
        >>> print(*card("rope").plan_calls["v2pe"].split(", at "), sep="\\n")
        posenc.create('v2pe', head_dim=64), which is posenc.RoPE(head_dim=64)
        posenc.positions.v2pe(parts, step=1/16)
        """
        required = {option: self.example[option] for option in self.options if "=" not in option}
        lines = {}
        for plan, options in self.plans.items():
            created = _write_call("posenc.create", required, repr(plan))
            lines[plan] = f"{created}, which is {_write_call(self._spelt_class, {**required, **options})}"
            if plan in self.plan_positions:
                lines[plan] += f", at posenc.positions.{self.plan_positions[plan]}"
        return lines

    def examples(self) -> list[Any]:
        """Construct the example and each of its variants."""
        return [self.cls(**{**self.example, **variant}) for variant in ({}, *self.variants)]

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain JSON values."""
        plain = {k: v for k, v in asdict(self).items() if k not in {"declared", "example", "variants"}}
        return plain | {
            "options": self.options,
            "cls": self.declared.cls_name,
            "family": self.family,
            "summary": self.summary,
            "example": self.call,
        }


def _write_call(function: str, options: Mapping[str, Any], *first: str) -> str:
    return f"{function}({', '.join([*first, *(f'{option}={value!r}' for option, value in options.items())])})"
