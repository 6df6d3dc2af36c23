"""The tables of a model's rotary module, from angles in float64 instead of float32."""

import copy
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from posenc import config as configs
from posenc.encodings import RoPE
from posenc.families import OfLength, Rotary
from posenc.interop.hf import patching
from posenc.interop.hf.patching import LeftError
from posenc.interop.hf.turning import TOLERANCE

_FEW = (0, 1, 2, 3, 7, 40)  # positions at which angles in float32 are right
Tables = tuple[Tensor, Tensor]


class Axes(Rotary):
    """Frequencies (n_axes, n_pairs) as they are given: M-RoPE in whichever layout a model has."""

    def __init__(self, inv_freq: Float64[Tensor, "n_axes n_pairs"], gain: float) -> None:
        super().__init__(head_dim=2 * inv_freq.shape[-1])
        self.n_axes, self.attention_factor = len(inv_freq), gain
        self.inv_freq = tuple(map(tuple, inv_freq.tolist()))
        self.pairs = [sum(number != 0 for number in row) for row in self.inv_freq]

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return the matrix."""
        return torch.tensor(self.inv_freq, dtype=torch.float64)

    def gain(self) -> float:
        """Return the factor of cosines and sines."""
        return self.attention_factor


@dataclass
class Places:
    """What a rotary module returns now; shared by the module and by the attentions that its tables reach.

    Args:
        encodings: By kind of layer; None where the module does not ask for it.
        is_complex: Whether its callers hand on one tensor (.., 2, n_pairs).
        notes: What is odd, for the report.
    """

    encodings: dict[str | None, Rotary]
    is_complex: bool = False
    notes: list[str] = field(default_factory=list)
    # by kind of layer: what the last call placed; only for encodings that depend on the length
    last: dict[str | None, tuple[Rotary, Tensor]] = field(default_factory=dict)

    @property
    def by_length(self) -> bool:
        """Whether frequencies depend on the length."""
        return any(isinstance(encoding, OfLength) for encoding in self.encodings.values())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"last": {}}


def forward(
    module: nn.Module, x: Tensor, position_ids: Tensor, layer_type: str | None = None, *, places: Places
) -> Any:
    """Stand in for the forward of a rotary module."""
    encoding = places.encodings[layer_type]
    if isinstance(encoding, OfLength):
        encoding = encoding.resolve(int(position_ids.max()) + 1)  # type: ignore[assignment]
        places.last[layer_type] = encoding, position_ids
    if encoding.n_axes > 1:
        position_ids = position_ids.expand(encoding.n_axes, *position_ids.shape[-2:]).movedim(0, -1)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = encoding.place(position_ids.to(x.device), dtype=dtype).parts
    return torch.stack((cos, sin), -2) if places.is_complex else (cos, sin)


def trial(encoding: Rotary, *more: int) -> tuple[Tensor, Tables]:
    """Return a few positions (1, n), with more behind them, and the tables of an encoding there."""
    pos = torch.tensor([[*_FEW, *more]])
    return pos, forward(nn.Module(), torch.zeros(1), pos, places=Places({None: encoding}))


def found(rotary: Any, *, extended: bool = False) -> tuple[Places, list[tuple[Any, Tables]]]:
    """Return what a rotary module shall return, and for trials its tables at a few positions and ours.

    With `extended`, its configuration has changed since it was made, and is what counts.

    Raises:
        LeftError: The module does something else; the sentence says what.
    """
    if list(inspect.signature(patching.own_class(rotary).forward).parameters)[1:3] != ["x", "position_ids"]:
        raise LeftError(f"{type(rotary).__name__} asks for other things than positions")
    fresh = _fresh(rotary, extended)
    names = [name.removesuffix("_inv_freq") for name, _ in fresh.named_buffers() if name.endswith("_inv_freq")]
    kinds: list[str | None] = [name for name in names if not name.endswith("original")] or [None]
    places = Places({kind: _encoding(fresh, kind) for kind in kinds})
    tables = [_compared(fresh, kind, places) for kind in kinds]
    held = getattr(rotary, f"{kinds[0]}_inv_freq" if kinds[0] else "inv_freq", None)
    if held is not None and held.dtype not in (torch.float32, torch.float64):
        places.notes.append(f"its frequencies had been cast to {held.dtype} and are exact now")
    return places, tables


def _fresh(rotary: Any, extended: bool) -> Any:
    """Return a module like it, in float32 and with the frequencies with which a text begins."""
    if not hasattr(rotary, "config"):
        raise LeftError(f"{type(rotary).__name__} has no configuration of its own")
    try:
        with torch.device("cpu"):
            fresh = patching.own_class(rotary)(rotary.config)
    except Exception:  # of whatever its author asks for
        fresh = None
    buffers = dict(rotary.named_buffers())
    own = {} if fresh is None else dict(fresh.named_buffers())
    same = own.keys() == buffers.keys() and all(_alike(own[key], buffers[key]) for key in own if "original" in key)
    if fresh is not None and (same or extended):
        return fresh
    if extended:
        raise LeftError(f"{type(rotary).__name__} cannot be made anew from its configuration")
    if any(buffer.is_meta for buffer in buffers.values()):
        raise LeftError("its frequencies have no values yet: they are on the meta device")
    return copy.deepcopy(rotary).cpu().float()


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (b.is_meta or torch.allclose(a, b.to(a), rtol=2e-2, atol=1e-6))


def _encoding(rotary: Any, kind: str | None) -> Rotary:
    """Return what the configuration says; where it is not read here, the frequencies that the module holds."""
    try:
        fields = dict(plain(rotary.config))
        fields.pop("layer_rope_theta", None)  # of all layers; the module's own stands in rope_parameters
        return RoPE.from_config(fields, kind)
    except (ValueError, TypeError) as error:
        types = getattr(rotary, "rope_type", "default")
        if not {"dynamic", "longrope"}.isdisjoint(types.values() if isinstance(types, dict) else [types]):
            raise LeftError(f"its frequencies depend on the length, and {error}") from None
        return _held(rotary, kind)


def _held(rotary: Any, kind: str | None, gain: float | None = None) -> RoPE:
    prefix = f"{kind}_" if kind else ""
    # where they change with the length, those with which a text begins
    inv_freq = getattr(rotary, f"{prefix}original_inv_freq", getattr(rotary, f"{prefix}inv_freq", None))
    if not isinstance(inv_freq, Tensor) or inv_freq.ndim != 1:
        raise LeftError(f"{type(rotary).__name__} holds no list of frequencies")
    gain = float(getattr(rotary, f"{prefix}attention_scaling", 1.0)) if gain is None else gain
    return RoPE(head_dim=2 * len(inv_freq), inv_freq=inv_freq.double().tolist(), attention_factor=gain)


def _compared(rotary: Any, kind: str | None, places: Places) -> tuple[Any, Tables]:
    """Return theirs and ours, once they are the same; changes the encoding where the configuration says otherwise."""
    theirs = _theirs(rotary, kind, torch.tensor([_FEW]))
    places.is_complex = torch.is_tensor(theirs) and theirs.is_complex()
    _see_axes(rotary, kind, places)
    same = _same(rotary, kind, places.encodings[kind])
    if not same and not isinstance(places.encodings[kind], Axes):
        cos, _ = _halves(theirs, places.encodings[kind].rotary_dim // 2)
        places.encodings[kind] = _held(rotary, kind, float(cos.flatten(0, -2)[0].mean()))  # at position 0
        places.notes.append("its frequencies are others than its configuration says, and stay")
        same = _same(rotary, kind, places.encodings[kind])
    if not same:
        raise LeftError(
            f"the tables of {type(rotary).__name__} are no cosines and sines of its frequencies at positions of text"
        )
    return theirs, trial(places.encodings[kind])[1]


def _same(rotary: Any, kind: str | None, encoding: Any) -> bool:
    """Whether tables are the same but for the rounding of theirs, whose angles are in float32.

    They are compared beyond every length at which frequencies may change, too.
    """
    lengths = [getattr(rotary.config, "max_position_embeddings", None), getattr(encoding, "original_max_len", None)]
    known = sorted({int(n) for n in lengths if isinstance(n, int | float) and 0 < n < 1 << 22})
    for far in (0, *[n + 3 for n in known], *[2 * n + 1 for n in known[-1:]]):
        pos, ours = trial(encoding, far)
        wanted = _halves(_theirs(rotary, kind, pos), encoding.rotary_dim // 2)
        inv_freq = encoding.resolve(int(pos.max()) + 1).frequencies()
        if bool((inv_freq < 0).any()):  # it is their function that turns clockwise, as its trial shows
            wanted = wanted[0], -wanted[1]
        bound = TOLERANCE + 3e-7 * pos.max() * inv_freq.abs().amax(0)
        for a, b in zip(ours, wanted, strict=True):
            if a.shape != b.shape or not bool(((a - b).abs() <= bound).all()):
                return False
    return True


def _theirs(rotary: Any, kind: str | None, pos: Tensor) -> Any:
    try:
        return rotary(torch.zeros(1, pos.shape[-1], 1), pos, *([kind] if kind else []))
    except Exception as error:  # of whatever its author asks for
        raise LeftError(
            f"{type(rotary).__name__} takes no positions (batch, seq) nor (n_axes, batch, seq), as text has, but "
            f"others, as pictures have ({type(error).__name__})"
        ) from None


def _halves(theirs: Any, n_pairs: int) -> Tables:
    """Return (cos, sin) with one column a pair."""
    if torch.is_tensor(theirs):
        return theirs.real.float(), theirs.imag.float()
    cos, sin = theirs
    if cos.shape[-1] == 2 * n_pairs:
        ends = all(torch.equal(t[..., :n_pairs], t[..., n_pairs:]) for t in theirs)
        cos, sin = ((t[..., :n_pairs] if ends else t[..., ::2]) for t in theirs)
    return cos, sin


def _see_axes(rotary: Any, kind: str | None, places: Places) -> None:
    """Find out which axis turns which pair, where a module takes positions (n_axes, batch, seq)."""
    encoding = places.encodings[kind]
    if places.is_complex or isinstance(encoding, OfLength):
        return
    n_pairs = encoding.rotary_dim // 2
    for n_axes in (3, 2, 4):
        try:
            each = [_theirs(rotary, kind, one.long()[:, None, None]) for one in torch.eye(n_axes)]
        except LeftError:
            continue
        sines = [_halves(theirs, n_pairs)[1].flatten() for theirs in each]
        if all(len(sine) == n_pairs for sine in sines) and bool((torch.stack(sines) != 0).sum(0).max() == 1):
            matrix = torch.where(torch.stack(sines) != 0, encoding.frequencies(), 0.0)
            places.encodings[kind] = Axes(matrix, encoding.gain())
            return


def plain(config: Any) -> Mapping[str, Any]:
    """Return a configuration as a file holds it; `to_dict` may hold an infinity, and objects under names of its own."""
    text = json.dumps(config.to_dict(), default=str, skipkeys=True)
    return configs.read(json.loads(text, parse_constant=lambda _: None))
