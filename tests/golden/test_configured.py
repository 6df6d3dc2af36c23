"""Golden vectors of configurations: against the definitions, and against transformers' own modules."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from posenc import golden, positions
from posenc.config.known import known_models
from posenc.definitions import bias, frequencies, rotary
from strategies import refuses

pytest.importorskip("transformers")

ROWS = json.loads((Path(__file__).parents[1] / "data" / "rope_configs.json").read_text(encoding="utf-8"))["models"]
EXACT = 1e-12
KEYS = ["kind", "count", "pairing", "head_dim", "rotary_dim", "gain", "score_factor", "files"]


def layers(out, source, **options):
    """The entries of a manifest that have files, each with its arrays."""
    manifest = golden.write_config(source, out, **options)
    assert json.loads((out / "manifest.json").read_text("utf-8")) == json.loads(json.dumps(manifest))
    for entry in manifest["layers"]:
        assert set(KEYS) <= set(entry)
        if entry["files"]:
            (file,) = set(entry["files"].values())
            arrays = load_file(out / file)
            assert set(arrays) == set(entry["files"])
            assert {name: list(t.shape) for name, t in arrays.items()} == entry["shapes"]
            assert set(arrays) <= set(manifest["units"])
            yield entry, arrays


def defined(row):
    """Frequencies and gain of a row of the reference by the definitions."""
    rope, width = row["rope_parameters"], row["rotary_dim"]
    kind, base = rope.get("rope_type", "default"), rope["rope_theta"]
    plain = np.array([base ** (-2 * k / width) for k in range(width // 2)])
    length = rope.get("original_max_position_embeddings", row["original_max_len"])
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return frequencies.linear(plain, factor=rope["factor"]), 1.0
    if kind == "llama3":
        more = {key: rope[key] for key in ("factor", "low_freq_factor", "high_freq_factor")}
        return frequencies.llama3(plain, original_max_len=length, **more), 1.0
    assert kind == "yarn"
    keys = ("factor", "beta_fast", "beta_slow", "truncate")
    more = {key: rope[key] for key in keys if rope.get(key) is not None}
    inv_freq = frequencies.yarn(width=width, base=base, original_max_len=length, **more)
    mscale = [frequencies.mscale(rope["factor"], rope[key]) for key in ("mscale", "mscale_all_dim") if rope.get(key)]
    gain = mscale[0] / mscale[1] if len(mscale) == 2 else frequencies.mscale(rope["factor"])
    return inv_freq, rope.get("attention_factor", gain)


def known_name(row):
    return row["name"].replace("(", "-").replace(")", "")


@pytest.mark.parametrize("row", [row for row in ROWS if known_name(row) in known_models()], ids=known_name)
def test_known_models_are_as_the_definitions_say(row, tmp_path):
    found = list(layers(tmp_path, known_name(row)))
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert manifest["model_type"] == known_models()[known_name(row)]["config"]["model_type"]
    entry, arrays = next((e, a) for e, a in found if len(found) == 1 or e["kind"] == "full_attention")
    inv_freq, gain = defined(row)
    np.testing.assert_allclose(arrays["inv_freq"], inv_freq, rtol=EXACT, atol=0)
    np.testing.assert_array_equal(arrays["inv_freq_float32"], arrays["inv_freq"].astype(np.float32))
    assert entry["gain"] == pytest.approx(gain, rel=EXACT)
    wanted = (row["pairing"], row["head_dim"], row["rotary_dim"])
    assert (entry["pairing"], entry["head_dim"], entry["rotary_dim"]) == wanted
    is_last = row["name"] in ("deepseek-v3", "mistral-4")  # latent attention
    at = arrays["positions"].tolist()
    length, longest = row["original_max_len"], row["max_position_embeddings"]
    assert {0, 1, 2, longest - 1, 2**20} <= set(at)
    assert entry["rope_type"] == "default" or length - 1 in at
    for i, p in enumerate(at):
        matrix, _ = rotary.rope(
            float(p),
            head_dim=row["head_dim"],
            rotary_dim=row["rotary_dim"],
            rotary_side="last" if is_last else "first",
            pairing=row["pairing"],
            inv_freq=arrays["inv_freq"],
            attention_factor=gain,
        )
        for name in ("q", "k"):
            expected = arrays[name][:, i] @ matrix.T
            np.testing.assert_allclose(arrays[f"{name}_rotated"][:, i], expected, rtol=0, atol=EXACT)
        angles = [p * float(f) for f in arrays["inv_freq"]]
        np.testing.assert_allclose(arrays["cos"][i], [gain * math.cos(a) for a in angles], rtol=0, atol=EXACT)
        np.testing.assert_allclose(arrays["sin"][i], [gain * math.sin(a) for a in angles], rtol=0, atol=EXACT)


def test_inputs_are_exact_in_half_precision_and_all_different_signs(tmp_path):
    (_, arrays), *_ = layers(tmp_path, "llama-3.1-8b")
    for name in ("q", "k"):
        t = torch.from_numpy(arrays[name])
        assert torch.equal(t.bfloat16().double(), t)
        assert torch.equal(t.half().double(), t)
        assert bool((t != 0).all())
        assert bool((t * 64 == (t * 64).round()).all())
        assert 0.4 < float((t > 0).double().mean()) < 0.6
    assert not np.array_equal(arrays["q"], arrays["k"])


def test_partial_and_shared_angles_are_not_rotated_twice(tmp_path):
    """Pythia rotates 32 of 128 dimensions, and leaves the others as they come."""
    ((entry, arrays),) = layers(tmp_path, "pythia-1.4b")
    assert (entry["rotary_dim"], entry["first_dimension"]) == (32, 0)
    assert np.array_equal(arrays["q_rotated"][..., 32:], arrays["q"][..., 32:])
    assert not np.isclose(arrays["q_rotated"][:, 1:, :4], arrays["q"][:, 1:, :4]).all()


QWEN2_VL = {"model_type": "qwen2_vl_text", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
QWEN2_VL |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}}
QWEN3_VL = {**QWEN2_VL, "model_type": "qwen3_vl_text", "head_dim": 32}
ERNIE = {**QWEN2_VL, "model_type": "ernie4_5_vl_moe_text", "head_dim": 32}
ERNIE["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [6, 6, 4]}
AXES = {
    "blocks": (QWEN2_VL, (4, 6, 6)),
    "interleaved": (QWEN3_VL, None),
    "time_last": (ERNIE, (4, 6, 6)),
}


@pytest.mark.parametrize("layout", AXES)
def test_several_axes_have_the_positions_of_text_pictures_and_videos(layout, tmp_path):
    source, sections = AXES[layout]
    ((entry, arrays),) = layers(tmp_path, source)
    prompt = positions.mrope([tuple(p) if isinstance(p, list | tuple) else p for p in entry["prompt"]])
    assert torch.equal(torch.from_numpy(arrays["positions"][: len(prompt)]), prompt)
    assert torch.equal(prompt, positions.mrope(entry["prompt"], next_after="sides"))  # models differ on longer videos
    text = arrays["positions"][len(prompt) :]
    assert (text == text[:, :1]).all()
    assert {0, 1, 2**20} <= set(text[:, 0].tolist())
    assert entry["layout"] == layout
    for i, p in enumerate(arrays["positions"]):
        matrix, _ = rotary.mrope(
            p.astype(float),
            head_dim=entry["head_dim"],
            sections=tuple(entry["sections"]) if sections is None else sections,
            layout=layout,
            base=entry["base"],
            pairing=entry["pairing"],
            inv_freq=arrays["inv_freq"],
        )
        for name in ("q", "k"):
            expected = arrays[name][:, i] @ matrix.T
            np.testing.assert_allclose(arrays[f"{name}_rotated"][:, i], expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("n_heads", [4, 12])
def test_slopes_of_bloom_and_mpt_are_theirs(n_heads, tmp_path):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = {"model_type": "bloom", "n_layer": 3, "n_head": n_heads}
    ((entry, arrays),) = layers(tmp_path / "bloom", bloom)
    assert (entry["count"], entry["encoding"]) == (3, "alibi")
    rows = build_alibi_tensor(torch.ones(1, 16), n_heads, torch.float32).double()  # by keys: a constant a row more
    shifted = rows.numpy() - arrays["slopes"][:, None, None] * np.arange(16.0)[:, None]
    causal = np.tril(np.ones((16, 16), bool))
    np.testing.assert_allclose(arrays["bias"][:, causal], shifted[:, causal], atol=1e-6)
    mpt = {"model_type": "mpt", "n_layers": 3, "n_heads": n_heads, "d_model": 64}
    ((_, arrays),) = layers(tmp_path / "mpt", mpt)
    last = build_mpt_alibi_tensor(n_heads, 16)[:, 0]  # of the last query
    np.testing.assert_allclose(arrays["bias"][:, -1], last, atol=1e-6)


def test_the_bias_of_falcon_is_theirs(tmp_path):
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    falcon = {"model_type": "falcon", "alibi": True, "num_hidden_layers": 2}
    falcon |= {"num_attention_heads": 6, "hidden_size": 384}
    ((_, arrays),) = layers(tmp_path, falcon)
    theirs = build_alibi_tensor(torch.ones(1, 16), 6, torch.float32).double() / 8  # the root of a head of 64
    np.testing.assert_allclose(arrays["bias"], theirs.expand(-1, 16, -1).numpy(), rtol=0, atol=EXACT)
    assert arrays["slopes"][0] == 2.0**-2


def test_buckets_of_t5_are_theirs(tmp_path):
    from transformers.models.t5.modeling_t5 import T5Attention

    t5 = {"model_type": "t5", "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    encoder, decoder = layers(tmp_path, t5)
    for (entry, arrays), both in ((encoder, True), (decoder, False)):
        assert (entry["kind"], entry["count"]) == (("encoder", 2) if both else ("decoder", 3))
        relative = arrays["relative_positions"]
        theirs = T5Attention._relative_position_bucket(torch.from_numpy(relative), both, 32, 128).numpy()
        edges = {8, 16, 32, 64, 128} if both else {16, 128}  # a floating logarithm may miss an edge
        same = (arrays["buckets"] == theirs) | np.isin(np.abs(relative), list(edges))
        assert same.all(), relative[~same]
        assert np.abs(arrays["buckets"] - theirs).max() <= 1
        table = dict(zip(relative.tolist(), arrays["buckets"].tolist(), strict=True))
        assert arrays["bias_indices"].tolist() == [[table[j - i] for j in range(16)] for i in range(16)]
    weight = np.arange(32.0)[:, None]
    wanted = bias.t5(np.zeros(1, int), np.arange(-20, 21), n_heads=1, weight=weight, bidirectional=True)[0, 0]
    assert [table_of(encoder[1])[d] for d in range(-20, 21)] == wanted.tolist()


def table_of(arrays):
    return dict(zip(arrays["relative_positions"].tolist(), arrays["buckets"].tolist(), strict=True))


def test_frequencies_follow_the_length_that_is_asked_for(tmp_path):
    dynamic = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
    dynamic |= {"max_position_embeddings": 1024, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    dynamic["rope_parameters"]["rope_theta"] = 1e4
    ((short, a),) = layers(tmp_path / "short", dynamic)
    ((_, b),) = layers(tmp_path / "long", dynamic, seq_len=4096)
    assert short["by_length"]
    base = frequencies.dynamic_base(1e4, width=32, factor=2.0, seq_len=4096, original_max_len=1024)
    np.testing.assert_allclose(a["inv_freq"], 1e4 ** (-np.arange(16) / 16), rtol=EXACT)
    np.testing.assert_allclose(b["inv_freq"], base ** (-np.arange(16) / 16), rtol=EXACT)
    assert 4095 in b["positions"]


def test_positions_are_those_that_are_chosen(tmp_path):
    ((_, arrays),) = layers(tmp_path, "llama-2-7b", positions=[70_000, 5, 5])
    assert arrays["positions"].tolist() == [5, 70_000]


def test_formats_hold_the_same_numbers(tmp_path):
    (_, wanted), *_ = layers(tmp_path / "safetensors", "llama-3.2-1b")
    for form in ("npz", "npy", "json"):
        manifest = golden.write_config("llama-3.2-1b", tmp_path / form, form=form)
        (entry,) = manifest["layers"]
        for name, file in entry["files"].items():
            path = tmp_path / form / file
            if form == "json":
                listed = json.loads(path.read_text())[name]
                got = np.array(listed["data"], listed["dtype"]).reshape(listed["shape"])
            else:
                got = np.load(path) if form == "npy" else np.load(path)[name]
            assert got.dtype == wanted[name].dtype
            assert np.array_equal(got, wanted[name])
        assert {p.name for p in (tmp_path / form).iterdir()} == {"manifest.json", *entry["files"].values()}


def test_the_same_bytes_again_and_stale_files_go(tmp_path):
    golden.write_config("gemma-3-27b", tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {"manifest.json", "full_attention.safetensors", "sliding_attention.safetensors"}
    golden.write_config("llama-2-7b", tmp_path, form="npz")
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "full_attention.npz"}
    golden.write_config("gemma-3-27b", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


NOTHING = [
    ({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_positions": 128}, "positions enter by a learned table"),
    ({"model_type": "mamba", "num_hidden_layers": 2}, "no encoding"),
    ({"model_type": "unknown"}, "model_type must be one of"),
    ("no-such-model", "no known model has this name"),
    ({"model_type": "llama", "head_dim": 6, "rope_theta": "x"}, "rope_theta must be a number"),
]


@pytest.mark.parametrize(("source", "said"), NOTHING, ids=[said for _, said in NOTHING])
def test_what_has_no_numbers_is_refused_and_nothing_is_written(source, said, tmp_path):
    with pytest.raises((ValueError, TypeError), match=said):
        golden.write_config(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with refuses(ValueError, "golden: --out must be new, empty, or an output of `posenc golden`", "Name another"):
        golden.write_config("llama-2-7b", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_kinds_of_a_stranger_s_file_name_no_file_elsewhere(tmp_path):
    kinds = ["../../outside", "manifest", "Full Attention!", "full_attention"]
    source = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "layer_types": kinds}
    out = tmp_path / "a" / "b" / "out"
    golden.write_config(source | {"num_hidden_layers": 4}, out)
    names = {path.name for path in out.iterdir()}
    assert names == {"manifest.json", *(f"{n}.safetensors" for n in ("outside", "manifest_2", "full_attention"))} | {
        "full_attention_2.safetensors"
    }
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [p.name for p in out.iterdir()]


def test_sizes_have_an_end(tmp_path):
    wide = {"model_type": "llama", "head_dim": 8192, "num_hidden_layers": 1, "num_attention_heads": 1}
    with refuses(ValueError, "q may have at most", "--positions"):
        golden.write_config(wide, tmp_path, positions=range(300))
    with refuses(ValueError, "n_buckets may be at most 512"):
        many = {"model_type": "t5", "num_layers": 1, "num_heads": 1, "relative_attention_num_buckets": 4000}
        golden.write_config(many, tmp_path)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from posenc.cli import run
sys.exit(run(["golden", "--config", sys.argv[1], "--out", sys.argv[2]]))
"""


@pytest.mark.parametrize("source", ["llama-3.1-8b", QWEN2_VL, {"model_type": "mpt", "n_layers": 2, "n_heads": 4}])
def test_nothing_needs_torch(source, tmp_path):
    if not isinstance(source, str):
        (tmp_path / "config.json").write_text(json.dumps(source))
        source = str(tmp_path)
    command = [sys.executable, "-c", WITHOUT_TORCH, source, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "manifest.json").is_file()
