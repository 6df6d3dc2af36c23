"""The shelf of models and the trained models of a study, as the explorer shows them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

import posenc
from posenc.config.known import known_models
from posenc.explorer import models, shelf, studies, views
from posenc.explorer.frames import Frame, encode
from posenc.measure import attention_by_distance
from posenc.study import cell
from posenc.study.config import Cell, Config
from posenc.study.subjects import Reading
from posenc.study.text import Text

SYMBOLS = b" abcdefgh.\n"
CONFIG = Config(encodings=("rope", "alibi"), train_len=8, test_lens=(8, 16), seeds=(0, 1), sizes=("16x2x2",))


def ask(view: str, **query: object) -> Any:
    return views.answer(view, {key: str(value) for key, value in query.items()})


def series(frame: Frame, label: str, group: str) -> np.ndarray:
    (found,) = (s for s in frame.header["series"] if (s["label"], s["group"]) == (label, group))
    return frame.arrays[found["array"]]


def run(code: str) -> Any:
    room: dict[str, Any] = {}
    exec(code, room)
    return room["values"]


def test_the_shelf_holds_at_least_25_models() -> None:
    assert len(known_models()) >= 25


@pytest.mark.parametrize("name", known_models())
def test_every_model_of_the_shelf_is_shown(name: str) -> None:
    shown = models.open_shown(name)
    for layer in sorted({shown.layers.index(place) for place in shown.layers}):
        frame = ask("model", model=name, layer=layer)
        encode(frame)
        assert json.dumps(frame.header["facts"])
        offered = run(frame.header["code"]["python"])
        if frame.header["pairs"] is None:
            assert offered["kind"] == frame.header["layers"][layer]["kind"]
            assert (frame.header["facts"]["encoding"], frame.header["series"]) == ("nope", [])
            continue
        counts = [frame.header["pairs"][fate] for fate in ("kept", "blended", "divided")]
        assert sum(counts) == frame.header["facts"]["rotary_dim"] // 2
        np.testing.assert_allclose(offered, series(frame, "after", "wavelength"), rtol=1e-12)
        fates = series(frame, "fate", "fate")
        assert [(fates == i).sum() for i in range(3)] == counts
        np.testing.assert_allclose(
            run(frame.header["code"]["python"]), series(frame, "after", "wavelength"), rtol=1e-12
        )
        assert frame.header["code"]["command"] == f"posenc inspect {name}"


def test_layers_of_real_models_in_order() -> None:
    gemma = [layer["does"] for layer in ask("model", model="gemma-3-27b").header["layers"]]
    assert len(gemma) == 62
    assert [i for i, does in enumerate(gemma) if does.startswith("full")] == list(range(5, 62, 6))
    assert gemma[0] == "sliding of 1,024, RoPE base 10,000"
    assert gemma[5] == "full, RoPE base 1,000,000, linear"
    smol = ask("model", model="smollm3-3b").header
    assert [layer["index"] for layer in smol["layers"] if layer["encoding"] == "nope"] == list(range(3, 36, 4))
    llama4 = [layer["does"] for layer in ask("model", model="llama-4-maverick").header["layers"]]
    assert llama4[:4] == ["chunks of 8,192, RoPE base 500,000"] * 3 + ["NoPE"]
    oss = [layer["kind"] for layer in ask("model", model="gpt-oss-20b").header["layers"]]
    assert oss == ["sliding_attention", "full_attention"] * 12


def test_llama_before_and_after_its_extension() -> None:
    frame = ask("model", model="llama-3.1-8b", layer=31)
    before, after = (series(frame, label, "wavelength") for label in ("before", "after"))
    k = np.arange(64)
    np.testing.assert_allclose(before, 2 * math.pi * 5e5 ** (2 * k / 128), rtol=1e-12)
    # pairs of a wavelength below 2,048 stay, those beyond 8,192 are slowed by 8
    np.testing.assert_allclose((after / before)[before < 2048], 1, rtol=1e-12)
    np.testing.assert_allclose((after / before)[before > 8192], 8, rtol=1e-12)
    assert frame.header["pairs"] == {"kept": 29, "blended": 6, "divided": 29, "never_full_turn": 29}
    assert [(line["label"], line["y"]) for line in frame.header["lines"]] == [
        ("trained 8,192", 8192),
        ("reaches 131,072", 131072),
    ]
    np.testing.assert_allclose(series(frame, "in training", "turns"), 8192 / before)


def test_a_method_can_be_tried_on_a_model() -> None:
    frame = ask("model", model="llama-2-7b", method="linear", target=8192)
    before, after = (series(frame, label, "wavelength") for label in ("before", "after"))
    np.testing.assert_allclose(after, 2 * before, rtol=1e-12)
    assert frame.header["pairs"]["divided"] == 64
    np.testing.assert_allclose(run(frame.header["code"]["python"]), after)
    assert ask("model", model="llama-2-7b", method="yarn").header["lines"][1]["y"] == 4 * 4096


def test_a_model_that_was_read_from_a_file_is_shown_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "gemma2", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "head_dim": 4}
    config |= {"max_position_embeddings": 64, "sliding_window": 16}
    found = posenc.inspection.inspect(config)
    key = shelf.keep({"title": "mine", "inspection": found, "config": config, "tensors": None})
    header = (shown := ask("model", model=key)).header
    assert header["subject"] == "mine"
    assert [layer["kind"] for layer in header["layers"]] == [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    assert header["code"]["command"] == "posenc inspect config.json"
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(run(shown.header["code"]["python"]), series(shown, "after", "wavelength"))
    bare = shelf.keep({"title": "weights", "inspection": {"layers": [], "warnings": []}, "config": None})
    with pytest.raises(ValueError, match=r"weights came without a config.json"):
        ask("model", model=bare)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"model": "gpt-17"}, "there is no model 'gpt-17'. Known"),
        ({"model": "file-0000"}, "Drop its file again"),
        ({"model": "../../etc/passwd"}, "there is no model"),
        ({"model": "x" * 65}, "model must have at most 64 characters"),
        ({"layer": "32"}, "layer must be from 0 to 31"),
        ({"layer": "-1"}, "layer must be from 0 to 9,999"),
        ({"method": "magic"}, "method must be one of own, none"),
        ({"method": "ntk", "target": "100"}, "target_len must be at least original_max_len=8192"),
    ],
)
def test_models_that_are_not_there(query: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        views.answer("model", query)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Path]:
    """A study's directory with models as they begin, but for rope's, whose weights are larger."""
    subject = Reading(CONFIG, Text("", SYMBOLS * 9, ""))
    for one in CONFIG.cells():
        model = cell.build(CONFIG, subject, one)
        for parameter in model.parameters():
            parameter.data *= 3
        (tmp_path / "cells" / one.name).mkdir(parents=True)
        save_file(model.state_dict(), tmp_path / "cells" / one.name / "model.safetensors")
    write_run(tmp_path)
    shelf.use_study(tmp_path)
    yield tmp_path
    shelf._study.clear()


def write_run(path: Path, text: dict[str, object] | None = None, **config: object) -> None:
    reported = {"symbols": SYMBOLS.hex()} if text is None else text
    run = {"schema": 2, "config": CONFIG.as_dict() | {"steps": 1} | config, "text": reported}
    (path / "run.json").write_text(json.dumps(run))


def test_a_head_is_shown_as_the_model_computes_it(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = ask("attention", cell="rope-text-16x2x2-s1", text="abc.\ndé", layer=1, head=1)
    weights = frame.arrays[0]
    assert weights.shape == (6, 6)  # é is left out
    assert any("none of them: é" in note for note in frame.header["notes"])
    assert frame.header["tokens"] == ["a", "b", "c", ".", "↵", "d"]
    assert np.isnan(weights[np.triu_indices(6, 1)]).all()
    np.testing.assert_allclose(np.nansum(weights, 1), 1, rtol=1e-12)
    monkeypatch.chdir(study)
    np.testing.assert_allclose(np.tril(run(frame.header["code"]["python"])), np.nan_to_num(weights), atol=1e-12)
    assert [c["cell"] for c in frame.header["cells"]] == [
        "rope-text-16x2x2-s0",
        "alibi-text-16x2x2-s0",
        "rope-text-16x2x2-s1",
        "alibi-text-16x2x2-s1",
    ]


def test_heads_by_distance_and_encodings_side_by_side(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study)
    maps = np.stack(
        [np.nan_to_num(ask("attention", cell="alibi-text-16x2x2-s0", text="abcabc", head=h).arrays[0]) for h in (0, 1)]
    )
    frame = ask("attention", cell="alibi-text-16x2x2-s0", text="abcabc", draw="distance")
    curves = [frame.arrays[s["array"]] for s in frame.header["series"]]
    np.testing.assert_allclose(curves, attention_by_distance(maps), atol=1e-12)
    np.testing.assert_allclose(run(frame.header["code"]["python"]), curves, atol=1e-12)
    frame = ask("attention", cell="alibi-text-16x2x2-s0", text="abcabc", draw="encodings")
    assert [s["label"] for s in frame.header["series"]] == ["rope", "alibi"]
    np.testing.assert_allclose(frame.arrays[frame.header["series"][1]["array"]], np.mean(curves, 0), atol=1e-12)
    frame = ask("attention", cell="alibi-text-16x2x2-s0", draw="profile")
    found = run(frame.header["code"]["python"])
    np.testing.assert_allclose([frame.arrays[s["low"]] for s in frame.header["series"]], found.low)
    assert any("64 draws" in note for note in frame.header["notes"])


@pytest.mark.parametrize("draw", ["encodings", "profiles"])
def test_all_encodings_of_one_seed_beside_each_other(study: Path, monkeypatch: pytest.MonkeyPatch, draw: str) -> None:
    monkeypatch.chdir(study)
    frames = [
        ask("attention", cell=f"{name}-text-16x2x2-s1", text="abcabc", draw=draw, layer=1) for name in ("rope", "alibi")
    ]
    assert [s["label"] for s in frames[0].header["series"]] == ["rope", "alibi"]
    for i, frame in enumerate(frames):
        curves = [frame.arrays[s["array"]] for s in frame.header["series"]]
        np.testing.assert_allclose(curves, [frames[0].arrays[s["array"]] for s in frames[0].header["series"]])
        np.testing.assert_allclose(run(frame.header["code"]["python"]), curves[i], atol=1e-12)
    if draw == "profiles":  # two heads of ALiBi have the slopes 1/16 and 1/256
        np.testing.assert_allclose(np.diff(curves[1]), -(1 / 16 + 1 / 256) / 2, atol=1e-12)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"cell": "t5-text-16x2x2-s0"}, "no finished cell 't5-text-16x2x2-s0'. Known: rope-text-16x2x2-s0"),
        ({"cell": "../../cells/rope-text-16x2x2-s0"}, "no finished cell"),
        ({"text": "é"}, "text must have characters that occur in the study's training text"),
        ({"text": ""}, "text must have characters"),
        ({"text": "a" * 2049}, "text must have at most 2048 characters"),
        ({"layer": "2"}, "layer must be from 0 to 1"),
        ({"head": "2"}, "head must be from 0 to 1"),
        ({"draw": "film"}, "draw must be one of map"),
    ],
)
def test_bad_questions_about_a_study(study: Path, query: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        views.answer("attention", {"text": "abc", **query})


@pytest.mark.parametrize(
    ("config", "text", "said"),
    [
        ({"sizes": ["1000000x2x2"]}, None, "at most 4096x64x256; got '1000000x2x2'"),
        ({"sizes": [64]}, None, "must list sizes"),
        ({"train_len": True}, None, "train_len in run.json must be from 1 to 65536; got True"),
        ({"encodings": "rope"}, None, "must list encodings"),
        ({"seeds": [0.5]}, None, "must list seeds"),
        ({"test_lens": [10**9]}, None, "test_lens in run.json must be at most 65,536"),
        ({}, {}, "has no symbols, the bytes that token ids stand for"),
        ({}, {"symbols": "zz"}, "must be hexadecimal; got 'zz'"),
        ({}, {"symbols": "6162"}, "they have 11 tokens, and the text has 2"),
        ({"sizes": ["32x2x2"]}, None, "no finished cell"),
        ({"encodings": ["t5"]}, None, "no finished cell of the task text"),
    ],
)
def test_a_record_that_lies_is_refused(
    study: Path, config: dict[str, object], text: dict[str, object] | None, said: str
) -> None:
    write_run(study, text, **config)
    with pytest.raises(ValueError, match=said):
        ask("attention", text="abc")


def test_weights_of_another_size_are_refused(study: Path) -> None:
    write_run(study, sizes=["32x2x2"])
    (study / "cells" / "rope-text-16x2x2-s0").rename(study / "cells" / "rope-text-32x2x2-s0")
    with pytest.raises(ValueError, match="weights of rope-text-32x2x2-s0 do not fit the study"):
        ask("attention", text="abc")


def test_a_directory_may_name_no_class(study: Path) -> None:
    name = "os:PathLike"
    (study / "cells" / "rope-text-16x2x2-s0").rename(study / "cells" / Cell(name, "text", "16x2x2", 0).name)
    write_run(study, encodings=[name])
    with pytest.raises(ValueError, match="which a directory may not name"):
        ask("attention", text="abc")


@pytest.mark.parametrize("record", ["", "[]", '{"schema": 1}', "[" * 100_000])
def test_a_record_that_cannot_be_read_is_refused(study: Path, record: str) -> None:
    (study / "run.json").write_text(record)
    with pytest.raises(ValueError, match=r"run.json"):
        studies.open_study()


def test_without_a_study_there_is_no_attention() -> None:
    with pytest.raises(ValueError, match="no study is open"):
        ask("attention")
