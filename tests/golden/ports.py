"""A port in float32 NumPy, written for these tests from the formulas, whose every step can be made wrong."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def manifest_of(directory):
    return json.loads((Path(directory) / "manifest.json").read_text("utf-8"))


@dataclass
class Port:
    """What a port computes for one kind of layer; a fault is another value of one of these."""

    inv_freq: object
    gain: float
    pairing: str
    axes: object
    positions: object
    sign: float = 1.0

    def angles(self):
        at = self.positions.astype(np.float32)
        return (at[:, None] if at.ndim == 1 else at[:, self.axes]) * self.inv_freq.astype(np.float32)

    def tables(self):
        gain = np.float32(self.gain)
        return gain * np.cos(self.angles()), np.float32(self.sign) * gain * np.sin(self.angles())

    def rotate(self, x, first, width):
        cos, sin = self.tables()
        part = x.astype(np.float32)[..., first : first + width]
        a, b = np.split(part, 2, -1) if self.pairing == "half" else (part[..., ::2], part[..., 1::2])
        turned = a * cos - b * sin, b * cos + a * sin
        merged = np.concatenate(turned, -1) if self.pairing == "half" else np.stack(turned, -1).reshape(part.shape)
        return np.concatenate((x[..., :first], merged, x[..., first + width :]), -1).astype(np.float32)


def written(directory, out, *, only=None, change=lambda port, layer: None, dtype=np.float32):
    """Run the port on golden vectors in npy, and write what it computes; `change` makes it wrong."""
    out.mkdir()
    for layer in manifest_of(directory)["layers"]:
        if "q" not in layer["files"]:
            continue
        golden = {name: np.load(directory / file) for name, file in layer["files"].items()}
        inv_freq, axes = golden["inv_freq_float32"], layer["axis_of_pair"]
        port = Port(inv_freq, layer["gain"], layer["pairing"], axes, golden["positions"])
        change(port, layer)
        cos, sin = port.tables()
        first, width = layer["first_dimension"], layer["rotary_dim"]
        found = {"inv_freq": port.inv_freq.astype(np.float32), "cos": cos, "sin": sin}
        found |= {f"{name}_rotated": port.rotate(golden[name], first, width).astype(dtype) for name in ("q", "k")}
        for name, t in found.items():
            if only is None or name in only:
                np.save(out / layer["files"][name], t)
    return out
