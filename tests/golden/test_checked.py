"""The check of ports: right ones pass, and a planted fault is found by its name and its first wrong position."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from golden.ports import manifest_of, written
from posenc import golden
from posenc.golden.ported import Ported, Rounding
from posenc.verify import rules
from posenc.verify.sentences import message_of
from strategies import refuses

ROTATED = ("q_rotated", "k_rotated")
QWEN2_VL = {"model_type": "qwen2_vl_text", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 2}
QWEN2_VL |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
QWEN3_VL = {**QWEN2_VL, "model_type": "qwen3_vl_text", "head_dim": 128}
QWEN3_VL["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}
BLOOM = {"model_type": "bloom", "n_layer": 3, "n_head": 12}
T5 = {"model_type": "t5", "num_layers": 2, "num_heads": 4, "is_encoder_decoder": False}
PHI3 = {"model_type": "phi3", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
PHI3 |= {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
PHI3["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 1e4}
SHORT, LONG = 1 + np.arange(16) / 20, 1.0 + np.arange(16)
PHI3["rope_parameters"] |= {"short_factor": SHORT.tolist(), "long_factor": LONG.tolist()}
MODELS = {
    **{name: name for name in ("llama-3.1-8b", "llama-2-7b", "qwen2.5-7b-yarn4", "deepseek-v3", "pythia-1.4b")},
    **{"gemma-3-27b": "gemma-3-27b", "gpt-oss-20b": "gpt-oss-20b"},
    **{"qwen2_vl": QWEN2_VL, "qwen3_vl": QWEN3_VL, "phi3": PHI3},
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Directories of golden vectors by model, each written once."""
    made = {}

    def of(name, **options):
        key = name, *options.items()
        if key not in made:
            made[key] = tmp_path_factory.mktemp("golden")
            golden.write_config(MODELS[name], made[key], form="npy", **options)
        return made[key]

    return of


