"""Encodings made of encodings: both at once, or another one a layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc import config
from posenc.configured import by_layer, preset
from posenc.encoding import Encoding, Placed, Pos
from posenc.mapped import Wrapper, as_before, refuse_layers, same

_DOORS = ["place", "parts", "embed", "rotate_q", "rotate_k", "rotate", "bias", "rescore", "score_scale", "layer"]
_DOORS += ["resolve", "rotate_v", "unrotate_out"]


class Compose(Encoding):
    """Run the doors of several encodings: embeds and rotations in order, biases added, then a score map.

    `Compose()` is NoPE, and NoPE among the members changes nothing. Put `PerLayer` around
    `Compose`, not inside.

    Args:
        encodings: Members; they work on the same number of axes (wrap one in `OnAxes` if not),
            at most one of them changes the score scale, and at most one is a score map.

    Raises:
        ValueError: The members do not fit each other.
    """

    family = "compose"

    def __init__(self, *encodings: Encoding) -> None:
        super().__init__()
        members = [e for e in encodings if not _is_neutral(e)]
        axes = {e.name: e.n_axes for e in members}
        if len({e.n_axes for e in members}) > 1:
            raise ValueError(
                f"Compose: members must work on the same number of axes, because they get the same pos; got {axes}. "
                "Wrap one in OnAxes(encoding, axes, n_axes=...)."
            )
        self._scaling = [i for i, e in enumerate(members) if _rescales(e)]
        if len(self._scaling) > 1:
            raise ValueError(
                "Compose: at most one member may change the score scale; "
                f"got {[members[i].name for i in self._scaling]}."
            )
        others = [e for i, e in enumerate(members) if i not in self._scaling]  # its own term knows the scale
        if self._scaling and (readers := [e.name for e in others if e.reads_qk and not e.rescores]):
            raise ValueError(
                "Compose: a term that looks at q and k divides by the root of head_dim as q·k does, so it cannot stand "
                f"beside a member that changes the score scale; got {readers} and {members[self._scaling[0]].name}."
            )
        refuse_layers("Compose", members)
        self._mapping = [i for i, e in enumerate(members) if e.rescores]
        _check_single("map the scores, because each wants those before the other", [e for e in members if e.rescores])
        inside = [e for e in members if e.turns_in_bias]
        _check_single("map distances, because a pair of tokens has one product", inside)
        self.encodings = nn.ModuleList(members)
        self.n_axes = max((e.n_axes for e in members or encodings), default=1)
        self.reads_x = any(e.reads_x for e in members)
        self.reads_qk = any(e.reads_qk for e in members)
        self.rescores = bool(self._mapping)
        self.turns_in_bias = any(e.turns_in_bias for e in members)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place for each member."""
        pasts = past.parts if past else (None,) * len(self.encodings)
        return tuple(e.place(pos, x, past=p, dtype=dtype) for e, p in zip(self._members, pasts, strict=True))

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        """Embed by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            x = encoding.embed(x, part)
        return x

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Turn queries by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            q = encoding.rotate_q(q, part)
        return q

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Turn keys by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            k = encoding.rotate_k(k, part)
        return k

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Add the members' biases."""
        total = None
        for encoding, part, k_part in zip(self._members, placed.parts, k_placed.parts, strict=True):
            seen = self._turned_by_others(encoding, q, k, placed, k_placed) if encoding.turns_in_bias else (q, k)
            term = encoding.bias(*seen, part, k_part)
            total = term if total is None else total if term is None else total + term
        return total

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        """Rotate values by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            v = encoding.rotate_v(v, part)
        return v

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        """Rotate outputs back by each member, the last one first."""
        for encoding, part in reversed(list(zip(self._members, placed.parts, strict=True))):
            out = encoding.unrotate_out(out, part)
        return out

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        """Return what the one score map makes of the scores, which have all biases."""
        for i in self._mapping:
            scores = self._members[i].rescore(scores, q, k, placed.parts[i], k_placed.parts[i], mask)
        return scores

    def score_scale(self, head_dim: int) -> float:
        """Return the scale of the one member that changes it, or the default."""
        return self._members[self._scaling[0]].score_scale(head_dim) if self._scaling else float(head_dim**-0.5)

    def leaves(self, placed: Placed) -> list[tuple[Encoding, Placed]]:
        """Return those of the members; itself where one must see the queries and keys that others have turned."""
        if self.turns_in_bias:
            return [(self, placed)]
        return [m for e, part in zip(self._members, placed.parts, strict=True) for m in e.leaves(part)]

    def resolve(self, seq_len: int) -> "Compose":
        """Resolve the members that depend on the length; itself if none does."""
        resolved = [e.resolve(seq_len) for e in self._members]
        return self if same(resolved, self._members) else as_before(Compose(*resolved), self)

    def reset_parameters(self) -> None:
        """Draw each member's learned tensors anew."""
        for encoding in self._members:
            encoding.reset_parameters()

    @property
    def _members(self) -> list[Encoding]:
        return list(self.encodings)  # type: ignore[arg-type]

    def _turned_by_others(
        self, encoding: Encoding, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> tuple[Tensor, Tensor]:
        for other, part, k_part in zip(self._members, placed.parts, k_placed.parts, strict=True):
            if other is not encoding:
                q, k = other.rotate(q, k, part, k_part)
        return q, k

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        for encoding, part, k_part in reversed(list(zip(self._members, placed.parts, k_placed.parts, strict=True))):
            q, k = encoding.rotate(q, k, part, k_part, inverse=True)
        return q, k


class PerLayer(Encoding):
    """Give each layer its own encoding; a distinct one is registered once and placed once.

    A host asks `layer(index, placed)` for what a layer uses. Token embeddings enter at the first
    layer, so its encoding embeds them, and no other layer may have an embedding of its own.

    Args:
        encodings: One a layer; the same object may stand many times.

    Raises:
        ValueError: None given, different axes, or an additive encoding behind the first layer.
    """

    family = "compose"

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        super().__init__()
        if not encodings:
            raise ValueError("PerLayer: needs an encoding for every layer; got none.")
        distinct = list({id(e): e for e in encodings}.values())
        refuse_layers("PerLayer", distinct)
        if len(axes := {e.n_axes for e in distinct}) > 1:
            raise ValueError(f"PerLayer: layers must work on the same number of axes; got {sorted(axes)}.")
        first = encodings[0]
        if late := [e.name for e in distinct if e is not first and _embeds(e)]:
            raise ValueError(
                "PerLayer: tokens are embedded before the first layer, so only its encoding may be additive; "
                f"got {late} behind {first.name}. Put it first, for instance in a Compose."
            )
        self.distinct = nn.ModuleList(distinct)
        order = {id(e): i for i, e in enumerate(distinct)}
        self.index = tuple(order[id(e)] for e in encodings)
        self.n_axes = first.n_axes
        self.reads_x = any(e.reads_x for e in distinct)
        self.rescores = any(e.rescores for e in distinct)

    @classmethod
    def from_config(
        cls, source: config.Source, *, pairing: config.Pairing | None = None, seq_len: int | None = None
    ) -> "PerLayer":
        """Construct the encoding of each layer of a model, from its configuration.

        Layers that turn get the RoPE of their kind, or the MRoPE where pictures have axes: `positions.mrope`, for text
        `on_each_axis` (HunYuan-VL, whose axes part the lanes of a pair, gets the RoPE of text). Attention without
        position, and layers that mix tokens otherwise or look at pictures, get NoPE. Queries grow by `QueryTemperature`
        as in transformers 5.23 (Llama 4, Beam, Ministral 3, Mistral 4, Inkling); values of DeepSeek-V4 rotate by
        `VORoPE`. Equal encodings are shared; a layer of two attentions has two entries, as in its cache. Windows and
        what is learned of positions are not here.

        Args:
            source: A config.json, a directory that holds one, or a mapping.
            pairing: Which lanes turn together; None takes what the model type does.
            seq_len: The longest text, in positions, where frequencies depend on it; None to `resolve` RoPE later.

        Raises:
            ValueError: As `config.rotary` and `config.layer_types` do; or positions enter in another way.
            TypeError: As `config.rotary` and `config.layer_types` do.

        >>> PerLayer.from_config({"model_type": "smollm3", "num_hidden_layers": 5, "head_dim": 8}).index
        (0, 0, 0, 1, 0)
        """
        parts = by_layer(source, pairing=pairing, seq_len=seq_len)
        made = {id(own): own[0] if len(own) == 1 else Compose(*own) for own in parts}
        return cls([made[id(own)] for own in parts])

    @classmethod
    def preset(cls, name: str, n_layers: int, *, head_dim: int | None = None, base: float | None = None) -> "PerLayer":
        """Construct a published pattern of layers for a model of your own.

        "smollm3": every fourth layer has no position. "irope" (Llama 4): the same, and the queries of that layer grow
        by `QueryTemperature`. "rnope" (Yang 2025, 2501.18795; Command R7B): as "smollm3", and layers that rotate are
        meant to see a window. "gemma4": five layers of RoPE, meant for a window, then one of p-RoPE with a quarter of
        its pairs; the last layer is of that kind. Windows are the host's.

        Args:
            name: Of the pattern.
            n_layers: How many layers the model has.
            head_dim: Dimensions of one head, in all layers; None takes the model's own.
            base: Of the layers that rotate, in "gemma4" of those without a window; None takes the model's own.

        Raises:
            ValueError: There is no such pattern, no layer, an odd head_dim, or a base not above 1.
            TypeError: A number is of a wrong kind.

        >>> PerLayer.preset("irope", 8, head_dim=64).index
        (0, 0, 0, 1, 0, 0, 0, 1)
        """
        return cls.from_config(preset(name, n_layers, head_dim=head_dim, base=base))

    def __len__(self) -> int:
        return len(self.index)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place once for each distinct encoding."""
        pasts = past.parts if past else (None,) * len(self.distinct)
        return tuple(e.place(pos, x, past=p, dtype=dtype) for e, p in zip(self._members, pasts, strict=True))

    def layer(self, index: int, placed: Placed) -> tuple[Encoding, Placed]:
        """Return the encoding of layer `index` and what was placed for it."""
        if not 0 <= index < len(self.index):
            raise ValueError(
                f"PerLayer: has encodings for {len(self.index)} layers; got layer {index}. Give one encoding a layer."
            )
        which = self.index[index]
        return self._members[which], placed.parts[which]

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        """Embed by the first layer's encoding."""
        return self._members[0].embed(x, placed.parts[0])

    def _refuse(self, *given: Any, **named: Any) -> Any:
        """Refuse: which layer is meant?"""
        raise ValueError(
            "PerLayer: each layer has its own encoding, so choose one first: "
            "encoding, placed = per_layer.layer(index, placed)."
        )

    rotate_q = rotate_k = bias = rescore = rotate_v = unrotate_out = _unrotate = _refuse

    def resolve(self, seq_len: int) -> "PerLayer":
        """Resolve each distinct encoding that depends on the length, once; itself if none does."""
        resolved = [e.resolve(seq_len) for e in self._members]
        if same(resolved, self._members):
            return self
        return as_before(PerLayer([resolved[i] for i in self.index]), self)

    def reset_parameters(self) -> None:
        """Draw each distinct encoding's learned tensors anew."""
        for encoding in self._members:
            encoding.reset_parameters()

    @property
    def _members(self) -> list[Encoding]:
        return list(self.distinct)  # type: ignore[arg-type]


def _rescales(encoding: Encoding) -> bool:
    """Whether it changes the score scale; at two widths, since a constant may equal the default at one."""
    return any(encoding.score_scale(d) != Encoding.score_scale(encoding, d) for d in (64, 128))


def _is_neutral(encoding: Encoding) -> bool:
    return all(getattr(type(encoding), door) is getattr(Encoding, door) for door in _DOORS)


def _embeds(encoding: Encoding) -> bool:
    if isinstance(encoding, Compose):
        return any(map(_embeds, encoding._members))
    if isinstance(encoding, Wrapper):
        return _embeds(encoding.encoding)
    door: Callable[..., Tensor] = type(encoding).embed
    return door is not Encoding.embed


def _check_single(what: str, members: Sequence[Encoding]) -> None:
    """Raise if several members do what one may do.

    Raises:
        ValueError: They do.
    """
    if len(members) > 1:
        raise ValueError(f"Compose: at most one member may {what}; got {[e.name for e in members]}. Keep one of them.")
