"""Queries that grow with their position: against transformers' own layers, and the check of a port that does it."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import Llama4TextConfig, Ministral3Config
from transformers.models.beam import modeling_beam as beam
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.ministral3 import modeling_ministral3 as ministral3
from transformers.models.mistral4 import modeling_mistral4 as mistral4

from golden.model_types import configuration
from golden.ports import manifest_of
from posenc import golden
from strategies import refuses

SIZES = {"hidden_size": 16, "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 6}
N = 40  # tokens, at positions 0, 1, ..


def of_kind(out, source, kind, **options):
    """The entry of a kind of layer, and its arrays."""
    manifest = golden.write_config(source, out, **options)
    (entry,) = (one for one in manifest["layers"] if one["kind"] == kind)
    assert "query_scale" in manifest["units"]
    assert entry["query_scale"]["law"] in manifest["laws"]
    return entry, load_file(out / entry["files"]["query_scale"])


def handed_over(monkeypatch, module, layer, **inputs):
    """What a layer of theirs multiplies queries and keys by, read off what it hands to attention."""
    handed = {}

    def attention(module, query, key, value, *_, **__):
        handed.update(q=query, k=key)
        return query.transpose(1, 2), None

    monkeypatch.setattr(module, "eager_attention_forward", attention)
    x = torch.randn(1, N, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        layer(x, **inputs, attention_mask=None)
        plain = {"q": layer.q_proj(x), "k": layer.k_proj(x)}
    ratio = {name: handed[name] / t.view(1, N, 2, 8).transpose(1, 2) for name, t in plain.items()}
    return {name: t.double().numpy() for name, t in ratio.items()}


def test_llama_4_is_theirs_in_layers_without_rotation_only(tmp_path, monkeypatch):
    config = Llama4TextConfig(**SIZES, floor_scale=5, attn_scale=0.3)
    config._attn_implementation = "eager"
    entry, arrays = of_kind(tmp_path, config.to_dict(), "nope", positions=range(N))
    assert entry["query_scale"] == {"law": "llama4", "original_max_len": 5, "weight": 0.3}
    assert (entry["count"], entry["encoding"], set(entry["files"])) == (1, "nope", {"positions", "query_scale"})
    layer = llama4.Llama4TextAttention(config, 3)
    assert not layer.use_rope
    ratio = handed_over(monkeypatch, llama4, layer, position_embeddings=None)
    np.testing.assert_allclose(ratio["q"], np.broadcast_to(arrays["query_scale"][:, None], (1, 2, N, 8)), rtol=1e-5)
    np.testing.assert_allclose(ratio["k"], 1, rtol=1e-5)
    (rotates,) = (one for one in manifest_of(tmp_path)["layers"] if one["kind"] != "nope")
    assert (rotates["count"], rotates["query_scale"]) == (3, None)
    assert "query_scale" not in rotates["files"]


def test_ministral_3_is_theirs_after_the_rotation(tmp_path, monkeypatch):
    config = Ministral3Config(**SIZES, rope_parameters={**YARN, "llama_4_scaling_beta": 0.3})
    config._attn_implementation = "eager"
    entry, arrays = of_kind(tmp_path, config.to_dict(), "full_attention", positions=range(N))
    assert entry["query_scale"] == {"law": "ministral", "original_max_len": 6, "weight": 0.3}
    still = torch.ones(1, N, 8), torch.zeros(1, N, 8)  # cos and sin of no rotation
    ratio = handed_over(
        monkeypatch,
        ministral3,
        ministral3.Ministral3Attention(config, 0),
        position_embeddings=still,
        position_ids=torch.arange(N)[None],
    )
    np.testing.assert_allclose(ratio["q"], np.broadcast_to(arrays["query_scale"][:, None], (1, 2, N, 8)), rtol=1e-5)
    np.testing.assert_allclose(ratio["k"], 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["ministral3", "mistral4", "beam", "llama4_text"])
def test_default_configurations_grow_as_theirs_at_far_positions(name, tmp_path):
    theirs, written = configuration(name)
    kind = "nope" if name in ("beam", "llama4_text") else "full_attention"
    entry, arrays = of_kind(tmp_path, written, kind)
    pos = torch.from_numpy(arrays["positions"])[None]
    assert {0, 1, entry["query_scale"]["original_max_len"] - 1, 2**20} <= set(pos[0].tolist())
    if name == "beam":
        wanted = beam.compute_attention_scaling(pos)
    elif name == "llama4_text":  # Llama 4 at p is Ministral 3 at p + 1, as their layers above show
        wanted = ministral3.get_llama_4_attn_scale(pos + 1, theirs.attn_scale, theirs.floor_scale)
    else:
        module, own = {"ministral3": ministral3, "mistral4": mistral4}[name], theirs.rope_parameters
        lengths = own["llama_4_scaling_beta"], own["original_max_position_embeddings"]
        wanted = module.get_llama_4_attn_scale(pos, *lengths)
    np.testing.assert_allclose(arrays["query_scale"], wanted[0, 0, :, 0], rtol=1e-6)
    assert arrays["query_scale"][-1] > 1.1


def test_models_whose_queries_do_not_grow_have_no_factor(tmp_path):
    for source in ("llama-3.1-8b", {**SIZES, "model_type": "llama4_text", "attn_temperature_tuning": False}):
        for entry in golden.write_config(source, tmp_path)["layers"]:
            assert entry["query_scale"] is None
            assert "query_scale" not in entry["files"]


def test_positions_of_several_axes_have_no_law(tmp_path):
    mine = {**SIZES, "model_type": "mine", "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}
    mine["rope_parameters"]["mrope_section"] = [2, 1, 1]
    with refuses(ValueError, "positions with one axis; got several", "Remove mrope_section"):
        golden.write_config(mine, tmp_path, pairing="half")


LLAMA4 = {**SIZES, "model_type": "llama4_text", "floor_scale": 64, "attn_scale": 0.1}
MINISTRAL = {**SIZES, "model_type": "ministral3", "max_position_embeddings": 512}
MINISTRAL["rope_parameters"] = {**YARN, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}


def steps(pos, by, length=64, weight=0.1):
    return (1 + weight * np.log(1 + np.floor((pos + by) / length))).astype(np.float32)


PORTS = [
    (LLAMA4, "nope", lambda pos: steps(pos, 1), None, None),
    (LLAMA4, "nope", lambda pos: np.ones(len(pos), np.float32), "query_scale.not_applied", 63),
    (LLAMA4, "nope", lambda pos: steps(pos, 0), "query_scale.off_by_one", 63),
    (LLAMA4, "nope", lambda pos: steps(pos, 1, length=128), "query_scale.mismatch", 63),
    (LLAMA4, "nope", lambda pos: (1 + 0.1 * np.log1p((pos + 1) / 64)).astype(np.float32), "query_scale.mismatch", 0),
    (MINISTRAL, "full_attention", lambda pos: steps(pos, 0), None, None),
    (MINISTRAL, "full_attention", lambda pos: steps(pos, 1), "query_scale.off_by_one", 63),
    (MINISTRAL, "full_attention", lambda pos: steps(pos, 0) ** 2, "query_scale.mismatch", 64),
]


@pytest.mark.parametrize(("source", "kind", "port", "code", "first"), PORTS)
def test_a_port_is_judged(source, kind, port, code, first, tmp_path):
    manifest = golden.write_config(source, tmp_path / "golden", form="npy")
    (entry,) = (one for one in manifest["layers"] if one["kind"] == kind)
    pos = np.load(tmp_path / "golden" / entry["files"]["positions"])
    (tmp_path / "port").mkdir()
    report = golden.check(tmp_path / "golden", tmp_path / "port")
    assert any(line.startswith(f"{kind}: ") and "query_scale" in line for line in report.not_judged)
    np.save(tmp_path / "port" / entry["files"]["query_scale"], port(pos))
    report = golden.check(tmp_path / "golden", tmp_path / "port")
    if code is None:
        assert (report.status, report.causes) == ("pass", ())
        return
    assert [cause.code for cause in report.causes] == [code]
    (cause,) = report.causes
    assert cause.fix
    case = cause.smallest_case
    assert (case["layer"], case["file"], case["position"]) == (kind, "query_scale", first)
    assert case["found"] == pytest.approx(float(port(np.array([first]))[0]), rel=1e-6)
    assert case["expected"] != pytest.approx(case["found"], rel=1e-4)
