"""Combinations of encodings: several at once, or one for each layer."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from posenc import config
from posenc.config.notes import noted
from posenc.config.reading import checked
from posenc.configured import by_layer, preset
from posenc.encoding import Encoding, Placed, Pos
from posenc.mapped import Wrapper, as_before, refuse_layers, same

_HOOKS = ["place", "parts", "embed", "rotate_q", "rotate_k", "rotate", "bias", "rescore", "score_scale", "layer"]
_HOOKS += ["resolve", "rotate_v", "unrotate_out"]


class Compose(Encoding):
    """Run the hooks of several encodings: embeds and rotations in order, the sum of biases, then a score map.

    `Compose()` is NoPE, and NoPE among the members changes nothing. Put `PerLayer` around
    `Compose`, not inside.

    Args:
        encodings: The members. All have the same number of axes (else wrap one in `OnAxes`), at most one
            changes the score scale, and at most one is a score map.

    Raises:
        ValueError: The members cannot be combined.
    """

    family = "compose"

    def __init__(self, *encodings: Encoding) -> None:
        super().__init__()
        members = [e for e in encodings if not _is_neutral(e)]
        axes = {e.name: e.n_axes for e in members}
        if len({e.n_axes for e in members}) > 1:
            raise ValueError(
                f"Compose: members must have the same number of axes, because they get the same pos; got {axes}. "
                "Wrap one in OnAxes(encoding, axes, n_axes=...)."
            )
        self._scaling = [i for i, e in enumerate(members) if _rescales(e)]
        if len(self._scaling) > 1:
            raise ValueError(
                "Compose: at most one member may change the score scale; "
                f"got {[members[i].name for i in self._scaling]}. Keep one of them."
            )
        others = [
            e for i, e in enumerate(members) if i not in self._scaling
        ]  # the term of a member that changes the scale accounts for it
        if self._scaling and (readers := [e.name for e in others if e.reads_qk and not e.rescores]):
            raise ValueError(
                "Compose: a bias that reads q and k is divided by the root of head_dim as q·k is, so no other member "
                f"may change the score scale; got {readers} and {members[self._scaling[0]].name}. Keep one of them."
            )
        refuse_layers("Compose", members)
        self._mapping = [i for i, e in enumerate(members) if e.rescores]
        _check_single(
            "map the scores, because each map needs the scores before any map", [e for e in members if e.rescores]
        )
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
        """Rotate queries by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            q = encoding.rotate_q(q, part)
        return q

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys by each member in order."""
        for encoding, part in zip(self._members, placed.parts, strict=True):
            k = encoding.rotate_k(k, part)
        return k

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Add the members' biases."""
        total = None
        for encoding, part, k_part in zip(self._members, placed.parts, k_placed.parts, strict=True):
            seen = self._rotated_by_others(encoding, q, k, placed, k_placed) if encoding.turns_in_bias else (q, k)
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
        """Apply the one score map to the scores, which include all biases."""
        for i in self._mapping:
            scores = self._members[i].rescore(scores, q, k, placed.parts[i], k_placed.parts[i], mask)
        return scores

    def score_scale(self, head_dim: int) -> float:
        """Return the scale of the one member that changes it, or the default."""
        return self._members[self._scaling[0]].score_scale(head_dim) if self._scaling else float(head_dim**-0.5)

    def leaves(self, placed: Placed) -> list[tuple[Encoding, Placed]]:
        """Return the leaves of the members; only itself if a member needs queries and keys that others have rotated."""
        if self.turns_in_bias:
            return [(self, placed)]
        return [m for e, part in zip(self._members, placed.parts, strict=True) for m in e.leaves(part)]

    def resolve(self, seq_len: int) -> "Compose":
        """Resolve the members that depend on the length; itself if none does."""
        resolved = [e.resolve(seq_len) for e in self._members]
        return self if same(resolved, self._members) else as_before(Compose(*resolved), self)

    def reset_parameters(self) -> None:
        """Initialise each member's learned tensors again."""
        for encoding in self._members:
            encoding.reset_parameters()

    @property
    def _members(self) -> list[Encoding]:
        return list(self.encodings)  # type: ignore[arg-type]

    def _rotated_by_others(
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
    """Give each layer its own encoding; each distinct one is registered once and placed once.

    The host calls `layer(index, placed)` for the encoding of a layer. Token embeddings enter at the first
    layer, so its encoding embeds them, and no other layer may have an additive encoding.

    Args:
        encodings: One for each layer; the same object may occur many times.

    Raises:
        ValueError: The list is empty, axes differ, or a later layer has an additive encoding.
    """

    family = "compose"

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        super().__init__()
        if not encodings:
            raise ValueError("PerLayer: needs an encoding for every layer; got none. Pass a list of encodings.")
        distinct = list({id(e): e for e in encodings}.values())
        refuse_layers("PerLayer", distinct)
        if len(axes := {e.n_axes for e in distinct}) > 1:
            raise ValueError(
                f"PerLayer: layers must have the same number of axes; got {sorted(axes)}. Wrap some in OnAxes."
            )
        first = encodings[0]
        if late := [e.name for e in distinct if e is not first and _embeds(e)]:
            raise ValueError(
                "PerLayer: tokens are embedded before the first layer, so only its encoding may be additive; "
                f"got {late} after {first.name}. Put it first, for example in a Compose."
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

        Layers that rotate get the RoPE of their kind, or an MRoPE if images have axes; its positions come from
        `positions.mrope`, for text from `on_each_axis`. (HunYuan-VL, whose axes split pairs, gets the RoPE for text.)
        Layers without position, layers that mix tokens in other ways and layers that attend to images get NoPE.
        Queries grow by `QueryTemperature` as in transformers 5.23 (Llama 4, Beam, Ministral 3, Mistral 4,
        Inkling), and values of DeepSeek-V4 rotate by `VORoPE`. Layers with equal encodings share one object. A
        layer with two attention modules has two entries, as in its cache. Windows and learned tensors are not
        included. What `posenc inspect` warns of is a UserWarning here.

        Args:
            source: A config.json, a directory that contains one, or a mapping.
            pairing: The pairing of head dimensions; None for that of the model type.
            seq_len: The longest text, in positions, if frequencies depend on it; None to `resolve` RoPE later.

        Raises:
            ValueError: As for `config.rotary` and `config.layer_types`, or posenc does not have the encoding.
            TypeError: As for `config.rotary` and `config.layer_types`.

        >>> smollm3 = {"model_type": "smollm3", "num_hidden_layers": 5, "head_dim": 8, "rope_theta": 2e6}
        >>> PerLayer.from_config(smollm3).index
        (0, 0, 0, 1, 0)
        """
        source = checked(source)
        made = per_layer(by_layer(source, pairing=pairing, seq_len=seq_len))
        with suppress(ValueError):  # kinds of layers may have several bases here, unlike in `inspect`
            for one in noted(source, pairing=pairing):
                warnings.warn(f"PerLayer.from_config: {one.message} {one.fix} ({one.code})", stacklevel=2)
        return made

    @classmethod
    def preset(cls, name: str, n_layers: int, *, head_dim: int | None = None, base: float | None = None) -> "PerLayer":
        """Construct a published pattern of layers for a model of your own.

        "smollm3": every fourth layer has no position. "irope" (Llama 4): the same, and the queries of these layers grow
        by `QueryTemperature`. "rnope" (Yang 2025, 2501.18795; Command R7B): as "smollm3", with a window in the layers
        that rotate. "gemma4": five layers of RoPE with a window, then one of p-RoPE with a quarter of its pairs; the
        last layer is of the latter kind. The host applies the windows.

        Args:
            name: The name of the pattern.
            n_layers: The number of layers.
            head_dim: Dimensions of one head, in all layers; None for those of the published model.
            base: The base of the layers that rotate, in "gemma4" of those without a window; None for the model's.

        Raises:
            ValueError: The pattern is unknown, there is no layer, head_dim is odd, or the base is not above 1.
            TypeError: A number has a wrong type.

        >>> PerLayer.preset("irope", 8, head_dim=64).index
        (0, 0, 0, 1, 0, 0, 0, 1)
        """
        return per_layer(by_layer(preset(name, n_layers, head_dim=head_dim, base=base), pairing=None, seq_len=None))

    def __len__(self) -> int:
        return len(self.index)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Place once for each distinct encoding."""
        pasts = past.parts if past else (None,) * len(self.distinct)
        return tuple(e.place(pos, x, past=p, dtype=dtype) for e, p in zip(self._members, pasts, strict=True))

    def layer(self, index: int, placed: Placed) -> tuple[Encoding, Placed]:
        """Return the encoding of layer `index` and its placed positions."""
        if not 0 <= index < len(self.index):
            raise ValueError(
                f"PerLayer: has encodings for {len(self.index)} layers; got layer {index}. Pass one encoding for "
                "each layer."
            )
        which = self.index[index]
        return self._members[which], placed.parts[which]

    def embed(self, x: Tensor, placed: Placed) -> Tensor:
        """Embed by the first layer's encoding."""
        return self._members[0].embed(x, placed.parts[0])

    def _refuse(self, *given: Any, **named: Any) -> Any:
        """Refuse a call without a layer."""
        raise ValueError(
            "PerLayer: each layer has its own encoding. Choose one first: "
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
        """Initialise each distinct encoding's learned tensors again."""
        for encoding in self._members:
            encoding.reset_parameters()

    @property
    def _members(self) -> list[Encoding]:
        return list(self.distinct)  # type: ignore[arg-type]


def per_layer(parts: Sequence[tuple[Encoding, ...]]) -> PerLayer:
    """Construct the encoding of layers whose parts apply together; layers with the same tuple share one object."""
    made = {id(own): own[0] if len(own) == 1 else Compose(*own) for own in parts}
    return PerLayer([made[id(own)] for own in parts])


def _rescales(encoding: Encoding) -> bool:
    """Whether an encoding changes the score scale, at two widths since a constant may equal the default at one."""
    return any(encoding.score_scale(d) != Encoding.score_scale(encoding, d) for d in (64, 128))


def _is_neutral(encoding: Encoding) -> bool:
    return all(getattr(type(encoding), hook) is getattr(Encoding, hook) for hook in _HOOKS)


def _embeds(encoding: Encoding) -> bool:
    if isinstance(encoding, Compose):
        return any(map(_embeds, encoding._members))
    if isinstance(encoding, Wrapper):
        return _embeds(encoding.encoding)
    embed: Callable[..., Tensor] = type(encoding).embed
    return embed is not Encoding.embed


def _check_single(what: str, members: Sequence[Encoding]) -> None:
    """Check that at most one member does this.

    Raises:
        ValueError: Several members do.
    """
    if len(members) > 1:
        raise ValueError(f"Compose: at most one member may {what}; got {[e.name for e in members]}. Keep one of them.")