def plain(base=None):
    """Frequencies without any scaling."""

    def change(port, layer):
        width = layer["rotary_dim"]
        port.inv_freq = (base or layer["base"]) ** (-2 * np.arange(width // 2) / width)

    return change


def setting(**values):
    """Another value of some of the port's settings, or a function of the old value."""

    def change(port, layer):
        for name, value in values.items():
            setattr(port, name, value(getattr(port, name)) if callable(value) else value)

    return change


@pytest.mark.parametrize("name", MODELS)
def test_a_right_port_passes(name, vectors, tmp_path):
    report = golden.check(vectors(name), written(vectors(name), tmp_path / "port"))
    assert (report.status, report.causes, report.not_judged) == ("pass", (), ())


def test_axes_that_the_golden_vectors_lack_are_not_judged(tmp_path):
    model = {"model_type": "hunyuan_vl_text", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
    model |= {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    model["rope_parameters"] |= {"mrope_section": [4, 4, 4, 4]}
    golden.write_config(model, tmp_path / "vectors", form="npy")
    report = golden.check(tmp_path / "vectors", written(tmp_path / "vectors", tmp_path / "port"))
    kind, why = "full_attention: images, whose tokens have another position on each of 4 axes", "positions of text only"
    assert (report.status, report.not_judged) == ("pass", (f"{kind}: these golden vectors have {why}",))


FAULTS = [
    ("llama-3.1-8b", plain(), "rope.config.scaling_ignored", 1),
    ("llama-3.1-8b", plain(1e4), "rope.config.theta_not_read", 1),
    ("llama-2-7b", plain(5e5), "rope.config.theta_not_read", 1),
    ("llama-2-7b", plain(123_456.0), "rope.frequency.base", 1),
    ("llama-3.1-8b", setting(pairing="interleaved"), "rope.layout.wrong_pairing", 1),
    ("deepseek-v3", setting(pairing="half"), "rope.layout.wrong_pairing", 1),
    ("llama-3.1-8b", setting(positions=lambda p: p + 1), "rope.positions.off_by_one", 0),
    ("llama-3.1-8b", setting(positions=lambda p: p % 8192), "rope.table.wraps", 8192),
    ("llama-3.1-8b", setting(positions=lambda p: np.minimum(p, 8191)), "rope.table.too_short", 8192),
    ("llama-3.1-8b", setting(positions=lambda p: np.arange(len(p))), "positions.given_ignored", None),
    ("llama-3.1-8b", setting(sign=-1.0), "rope.sign.other_direction", 1),
    ("llama-2-7b", setting(gain=1.25), "rope.gain", 0),
    ("qwen2.5-7b-yarn4", setting(gain=lambda gain: gain**2), "rope.yarn.gain_squared", 0),
    ("qwen2.5-7b-yarn4", setting(gain=1.0), "rope.yarn.gain_lost", 0),
    ("qwen2.5-7b-yarn4", plain(), "rope.config.scaling_ignored", 1),
    ("phi3", setting(inv_freq=lambda f: f * SHORT / LONG), "rope.longrope.always_long", 1),
    ("pythia-1.4b", plain(5e5), "rope.config.theta_not_read", 1),
    ("qwen2_vl", plain(1e4), "rope.config.theta_not_read", None),
    ("qwen2_vl", setting(axes=[0] * 64), "mrope.axes_collapsed", None),
    ("qwen2_vl", setting(axes=[i % 3 if i < (48, 72, 72)[i % 3] else 0 for i in range(64)]),
     "mrope.interleaved_where_blocked", None),
    ("qwen3_vl", setting(axes=[0] * 24 + [1] * 20 + [2] * 20), "mrope.interleaving_ignored", None),
    ("qwen2_vl", setting(positions=lambda p: p + 1), "rope.positions.off_by_one", None),
]  # fmt: skip


@pytest.mark.parametrize("only", [None, ROTATED], ids=["all", "rotated"])
@pytest.mark.parametrize(("name", "change", "code", "first"), FAULTS, ids=[f"{n}-{c}" for n, _, c, _ in FAULTS])
def test_a_fault_is_found_by_name(name, change, code, first, only, vectors, tmp_path):
    report = golden.check(vectors(name), written(vectors(name), tmp_path / "port", only=only, change=change))
    assert report.status == "fail"
    assert [cause.code for cause in report.causes] == [code]
    (cause,) = report.causes
    assert cause.code in rules.known()
    assert cause.message
    assert cause.fix
    case = cause.smallest_case
    assert {"layer", "file", "position", "pair", "found", "expected"} <= set(case)
    assert abs(case["found"] - case["expected"]) > 1e-6
    assert first is None or case["position"] == first
    if only is None and "q_rotated" not in case["file"]:
        assert {"q_rotated", "k_rotated"} <= set(cause.consequences)
    assert bool(report.not_judged) == (only is not None)


def test_two_faults_in_two_places_are_both_named(vectors, tmp_path):
    def change(port, layer):
        plain()(port, layer)
        port.pairing = "interleaved"

    report = golden.check(vectors("llama-3.1-8b"), written(vectors("llama-3.1-8b"), tmp_path / "port", change=change))
    assert [cause.code for cause in report.causes] == ["rope.config.scaling_ignored", "rope.layout.wrong_pairing"]


def test_one_kind_of_layer_is_named(vectors, tmp_path):
    def change(port, layer):
        if layer["kind"] == "full_attention":
            plain(1e4)(port, layer)

    name = "gemma-3-27b"
    report = golden.check(vectors(name), written(vectors(name), tmp_path / "port", change=change))
    assert {cause.smallest_case["layer"] for cause in report.causes} == {"full_attention"}
    assert [cause.code for cause in report.causes] == ["rope.config.theta_not_read"]


def test_only_keys_wrong(vectors, tmp_path):
    out = written(vectors("llama-2-7b"), tmp_path / "port")
    (layer,) = manifest_of(vectors("llama-2-7b"))["layers"]
    shutil.copy(vectors("llama-2-7b") / layer["files"]["k"], out / layer["files"]["k_rotated"])
    report = golden.check(vectors("llama-2-7b"), out)
    assert [cause.code for cause in report.causes] == ["rope.side.not_turned"]
    assert report.causes[0].smallest_case["side"] == "keys"


def test_dimensions_that_come_back_sorted_are_equivalent(vectors, tmp_path):
    directory = vectors("deepseek-v3")
    out = written(directory, tmp_path / "port")
    (layer,) = manifest_of(directory)["layers"]
    first = layer["first_dimension"]
    for name in ROTATED:
        t = np.load(out / layer["files"][name])
        np.save(
            out / layer["files"][name], np.concatenate((t[..., :first], t[..., first::2], t[..., first + 1 :: 2]), -1)
        )
    report = golden.check(directory, out)
    assert report.status == "equivalent"
    assert "scores do not change" in report.because


def test_bfloat16_is_as_good_as_it_can_be(tmp_path):
    golden.write_config("llama-3.1-8b", tmp_path / "golden")
    file = "full_attention.safetensors"
    arrays = load_file(tmp_path / "golden" / file)
    cos, sin = (torch.cat((arrays[name],) * 2, -1).bfloat16() for name in ("cos", "sin"))
    for name, as_good in (("port", True), ("counted", False)):
        q, k = (arrays[key].bfloat16() for key in ("q", "k"))
        if not as_good:  # positions in bfloat16
            angle = arrays["positions"].bfloat16().double()[:, None] * arrays["inv_freq"]
            cos, sin = (torch.cat((f(angle),) * 2, -1).bfloat16() for f in (torch.cos, torch.sin))
        half = [torch.cat((-x[..., 64:], x[..., :64]), -1) for x in (q, k)]
        out = [x * cos + other * sin for x, other in zip((q, k), half, strict=True)]
        (tmp_path / name).mkdir()
        save_file(dict(zip(ROTATED, out, strict=True)), tmp_path / name / file)
        report = golden.check(tmp_path / "golden", tmp_path / name)
        assert report.status == ("pass" if as_good else "fail")
    assert report.causes[0].code == "rope.precision.positions_bf16"
    wide = {key: t.float() for key, t in load_file(tmp_path / "port" / file).items()}
    save_file(wide, tmp_path / "port" / file)
    assert golden.check(tmp_path / "golden", tmp_path / "port").status == "fail"
    assert golden.check(tmp_path / "golden", tmp_path / "port", dtype="bfloat16").status == "pass"


def bias_port(directory, out, change):
    out.mkdir()
    (layer,) = manifest_of(directory)["layers"]
    golden_arrays = {name: np.load(directory / file) for name, file in layer["files"].items()}
    for name, t in change(golden_arrays).items():
        np.save(out / layer["files"][name], t)
    return out


GEOMETRIC = 2.0 ** (-8 * np.arange(1, 13) / 12)
AWAY = np.arange(16)[None] - np.arange(16)[:, None]
BIASES = [
    (BLOOM, lambda a: {key: a[key].astype(np.float32) for key in ("slopes", "bias")}, "pass", None),
    (BLOOM, lambda a: {"bias": a["bias"] + np.arange(16.0)[:, None]}, "pass", None),  # no softmax sees it
    (BLOOM, lambda a: {"slopes": GEOMETRIC}, "fail", "alibi.slopes.not_power_of_two"),
    (BLOOM, lambda a: {"bias": GEOMETRIC[:, None, None] * -np.abs(AWAY)}, "fail", "alibi.slopes.not_power_of_two"),
    (BLOOM, lambda a: {"bias": -a["bias"]}, "fail", "alibi.sign"),
    (T5, lambda a: {key: a[key].astype(np.int32) for key in ("buckets", "bias_indices")}, "pass", None),
    (T5, lambda a: {"buckets": a["buckets"][::-1]}, "fail", "t5.bucket.direction"),
    (T5, lambda a: {"bias_indices": np.minimum(np.abs(AWAY), 31)}, "fail", None),
]


@pytest.mark.parametrize(("source", "change", "status", "code"), BIASES)
def test_biases_and_buckets(source, change, status, code, tmp_path):
    golden.write_config(source, tmp_path / "golden", form="npy")
    report = golden.check(tmp_path / "golden", bias_port(tmp_path / "golden", tmp_path / "port", change))
    assert report.status == status
    assert code in [None, *(cause.code for cause in report.causes[:1])]
    assert bool(report.causes) == (status == "fail")


def test_files_that_are_missing_or_of_another_shape(vectors, tmp_path):
    directory = vectors("llama-2-7b")
    (tmp_path / "empty").mkdir()
    report = golden.check(directory, tmp_path / "empty")
    assert report.status == "cannot_tell"
    out = written(directory, tmp_path / "port", only=("cos", "sin"))
    report = golden.check(directory, out)
    assert report.status == "pass"
    assert report.not_judged == (f"full_attention: inv_freq, q_rotated, k_rotated: not in {out}",)
    (layer,) = manifest_of(directory)["layers"]
    np.save(out / layer["files"]["cos"], np.zeros((3, 64)))
    report = golden.check(directory, out)
    assert [cause.code for cause in report.causes] == ["subject.shape"]
    assert "(3, 64), but the golden vectors have (25, 64): gain * cos(" in report.causes[0].message
    cos = np.load(directory / layer["files"]["cos"])
    cos[3, 5] = np.nan
    np.save(out / layer["files"]["cos"], cos)
    report = golden.check(directory, out)
    assert [cause.code for cause in report.causes] == ["subject.not_finite"]
    assert "[3, 5]" in report.causes[0].message


def test_every_fault_has_a_rule_and_fills_its_slots(vectors):
    for name in MODELS:
        directory = vectors(name)
        for layer in manifest_of(directory)["layers"]:
            arrays = {key: np.load(directory / file) for key, file in layer["files"].items()}
            family = Ported(layer, arrays, np.stack([arrays["q"], arrays["k"]]), Rounding(1e-6, 1e-6))
            for fault in family.faults():
                message = message_of(rules.find(fault.code), fault)
                assert message
                assert "{" not in message, fault.code


def test_bad_input_is_refused(vectors, tmp_path):
    directory = vectors("llama-2-7b")
    with refuses(ValueError, "golden check:", "must be an output of `posenc golden --config`"):
        golden.check(tmp_path, directory)
    with refuses(ValueError, "--against must be a directory"):
        golden.check(directory, tmp_path / "none")
    with refuses(ValueError, "--dtype must be float32 or bfloat16"):
        golden.check(directory, directory, dtype="int8")
    out = written(directory, tmp_path / "port")
    (layer,) = manifest_of(directory)["layers"]
    (out / layer["files"]["cos"]).write_bytes(b"no array")
    with refuses(ValueError, "golden check:", "cannot be read"):
        golden.check(directory, out)
    copied = tmp_path / "copied"
    shutil.copytree(directory, copied)
    manifest = manifest_of(copied)
    manifest["layers"][0]["files"]["cos"] = "../elsewhere.npy"
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with refuses(ValueError, "may only name files of its own directory"):
        golden.check(copied, out)


STRANGE = {  # what a port wrote as cos: the error
    "a list": ([[1.0]], 'cos must be {"dtype": "float32", "shape"'),
    "no data": ({"dtype": "float32", "shape": [1]}, "got ['dtype', 'shape']"),
    "words": ({"dtype": "float32", "shape": [1], "data": ["a"]}, "cannot be read"),
    "a huge number": ({"dtype": "float32", "shape": [1], "data": [10**400]}, "too large"),
    "a huge integer": ({"dtype": "int64", "shape": [1], "data": [10**30]}, "too large"),
    "complex": ({"dtype": "complex64", "shape": [1], "data": [1.0]}, "cos has dtype 'complex64'"),
    "no array": (5, "got int"),
}


@pytest.mark.parametrize("wrote", STRANGE)
def test_json_that_is_no_array_is_refused(wrote, tmp_path):
    golden.write_config("llama-2-7b", tmp_path / "golden", form="json")
    (tmp_path / "port").mkdir()
    content, said = STRANGE[wrote]
    (tmp_path / "port" / "full_attention.json").write_text(json.dumps({"cos": content}))
    with refuses(ValueError, "golden check:", said):
        golden.check(tmp_path / "golden", tmp_path / "port")


def test_an_empty_file_is_refused(vectors, tmp_path):
    (tmp_path / "full_attention.cos.npy").write_bytes(b"")
    with refuses(ValueError, "golden check:", "cannot be read"):
        golden.check(vectors("llama-2-7b"), tmp_path)
