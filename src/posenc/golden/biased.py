"""The check of a port's slopes, biases and buckets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from posenc import verify
from posenc.golden.writing import Array
from posenc.verify.guard import NotAnsweredError
from posenc.verify.report import Report
from posenc.verify.sentences import finding

if TYPE_CHECKING:
    from posenc.golden.checked import Written

INPUTS = ("q_positions", "k_positions", "relative_positions")
MISMATCH = {
    "slopes": "alibi.mismatch",
    "bias": "alibi.mismatch",
    "buckets": "t5.mismatch",
    "bias_indices": "t5.mismatch",
}


def judge(written: "Written") -> None:
    """Judge each array by its numbers and, if they differ, by the engine's questions to them."""
    found = written.findings
    found.definitions = list(dict.fromkeys([*found.definitions, written.layer["encoding"]]))
    for name, t in written.theirs.items():
        right = written.golden[name]
        allowed = 0.0 if right.dtype.kind == "i" else written.roundings[name].absolute * float(np.abs(right).max())
        off = np.abs(_seen(name, t) - _seen(name, right.astype(np.float64)))
        if (off <= allowed).all():
            continue
        asked = _asked(name, t, written)
        if asked is not None and asked.status in ("pass", "equivalent"):
            continue
        at = tuple(int(i) for i in np.argwhere(off > allowed)[0])
        where = {"layer": written.layer["kind"], "file": name, "index": list(at)}
        where |= {"found": float(t[at]), "expected": float(right[at])}
        if asked is None or not asked.causes:
            found.causes.append(
                finding(MISMATCH[name], f"{name} differs from index {list(at)} on", float(off.max()), **where)
            )
        else:
            found.causes += [replace(c, smallest_case={**where, **c.smallest_case}) for c in asked.causes[:1]]


def _seen(name: str, t: Array) -> Array:
    """Return the part that a softmax sees: a bias minus that of each query's own key."""
    return np.asarray(t - np.diagonal(t, 0, -2, -1)[..., None]) if name == "bias" else t


def _asked(name: str, t: Array, written: "Written") -> Report | None:
    """Return the engine's report on the port's array; None if the engine has no question about it."""
    options: Mapping[str, Any] = written.layer["options"]
    if written.layer["encoding"] == "t5":
        relative = written.golden["relative_positions"]
        if name == "bias_indices":
            n = len(t)
            relative = (np.arange(n) - np.arange(n)[:, None]).ravel()
        rows = dict(zip(relative.tolist(), t.ravel().tolist(), strict=True))
        sizes = {"num_buckets": options["n_buckets"], "max_distance": options["max_distance"]}
        spec = {"encoding": "t5", **sizes, "bidirectional": options["bidirectional"]}
        return verify.check(_lookup(rows), convention="bucket_fn", spec=spec)
    if options.get("precision"):
        return None
    spec = {"encoding": "alibi", "heads": options["n_heads"], "causal": True}
    if name == "slopes":
        return verify.check(_slopes(t), convention="slopes_fn", spec=spec)
    return verify.check(_bias(t), convention="bias_fn", spec=spec)


def _lookup(rows: Mapping[int, float]) -> Callable[..., Any]:
    def bucket(relative_position: torch.Tensor) -> torch.Tensor:
        """Return the rows of distances; a missing distance ends the table, so that fewer are used."""
        listed = [rows[int(d)] for d in relative_position.flatten()]
        return torch.tensor(listed).long().reshape(relative_position.shape)

    return bucket


def _slopes(t: Array) -> Callable[[int], Any]:
    def slopes(n_heads: int) -> Any:
        if n_heads != len(t):
            raise NotAnsweredError("the port has slopes for only one number of heads")
        return t.tolist()

    return slopes


def _bias(t: Array) -> Callable[[int, int, int], Any]:
    def bias(heads: int, q_len: int, kv_len: int) -> Any:
        if heads != len(t) or kv_len > t.shape[2]:
            raise NotAnsweredError("the port has a bias for only one number of heads and few keys")
        return torch.from_numpy(t[:, kv_len - q_len : kv_len, :kv_len].copy())

    return bias
