"""Golden vectors: read back without the code that wrote them, and held against the definitions."""

import hashlib
import importlib
import inspect
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import posenc
from posenc import definitions, golden
from posenc.defined import of_text
from strategies import refuses

POSITIONS = {"pos", "q_pos", "k_pos"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("golden") / "new"
    golden.write(out)
    return out


@pytest.fixture(scope="module")
def manifest(written):
    return json.loads((written / "manifest.json").read_text("utf-8"))


def entry(manifest, name):
    (found,) = [one for one in manifest["encodings"] if one["encoding"] == name]
    return found


def test_every_registered_encoding_is_there(written, manifest):
    assert [one["encoding"] for one in manifest["encodings"]] == posenc.names()
    assert {path.name for path in written.iterdir()} == {"manifest.json", *(f"{n}.safetensors" for n in posenc.names())}
    assert (manifest["schema"], manifest["posenc"]) == (1, posenc.__version__)


@pytest.mark.parametrize("name", posenc.names())
def test_the_manifest_says_what_is_in_the_file(written, manifest, name):
    found, card = entry(manifest, name), posenc.card(name)
    assert hashlib.sha256((written / found["file"]).read_bytes()).hexdigest() == found["sha256"]
    assert (found["family"], found["formula"]) == (card.family, card.formula)
    assert len(found["cases"]) == 1 + len(card.variants)
    tensors, reported = load_file(written / found["file"]), {}
    for case in found["cases"]:
        assert case["law"]
        for one in case["tensors"]:
            reported[one["name"]] = (tuple(one["shape"]), one["dtype"])
            assert one["meaning"]
            assert one["name"].split(".")[:2] == [str(case["case"]), one["role"]]
        roles = {one["role"] for one in case["tensors"]}
        assert (
            {"input", "definition", "implementation"} <= roles <= {"input", "parameter", "definition", "implementation"}
        )
        for key, at in case["positions"].items():
            assert tensors[f"{case['case']}.input.{key}"].tolist() == at
    assert reported == {key: (t.shape, str(t.dtype)) for key, t in tensors.items()}
    assert all(np.isfinite(t).all() for t in tensors.values())


def of_case(written, manifest, name, case):
    tensors = load_file(written / entry(manifest, name)["file"])
    groups = {"input": {}, "parameter": {}, "definition": {}, "implementation": {}}
    for key, t in tensors.items():
        number, role, rest = key.split(".", 2)
        if int(number) == case["case"]:
            groups[role][rest] = t
    return groups


def arguments(define, case, parameters):
    """The definition's options as a port would read them from the manifest."""
    named = {key: p for key, p in inspect.signature(define).parameters.items() if p.kind is p.KEYWORD_ONLY}
    given = {key: value for key, value in case["options"].items() if key in named and not isinstance(value, dict)}
    for key in ("inv_freq", "distances", "short_factors", "long_factors", "viewmats", "intrinsics"):
        if given.get(key) is not None:
            given[key] = np.array(given[key])
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return given | {key: t for key, t in parameters.items() if key in named}


def values_again(define, case, given, inputs):
    """What the last two of the definition's matrices make of values and of their mixtures."""
    given = given | {"head_dim": inputs["v"].shape[-1]}
    of_v, of_out = (
        [define(float(p) if case["n_axes"] == 1 else p.astype(float), **given)[side] for p in inputs[key]]
        for key, side in (("k_pos", -2), ("q_pos", -1))
    )
    rotated, out = np.zeros_like(inputs["v"]), inputs["weights"] @ np.zeros_like(inputs["v"])
    for j, matrix in enumerate(of_v):
        rotated[0, j] = matrix @ inputs["v"][0, j]
    for i, matrix in enumerate(of_out):
        for h in range(len(out)):
            out[h, i] = matrix @ (inputs["weights"][h, i] @ rotated[0])
    return {"rotated_v": rotated, "out": out}


def again(found, case, groups):
    """The definition's outputs once more, from what was read alone."""
    module, _, function = found["definition"].rpartition(".")
    define = getattr(importlib.import_module(module), function)
    given, inputs = arguments(define, case, groups["parameter"]), groups["input"]
    family, name, scale = found["family"], found["encoding"], case["score_scale"]
    if family == "additive":
        code = define(inputs["pos"], **given)
        return {"code": code, "embedded": inputs["x"] + code}
    if family == "embedded":
        return {"embedded": define(inputs["x"], inputs["pos"], **given)}
    of_values = values_again(define, case, given, inputs) if "v" in inputs else {}
    if family == "values":
        return of_values
    q, k, q_pos, k_pos = (inputs[key] for key in ("q", "k", "q_pos", "k_pos"))
    wide = np.repeat(k, len(q) // len(k), axis=0)
    if family == "rotary":
        given["head_dim"] = q.shape[-1]
        if name == "pope":
            return {"scores": scale * define(q, k, q_pos, k_pos, **given)}
        whole = define(inputs["x"], q_pos, **given) if "x" in inputs else None
        turned = []
        for side, (x, at) in enumerate(((q, q_pos), (k, k_pos))):
            turned.append(np.zeros_like(x))
            for i, p in enumerate(at):
                point = float(p) if case["n_axes"] == 1 else p.astype(float)
                matrix = define(point, **given)[side] if whole is None else whole[side][i]
                for h in range(len(x)):
                    own = matrix[h * len(matrix) // len(x)] if matrix.ndim == 3 else matrix
                    turned[-1][h, i] = own @ x[h, i]
        wide = np.repeat(turned[1], len(q) // len(k), axis=0)
        scores = scale * np.einsum("hid,hjd->hij", turned[0], wide)
        return {"rotated_q": turned[0], "rotated_k": turned[1], "scores": scores} | of_values
    if family == "piecewise":
        return {"scores": define(q, k, q_pos, k_pos, **given)}
    if family == "none":
        return {"scores": define(q, k)}
    if family == "score_map":
        parts = {"x": inputs["x"], "pos": q_pos} if "x" in inputs else {"q": q, "k": k}
        if name == "dape":
            inner = definitions.find(case["options"]["encoding"])
            own = {key.removeprefix("encoding."): t for key, t in groups["parameter"].items() if "encoding." in key}
            parts = {"bias": inner(q_pos, k_pos, n_heads=case["options"]["n_heads"], **own)}
        seen = define(inputs["scores"], **parts, allowed=inputs["allowed"], **given)
        return {"scores": np.where(inputs["allowed"], seen, 0.0)}
    if "x" in inputs:
        bias = define(*of_text(define, inputs["x"], q_pos), **given)
    else:
        bias = define(*((q_pos, k_pos) if family == "bias" else (q, k, q_pos, k_pos)), **given)
    products = np.einsum("hid,hjd->hij", q, wide)
    return {"bias": np.broadcast_to(bias, products.shape), "scores": scale * products + bias}


@pytest.mark.parametrize("name", posenc.names())
def test_outputs_follow_from_what_was_read(written, manifest, name):
    found = entry(manifest, name)
    for case in found["cases"]:
        groups = of_case(written, manifest, name, case)
        wanted = again(found, case, groups)
        assert set(wanted) == set(groups["definition"]) == set(groups["implementation"])
        for key, value in wanted.items():
            size = max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(groups["definition"][key], value, rtol=0, atol=1e-12 * size)
            tolerance = manifest["tolerance"] * size
            np.testing.assert_allclose(groups["implementation"][key], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", posenc.names())
def test_inputs_are_exact_in_every_dtype_from_bfloat16_on(written, manifest, name):
    import torch

    for key, t in load_file(written / entry(manifest, name)["file"]).items():
        if ".input." in key and t.dtype == np.float64:
            assert torch.equal(torch.from_numpy(t).bfloat16().double(), torch.from_numpy(t))


def test_numbers_by_hand(written, manifest):
    groups = of_case(written, manifest, "rope", entry(manifest, "rope")["cases"][0])
    q, turned = groups["input"]["q"], groups["definition"]["rotated_q"]
    at, half = groups["input"]["q_pos"].tolist(), q.shape[-1] // 2
    i, pair = at.index(7), 1
    angle = 7 * 10000.0 ** (-pair / half)
    x, y = q[0, i, pair], q[0, i, pair + half]
    assert turned[0, i, pair] == pytest.approx(x * np.cos(angle) - y * np.sin(angle), abs=1e-14)
    alibi = of_case(written, manifest, "alibi", entry(manifest, "alibi")["cases"][0])
    assert alibi["definition"]["bias"][0, 5, 0] == -11 / 4  # the first of four slopes is 1/4
    code = of_case(written, manifest, "sinusoidal", entry(manifest, "sinusoidal")["cases"][0])["definition"]["code"]
    assert code[1, :2].tolist() == [np.sin(1.0), np.cos(1.0)]


def test_the_same_bytes_again_and_what_was_there_is_replaced(written, tmp_path):
    first = {path.name: path.read_bytes() for path in written.iterdir()}
    golden.write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    manifest = json.loads(first["manifest.json"])
    manifest["encodings"].append({"file": "gone.safetensors"})
    manifest["encodings"].append({"file": "../outside.safetensors"})
    (tmp_path.parent / "outside.safetensors").write_bytes(b"")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "gone.safetensors").write_bytes(b"")
    (tmp_path / "mine.txt").write_text("mine")
    golden.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*first, "mine.txt"}
    assert (tmp_path.parent / "outside.safetensors").exists()


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"made_by": "another", "encodings": []}', "{"])
def test_what_is_not_ours_is_not_touched(tmp_path, text):
    (tmp_path / "thesis.tex").write_text("years")
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with refuses(ValueError, "golden: --out must be new, empty, or an output of `posenc golden`", "Name another"):
        golden.write(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years"
    with refuses(ValueError, "must be a directory"):
        golden.write(tmp_path / "thesis.tex")


def test_an_implementation_that_is_off_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(posenc.ALiBi, "at", lambda self, h, q, k: 0.0 * (h + q + k))
    with pytest.raises(RuntimeError, match="bias of alibi must match its definition"):
        golden.write(tmp_path / "new")
    assert not (tmp_path / "new").exists()
