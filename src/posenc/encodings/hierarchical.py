"""One additive encoding for each level of a text: sentence, token in the sentence."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc import registry
from posenc.encoding import Encoding, Placed, Pos
from posenc.families import Additive
from posenc.mapped import as_before, same


@registry.register(
    "hierarchical",
    paper="folklore, as BERT's segments beside its positions (Devlin et al.)",
    year=2018,
    arxiv="1810.04805",
    formula="x_p + Σ_a PE_a(p_a),  or x_p + [PE_1(p_1) ‖ PE_2(p_2) ‖ ..]",
    parameters="those of its members",
    cost="that of its members, and one addition to the embeddings",
    aliases=("nested",),
    serves=("text", "image"),
    example={"d_model": 32},
    variants=({"combine": "concat", "axes": ("sinusoidal", "sine", "integer", "sinusoidal")},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": False,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class Hierarchical(Additive):
    """Add one vector for each axis of the position, as (sentence, token in the sentence).

    Axis 0 is the outer level. Summed vectors share all lanes; concatenated ones cannot be confused, at the
    price of fewer lanes each.

    Args:
        d_model: Width of the token embeddings.
        axes: One additive encoding an axis: a name, constructed with its share of d_model, or an encoding.
        combine: "sum" (each d_model wide) or "concat" (each d_model / len(axes) wide).

    Raises:
        ValueError: A d_model that the axes do not divide, a member of another width or on several axes, or
            another word for `combine`.
        TypeError: A member that is not additive.

    >>> Hierarchical(d_model=2, axes=("integer", "integer"), combine="concat").vectors(torch.tensor([[1, 3]])).tolist()
    [[1.0, 3.0]]
    """

    def __init__(
        self,
        *,
        d_model: int,
        axes: Sequence[str | Encoding] = ("sinusoidal", "sinusoidal"),
        combine: Literal["sum", "concat"] = "sum",
    ) -> None:
        super().__init__(d_model=d_model)
        if combine not in ("sum", "concat"):
            raise ValueError(f"{self.name}: combine must be 'sum' or 'concat'; got {combine!r}.")
        if isinstance(axes, str):
            raise TypeError(f"{self.name}: axes must hold an encoding for each axis; got the one name {axes!r}.")
        if not axes or (combine == "concat" and d_model % len(axes)):
            raise ValueError(
                f"{self.name}: needs an encoding for each axis, and combine='concat' lanes that they share evenly; "
                f"got d_model={d_model} and {len(axes)} axes."
            )
        self.axes, self.combine, self.n_axes = tuple(axes), combine, len(axes)
        share = d_model if combine == "sum" else d_model // len(axes)
        self.members = nn.ModuleList(self._fitting(self._make(axis, share), share) for axis in axes)
        self.accepts_real = all(member.accepts_real for member in self._members)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Let each member look at its own axis, and bring their vectors together."""
        axes = pos.unbind(-1) if self.n_axes > 1 else (pos,)
        found = [m.place(p, dtype=dtype).parts[0] for m, p in zip(self._members, axes, strict=True)]
        return (torch.cat(found, -1) if self.combine == "concat" else torch.stack(found).sum(0),)

    def vectors(self, pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Return the members' vectors, summed or side by side, in float32."""
        vectors: Tensor = self.place(pos).parts[0]
        return vectors

    def resolve(self, seq_len: int) -> Encoding:
        """Resolve each member that depends on the length."""
        resolved = [m.resolve(seq_len) for m in self._members]
        if same(resolved, self._members):
            return self
        return as_before(Hierarchical(d_model=self.d_model, axes=resolved, combine=self.combine), self)

    def reset_parameters(self) -> None:
        """Draw each member's learned tensors anew."""
        for member in self._members:
            member.reset_parameters()

    @property
    def _members(self) -> list[Additive]:
        return list(self.members)  # type: ignore[arg-type]

    def _make(self, axis: Any, share: int) -> Any:
        """Construct a member that is named; any other is one already, or will be found out."""
        if not isinstance(axis, str):
            return axis
        try:
            return registry.create(axis, dims=registry.Dims(d_model=share))
        except TypeError as error:
            raise TypeError(
                f"{self.name}: by name, members are constructed with d_model={share} alone; got axes with {axis!r}. "
                f"{error} Here, pass the encoding itself."
            ) from error

    def _fitting(self, member: Any, share: int) -> Additive:
        if not isinstance(member, Additive):
            raise TypeError(
                f"{self.name}: members must be additive encodings, since their vectors are brought together; "
                f"got {member!r}."
            )
        if (member.d_model, member.n_axes) != (share, 1):
            raise ValueError(
                f"{self.name}: each member works on one axis and has d_model={share} lanes with "
                f"combine={self.combine!r}; got {member.name} on {member.n_axes} with d_model={member.d_model}."
            )
        return member
