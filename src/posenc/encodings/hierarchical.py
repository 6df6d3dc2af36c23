"""One additive encoding for each level of a text: sentence, and token in the sentence."""

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
    paper="folklore, as BERT's segments next to its positions (Devlin et al.)",
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
    """Add one vector for each axis of the position, for example (sentence, token in the sentence).

    Axis 0 is the outer level. Summed vectors share all dimensions. Concatenated vectors cannot be confused, but each
    has fewer dimensions.

    Args:
        d_model: Width of the token embeddings.
        axes: One additive encoding per axis: a name, constructed with its share of d_model, or an encoding.
        combine: "sum" (each d_model wide) or "concat" (each d_model / len(axes) wide).

    Raises:
        ValueError: d_model is not a multiple of the number of axes, a member has another width or several axes, or the
            word for `combine` is unknown.
        TypeError: A member is not additive.

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
            raise TypeError(f"{self.name}: axes must be a sequence with one encoding per axis; got {axes!r}.")
        if not axes or (combine == "concat" and d_model % len(axes)):
            raise ValueError(
                f"{self.name}: needs an encoding for each axis, and with combine='concat' a d_model they share evenly; "
                f"got d_model={d_model} and {len(axes)} axes."
            )
        self.axes, self.combine, self.n_axes = tuple(axes), combine, len(axes)
        share = d_model if combine == "sum" else d_model // len(axes)
        self.members = nn.ModuleList(self._fitting(self._make(axis, share), share) for axis in axes)
        self.accepts_real = all(member.accepts_real for member in self._members)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place each member on its own axis, and combine their vectors."""
        axes = pos.unbind(-1) if self.n_axes > 1 else (pos,)
        found = [m.place(p, dtype=dtype).parts[0] for m, p in zip(self._members, axes, strict=True)]
        return (torch.cat(found, -1) if self.combine == "concat" else torch.stack(found).sum(0),)

    def vectors(self, pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Return the members' vectors, summed or concatenated, in float32."""
        vectors: Tensor = self.place(pos).parts[0]
        return vectors

    def resolve(self, seq_len: int) -> Encoding:
        """Resolve each member that depends on the length."""
        resolved = [m.resolve(seq_len) for m in self._members]
        if same(resolved, self._members):
            return self
        return as_before(Hierarchical(d_model=self.d_model, axes=resolved, combine=self.combine), self)

    def reset_parameters(self) -> None:
        """Reset each member's parameters."""
        for member in self._members:
            member.reset_parameters()

    @property
    def _members(self) -> list[Additive]:
        return list(self.members)  # type: ignore[arg-type]

    def _make(self, axis: Any, share: int) -> Any:
        """Construct a member from its name; leave anything else for the check in `_fitting`."""
        if not isinstance(axis, str):
            return axis
        try:
            return registry.create(axis, dims=registry.Dims(d_model=share))
        except TypeError as error:
            raise TypeError(
                f"{self.name}: members given by name are constructed with only d_model={share}; got axes with "
                f"{axis!r}. {error} Pass a constructed encoding instead."
            ) from error

    def _fitting(self, member: Any, share: int) -> Additive:
        if not isinstance(member, Additive):
            raise TypeError(
                f"{self.name}: members must be additive encodings, because their vectors are combined; got {member!r}."
            )
        if (member.d_model, member.n_axes) != (share, 1):
            raise ValueError(
                f"{self.name}: each member must have one axis and d_model={share} with "
                f"combine={self.combine!r}; got {member.name} with n_axes={member.n_axes} and d_model={member.d_model}."
            )
        return member
