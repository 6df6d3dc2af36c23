"""The tables of a model's rotary module, computed from angles in float64 instead of float32."""

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
from posenc.interop.hf.rotation import TOLERANCE

_FEW = (0, 1, 2, 3, 7, 40)  # positions at which float32 angles are accurate
Tables = tuple[Tensor, Tensor]


class Axes(Rotary):
    """A rotary encoding with a given frequency matrix (n_axes, n_pairs): M-RoPE in the model's own layout."""

    def __init__(self, inv_freq: Float64[Tensor, "n_axes n_pairs"], gain: float) -> None:
        super().__init__(head_dim=2 * inv_freq.shape[-1])
        self.n_axes, self.attention_factor = len(inv_freq), gain
        self.inv_freq = tuple(map(tuple, inv_freq.tolist()))
        self.pairs = [sum(number != 0 for number in row) for row in self.inv_freq]

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return the frequency matrix."""
        return torch.tensor(self.inv_freq, dtype=torch.float64)

    def gain(self) -> float:
        """Return the factor of cosines and sines."""
        return self.attention_factor


@dataclass
class Places:
    """The encodings of a rotary module, shared by the module and the attention layers that use its tables.

    Args:
        encodings: The encodings by kind of layer; by None if the module does not distinguish kinds.
        is_complex: Whether the module returns one tensor (.., 2, n_pairs) in place of a complex one.
        notes: Remarks for the report.
    """

    encodings: dict[str | None, Rotary]
    is_complex: bool = False
    notes: list[str] = field(default_factory=list)
    # by kind of layer: the encoding and positions of the last call, for encodings that depend on the length
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
    """Replace the forward of a rotary module."""
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
    """Return a few positions (1, n), then `more`, and the tables of an encoding there."""
    pos = torch.tensor([[*_FEW, *more]])
    return pos, forward(nn.Module(), torch.zeros(1), pos, places=Places({None: encoding}))


def found(rotary: Any, *, extended: bool = False) -> tuple[Places, list[tuple[Any, Tables]]]:
    """Return the new encodings of a rotary module, and for trials its own tables and ours at a few positions.

    With `extended`, the configuration has changed since the module was made, and takes precedence.

    Raises:
        LeftError: The module does not compute rotary tables from positions.
    """
    if list(inspect.signature(patching.own_class(rotary).forward).parameters)[1:3] != ["x", "position_ids"]:
        raise LeftError(f"{type(rotary).__name__} has other arguments than x and position_ids")
    fresh = _fresh(rotary, extended)
    names = [name.removesuffix("_inv_freq") for name, _ in fresh.named_buffers() if name.endswith("_inv_freq")]
    kinds: list[str | None] = [name for name in names if not name.endswith("original")] or [None]
    places = Places({kind: _encoding(fresh, kind) for kind in kinds})
    tables = [_compared(fresh, kind, places) for kind in kinds]
    held = getattr(rotary, f"{kinds[0]}_inv_freq" if kinds[0] else "inv_freq", None)
    if held is not None and held.dtype not in (torch.float32, torch.float64):
        places.notes.append(f"its frequencies had been cast to {held.dtype}; they are exact now")
    return places, tables


def _fresh(rotary: Any, extended: bool) -> Any:
    """Return a copy of the module in float32, with the frequencies of the start of a text."""
    if not hasattr(rotary, "config"):
        raise LeftError(f"{type(rotary).__name__} has no configuration")
    try:
        with torch.device("cpu"):
            fresh = patching.own_class(rotary)(rotary.config)
    except Exception:  # third-party code can raise any error
        fresh = None
    buffers = dict(rotary.named_buffers())
    own = {} if fresh is None else dict(fresh.named_buffers())
    same = own.keys() == buffers.keys() and all(_alike(own[key], buffers[key]) for key in own if "original" in key)
    if fresh is not None and (same or extended):
        return fresh
    if extended:
        raise LeftError(f"{type(rotary).__name__} cannot be constructed from its configuration")
    if any(buffer.is_meta for buffer in buffers.values()):
        raise LeftError("its frequencies are on the meta device and have no values yet")
    return copy.deepcopy(rotary).cpu().float()


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (b.is_meta or torch.allclose(a, b.to(a), rtol=2e-2, atol=1e-6))


def _encoding(rotary: Any, kind: str | None) -> Rotary:
    """Return the encoding of the configuration, or of the module's own frequencies if that cannot be read."""
    try:
        fields = dict(plain(rotary.config))
        fields.pop("layer_rope_theta", None)  # one for all layers; the module's own is in rope_parameters
        return RoPE.from_config(fields, kind)
    except (ValueError, TypeError) as error:
        types = getattr(rotary, "rope_type", "default")
        if not {"dynamic", "longrope"}.isdisjoint(types.values() if isinstance(types, dict) else [types]):
            raise LeftError(f"its frequencies depend on the length, but {error}") from None
        return _held(rotary, kind)


