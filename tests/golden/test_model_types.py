"""Golden vectors of configurations next to the rotary modules of transformers, type by type."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from posenc import golden

pytest.importorskip("transformers")

from golden.model_types import TYPES, configuration, per_pair, rotated, tables

OTHER_CALLS = {
    "deepseek_v2",
    "diffusion_gemma_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "llama4_text",
}


def test_there_are_enough_types():
    assert len(TYPES) > 150


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_as_transformers_has_it(name, tmp_path):
    theirs, written = configuration(name)
    manifest = golden.write_config(written, tmp_path)
    bound = manifest["tolerance"]["float32"]
    for entry in manifest["layers"]:
        if "cos" not in entry["files"]:
            continue
        arrays = load_file(tmp_path / entry["files"]["cos"])
        cos, sin = tables(theirs, entry["kind"], arrays["positions"])
        pos, n_pairs = arrays["positions"], len(arrays["inv_freq"])
        axes = entry["axis_of_pair"]
        angle = (pos[:, None] if axes is None else pos[:, axes]) * arrays["inv_freq"]
        allowed = bound["absolute"] + bound["per_radian"] * angle
        for key, table in (("cos", cos), ("sin", sin)):
            off = np.abs(per_pair(table, n_pairs) - arrays[key])
            assert (off <= entry["gain"] * allowed).all(), (entry["kind"], key, off.max())
        side = slice(entry["first_dimension"], entry["first_dimension"] + entry["rotary_dim"])
        wide = slice(None) if cos.shape[-1] != 2 * n_pairs else side  # their function may take the head as a whole
        q, k = (torch.from_numpy(arrays[key])[None, ..., wide] for key in ("q", "k"))
        out = rotated(theirs, cos.double(), sin.double(), q, k)
        assert (out is None) == (name in OTHER_CALLS)  # whose function does not take q, k, cos and sin
        if out is None:
            continue
        for key, theirs_rotated in zip(("q", "k"), out, strict=True):
            got, ours = theirs_rotated[0].numpy(), arrays[f"{key}_rotated"][..., wide]
            if entry["pairing"] == "interleaved" and np.abs(got - ours)[:, 0].max() > 1e-6:  # they sort dimensions
                assert np.abs(got[:, 0] - arrays[key][:, 0, wide]).max() > 1e-3  # also where nothing rotates
                ours = np.concatenate((ours[..., ::2], ours[..., 1::2]), -1)
            off = np.abs(got - ours).max((0, 2))
            size = entry["gain"] * 2 * math.sqrt(2)
            assert (off <= size * allowed.max(1)).all(), (entry["kind"], key, off)