def _held(rotary: Any, kind: str | None, gain: float | None = None) -> RoPE:
    prefix = f"{kind}_" if kind else ""
    # if they depend on the length, take those of the start of a text
    inv_freq = getattr(rotary, f"{prefix}original_inv_freq", getattr(rotary, f"{prefix}inv_freq", None))
    if not isinstance(inv_freq, Tensor) or inv_freq.ndim != 1:
        raise LeftError(f"{type(rotary).__name__} has no vector of frequencies")
    gain = float(getattr(rotary, f"{prefix}attention_scaling", 1.0)) if gain is None else gain
    return RoPE(head_dim=2 * len(inv_freq), inv_freq=inv_freq.double().tolist(), attention_factor=gain)


def _compared(rotary: Any, kind: str | None, places: Places) -> tuple[Any, Tables]:
    """Return their tables and ours once they agree; use the module's frequencies if the configuration's do not."""
    theirs = _theirs(rotary, kind, torch.tensor([_FEW]))
    places.is_complex = torch.is_tensor(theirs) and theirs.is_complex()
    _see_axes(rotary, kind, places)
    same = _same(rotary, kind, places.encodings[kind])
    if not same and not isinstance(places.encodings[kind], Axes):
        cos, _ = _halves(theirs, places.encodings[kind].rotary_dim // 2)
        places.encodings[kind] = _held(rotary, kind, float(cos.flatten(0, -2)[0].mean()))  # at position 0
        places.notes.append("its frequencies differ from its configuration and are kept")
        same = _same(rotary, kind, places.encodings[kind])
    if not same:
        raise LeftError(
            f"the tables of {type(rotary).__name__} are not the cosines and sines of its frequencies at text positions"
        )
    return theirs, trial(places.encodings[kind])[1]


def _same(rotary: Any, kind: str | None, encoding: Any) -> bool:
    """Whether tables are equal up to the rounding of theirs, whose angles are in float32.

    The positions include some beyond each length at which frequencies may change.
    """
    lengths = [getattr(rotary.config, "max_position_embeddings", None), getattr(encoding, "original_max_len", None)]
    known = sorted({int(n) for n in lengths if isinstance(n, int | float) and 0 < n < 1 << 22})
    for far in (0, *[n + 3 for n in known], *[2 * n + 1 for n in known[-1:]]):
        pos, ours = trial(encoding, far)
        wanted = _halves(_theirs(rotary, kind, pos), encoding.rotary_dim // 2)
        inv_freq = encoding.resolve(int(pos.max()) + 1).frequencies()
        if bool((inv_freq < 0).any()):  # their function rotates clockwise instead, as its trial checks
            wanted = wanted[0], -wanted[1]
        bound = TOLERANCE + 3e-7 * pos.max() * inv_freq.abs().amax(0)
        for a, b in zip(ours, wanted, strict=True):
            if a.shape != b.shape or not bool(((a - b).abs() <= bound).all()):
                return False
    return True


def _theirs(rotary: Any, kind: str | None, pos: Tensor) -> Any:
    try:
        return rotary(torch.zeros(1, pos.shape[-1], 1), pos, *([kind] if kind else []))
    except Exception as error:  # third-party code can raise any error
        raise LeftError(
            f"{type(rotary).__name__} refuses text positions (batch, seq) and (n_axes, batch, seq), as modules for "
            f"images do ({type(error).__name__})"
        ) from None


def _halves(theirs: Any, n_pairs: int) -> Tables:
    """Return (cos, sin) with one column for each pair."""
    if torch.is_tensor(theirs):
        return theirs.real.float(), theirs.imag.float()
    cos, sin = theirs
    if cos.shape[-1] == 2 * n_pairs:
        ends = all(torch.equal(t[..., :n_pairs], t[..., n_pairs:]) for t in theirs)
        cos, sin = ((t[..., :n_pairs] if ends else t[..., ::2]) for t in theirs)
    return cos, sin


def _see_axes(rotary: Any, kind: str | None, places: Places) -> None:
    """Find the axis that rotates each pair, if a module accepts positions (n_axes, batch, seq)."""
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
    """Return a configuration as in a file; `to_dict` may contain infinities, and objects that are not JSON."""
    text = json.dumps(config.to_dict(), default=str, skipkeys=True)
    return configs.read(json.loads(text, parse_constant=lambda _: None))
