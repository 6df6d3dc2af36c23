"""The explorer's views: their numbers compared with NumPy and with the code that they offer, headers, refusals."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch

import posenc
from posenc import cli
from posenc.explorer import views
from posenc.explorer.frames import Frame, encode

SMALL = {"length": "48", "rows": "20", "columns": "24", "points": "30", "draws": "4", "up_to": "600"}
MORE: dict[str, list[dict[str, str]]] = {
    "heat": [{"unit": "pair", "part": part} for part in ("cos", "sin", "angle")],
    "bias": [{"ahead": "true"}, {"draw": "matrix"}],
    "points": [{"lanes": "pca3"}],
    "similarity": [{"cosine": "true"}],
}


def ask(view: str, **query: object) -> Any:
    return views.answer(view, {key.replace("__", "."): str(value) for key, value in query.items()})


def shown(frame: Frame) -> np.ndarray:
    """Return the numbers that are drawn; (series, n) for curves."""
    if frame.header["kind"] == "matrix":
        return frame.arrays[frame.header["matrix"]["array"]]
    if frame.header["kind"] == "points":
        (one,) = frame.header["series"]
        return np.stack([frame.arrays[one[key]] for key in ("x", "array", "z") if key in one], -1)
    return np.stack([frame.arrays[one["array"]] for one in frame.header["series"]])


def run(code: str) -> dict[str, Any]:
    """Run code and return its names."""
    room: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        exec(code, room)
    return room


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", posenc.names())
def test_the_offered_code_computes_the_numbers_shown(name: str) -> None:
    frames, refusals = [], []
    for view in (view for view in views.VIEWS.values() if view.refuses is not None):
        query = {"a": name} | {c.name: SMALL[c.name] for c in view.controls if c.name in SMALL}
        for more in ({}, *MORE.get(view.id, ())):
            try:
                frames.append((view.id, view.answer(query | more)))
            except ValueError as error:
                refusals.append(str(error))
    for view_id, frame in frames:
        assert frame.header["view"] == view_id
        _compare(frame, run(frame.header["code"]["python"]))
        _check_header(frame)
    assert frames
    assert all(re.fullmatch("explore: [^\n]+", message) for message in refusals)


def _compare(frame: Frame, room: dict[str, Any]) -> None:
    view = frame.header["view"]
    if view == "precision":
        assert room["collisions"] == frame.header["collisions"]
        if not frame.header["series"]:
            return
    values, got = shown(frame), room["values"]
    if view == "profile":
        for one, mean, low, high in zip(frame.header["series"], got.mean, got.low, got.high, strict=False):
            for key, curve in (("array", mean), ("low", low), ("high", high)):
                np.testing.assert_allclose(frame.arrays[one[key]], curve, rtol=1e-12, atol=1e-12)
        return
    if view == "wavelengths":
        got = np.where(np.isfinite(got), got, np.nan)
    np.testing.assert_allclose(values.ravel(), np.ravel(got)[: values.size], rtol=1e-9, atol=1e-9)


def _check_header(frame: Frame) -> None:
    header = frame.header
    assert header["of"] == "A"
    assert all(note.endswith((".", "!", "?", ")")) for note in header["notes"]), header["notes"]
    assert len(header["arrays"]) == len(frame.arrays)
    assert header["code"]["command"].startswith(("posenc plot ", "posenc explore "))
    for one in header["series"]:
        sizes = {len(frame.arrays[one[key]]) for key in ("x", "array", "low", "high", "z") if key in one}
        assert len(sizes) == 1
    if header["kind"] == "matrix":
        about = header["matrix"]
        rows, columns = (len(frame.arrays[about[axis]]) for axis in ("rows", "columns"))
        assert frame.arrays[about["array"]].shape == (rows, columns)
        assert rows <= int(SMALL["rows"])
        assert columns <= int(SMALL["columns"])
        finite = frame.arrays[0][np.isfinite(frame.arrays[0])]
        assert about["low"] <= finite.min() <= finite.max() <= about["high"]
        assert not about["symmetric"] or about["low"] == -about["high"]
    encode(frame)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "view"),
    [
        *((name, "precision") for name in ("rope", "binary", "fope", "retnet", "xpos")),
        *((name, "wavelengths") for name in ("rope", "dynamic_ntk", "tape")),
        *((name, "bias") for name in ("alibi", "graphormer", "deberta")),
        ("rerope", "distances"),
        ("sinusoidal", "points"),
    ],
)
def test_the_offered_command_can_be_run(
    name: str, view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, command, *rest = shlex.split(ask(view, a=name).header["code"]["command"])
    assert program == "posenc"
    if command == "explore":  # posenc plot has no such figure, or no graph
        assert rest == [name]
        assert name == "graphormer" or cli.run(["plot", name, "--kind", view, "-o", "x.svg"]) == 2
    else:
        assert cli.run([command, *rest]) == 0, capsys.readouterr().err
        assert [path.suffix for path in tmp_path.iterdir()] == [".svg"]


def test_heat_of_sinusoids_and_of_a_rotation() -> None:
    frame = ask("heat", a="sinusoidal", a__d_model=6, length=5)
    angle = np.arange(5)[:, None] * 1e4 ** (-2 * np.arange(3) / 6)
    np.testing.assert_allclose(shown(frame)[:, 0::2], np.sin(angle), atol=1e-12)
    np.testing.assert_allclose(shown(frame)[:, 1::2], np.cos(angle), atol=1e-12)
    frame = ask("heat", a="rope", a__head_dim=6, a__base=100, a__rotary_dim=4, length=5)
    angle = np.arange(5)[:, None] * np.array([1.0, 0.1])
    np.testing.assert_allclose(shown(frame), np.hstack((np.cos(angle), np.sin(angle), np.zeros((5, 2)))), atol=1e-12)
    frame = ask("heat", a="rope", a__head_dim=4, length=9, unit="pair", part="angle")
    np.testing.assert_allclose(shown(frame)[:, 0], np.angle(np.exp(1j * np.arange(9))), atol=1e-12)


def test_rows_and_columns_are_chosen_and_not_averaged() -> None:
    frame = ask("heat", a="rope", a__head_dim=128, length=4096, rows=3, columns=2)
    rows, columns = frame.arrays[1], frame.arrays[2]
    assert rows.tolist() == [0, 2048, 4095]
    assert columns.tolist() == [0, 127]
    slowest = 1e4 ** (-126 / 128)
    np.testing.assert_allclose(shown(frame)[:, 0], np.cos(rows), atol=1e-9)
    np.testing.assert_allclose(shown(frame)[:, 1], np.sin(rows * slowest), atol=1e-9)
    assert frame.header["matrix"]["original_shape"] == [4096, 128]
    assert any("3 of 4,096 rows" in note for note in frame.header["notes"])


def test_wavelengths_profile_and_bias_by_hand() -> None:
    frame = ask("wavelengths", a="rope", a__head_dim=8, length=100)
    np.testing.assert_allclose(shown(frame)[0], 2 * math.pi * 1e4 ** (np.arange(4) / 4), rtol=1e-12)
    assert "2 of 4 pairs make no full rotation within 100 positions." in frame.header["notes"]  # 628 and 6,283
    frame = ask("bias", a="alibi", a__n_heads=2, length=4)
    np.testing.assert_allclose(shown(frame), [-np.arange(4) / 16, -np.arange(4) / 256], atol=1e-15)
    frame = ask("bias", a="alibi", a__n_heads=2, length=4, draw="matrix", head=1)
    np.testing.assert_allclose(shown(frame), -np.abs(np.subtract.outer(range(4), range(4))) / 256, atol=1e-15)
    frame = ask("profile", a="nope", length=3)
    assert np.ptp(shown(frame)) < 1e-12
    assert 7 < shown(frame)[0, 0] < 9  # sqrt(64), since the mean square of q = k is 1


def test_similarity_and_distances_by_hand() -> None:
    bits = np.array([[int(digit) for digit in f"{p:03b}"] for p in range(8)], float)
    frame = ask("similarity", a="binary", a__d_model=3, length=8)
    np.testing.assert_allclose(shown(frame), bits @ bits.T, atol=1e-12)
    frame = ask("distances", a="binary", a__d_model=3, length=8)
    np.testing.assert_allclose(shown(frame)[0], bits @ bits[4], atol=1e-12)
    assert frame.header["middle"] == 4
    frame = ask("distances", a="rerope", a__head_dim=4, a__window=3, length=6)
    apart = np.subtract.outer(range(6), range(6))
    np.testing.assert_allclose(shown(frame), np.sign(apart) * np.minimum(np.abs(apart), 3))


def test_points_and_their_order() -> None:
    frame = ask("points", a="binary", a__d_model=3, length=4, lanes="1,2")
    assert shown(frame).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert frame.arrays[frame.header["along"]].tolist() == [0, 1, 2, 3]
    assert shown(ask("points", a="rope", a__head_dim=8, length=9, lanes="pca3")).shape == (9, 3)


def test_precision_finds_positions_that_collide() -> None:
    frame = ask("precision", a="integer", a__d_model=2, up_to=5000)
    assert frame.header["collisions"] == {
        "float32": None,
        "bfloat16": {"position": 257, "same_as": 256},
        "float16": {"position": 2049, "same_as": 2048},
    }
    frame = ask("precision", a="rope", a__head_dim=64, up_to=100_000)
    curves = {(s["group"], s["label"]): frame.arrays[s["array"]] for s in frame.header["series"]}
    assert np.nanmax(curves["posenc", "float32"]) < 1e-6 < 1e-3 < np.nanmax(curves["formula", "float32"])
    assert np.nanmax(curves["posenc", "bfloat16"]) < 0.01 < 3 < np.nanmax(curves["formula", "bfloat16"])


def test_extension_shows_the_fate_of_each_pair() -> None:
    frame = ask("extension", head_dim=128, base=500000, original=8192, target=65536, methods="llama3,linear")
    llama3, linear = frame.header["methods"]
    assert (llama3["kept"], llama3["blended"], llama3["divided"]) == (29, 6, 29)
    assert (linear["divided"], linear["slow"], linear["slow_kept"]) == (64, 29, 0)
    assert [s["group"] for s in frame.header["series"]] == ["factor"] * 2 + ["wavelength"] * 2 + ["fate"] * 2
    np.testing.assert_allclose(shown(frame)[1], 8, rtol=1e-12)
    np.testing.assert_allclose(run(frame.header["code"]["python"])["values"], shown(frame)[:2])
    assert len(ask("extension").header["methods"]) == 8
    frame = ask("extension", methods="llama3,yarn", low_freq_factor=2, beta_fast=8)
    values = run(frame.header["code"]["python"])["values"]
    np.testing.assert_allclose(values, shown(frame)[:2])
    assert not np.allclose(values, shown(ask("extension", methods="llama3,yarn"))[:2])


def test_learned_parameters_depend_on_a_seed_named_in_a_note() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (shown(ask("heat", a="learned", length=9, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert "freshly initialised (seed 1)" in ask("heat", a="learned", seed=1).header["notes"][0]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_table_is_shown_up_to_its_end() -> None:
    frame = ask("heat", a="learned", a__max_len=20, length=4096)
    assert shown(frame).shape[0] == 20
    assert any("has positions 0 to 19" in note for note in frame.header["notes"])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("magic", "there is no view 'magic'"),
        ("heat", "a must name an encoding"),
        ("heat?a=nothing", "unknown encoding 'nothing'"),
        ("heat?a=os:system", "only if it is named on the command line"),
        ("heat?a=rope&length=1000001", "length must be from 1 to 1,000,000"),
        ("heat?a=rope&length=0", "length must be from 1 to"),
        ("heat?a=rope&length=1e3", "length must be a whole number"),
        (f"heat?a=rope&length={'9' * 30}", "length must be a whole number"),
        ("heat?a=rope&length=٣", "length must be a whole number"),
        ("heat?a=rope&rows=4097", "rows must be from 1 to 4,096"),
        ("heat?a=rope&columns=0", "columns must be from 1 to 4,096"),
        ("heat?a=rope&unit=cm", "unit must be one of lane, pair"),
        ("heat?a=rope&head=3", "head must be one of 0..0"),
        ("heat?a=rope&colour=red", "has no option 'colour'"),
        ("heat?a=rope&a.head_dim=4098", "head_dim must be at most 4,096"),
        ("heat?a=rope&a.head_dim=7", "head_dim must be even"),
        ("heat?a=rope&a.base=inf", "base must be a finite number"),
        ("heat?a=rope&a.base=1_0", "base must be a finite number"),
        ("heat?a=rope&a.pairing=third", "pairing must be one of half, interleaved"),
        ("heat?a=rope&a.trainable=perhaps", "trainable must be true or false"),
        ("heat?a=rope&a.inv_freq=__import__('os')", "inv_freq must be a finite number"),
        (f"heat?a=rope&a.inv_freq={'1,' * 5000}", "inv_freq must be 1 to 4096 values"),
        ("heat?a=learned&a.max_len=1000000&a.d_model=4096", "numbers; at most 33,554,432 are shown"),
        ("bias?a=dape&a.encoding=os:system", "named on the command line only"),
        ("bias?a=graphormer&a.distances=1", "set in Python only"),
        ("heat?a=alibi", "neither adds vectors to tokens nor rotates"),
        ("similarity?a=cpvt", "depend on neighbouring tokens"),
        ("bias?a=rope", "adds nothing to the scores"),
        ("bias?a=alibi&draw=matrix&head=4", "head must be from 0 to 3"),
        ("wavelengths?a=binary", "has no wavelengths"),
        ("precision?a=alibi", "no numbers that belong to one position"),
        ("precision?a=rope&up_to=99999999", "up_to must be from 16"),
        ("profile?a=graphormer", "encodes nodes of a graph"),
        ("profile?a=rope&draws=1", "draws must be from 2"),
        ("points?a=rope&lanes=0", "lanes must be two or three"),
        ("points?a=rope&lanes=0,64", "lanes must be two or three of the lanes 0 to 63"),
        ("points?a=rope&lanes=0,1,2,3", "lanes must be 1 to 3 values"),
        ("points?a=rope&length=5000", "length must be from 1 to 4,096"),
        ("extension?methods=magic", "methods must be all or some of"),
        ("extension?methods=", "methods must be 1 to 8 values"),
        ("extension?base=1", "base must be from 1.001"),
        ("extension?head_dim=7", "head_dim must be even"),
        ("extension?target=100", "target_len must be at least original_max_len=4096"),
        ("extension?a=rope", "has no option 'a'"),
        ("heat?a=rope&a.heads=3", "unknown option 'heads'"),
        ("heat?a=rope&a.=3", "unknown option ''"),
    ],
)
def test_invalid_queries_get_a_message_of_one_line(query: str, message: str) -> None:
    view, _, options = query.partition("?")
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        views.answer(view, dict(parse_qsl(options, keep_blank_values=True)))
    assert "\n" not in str(caught.value)


def test_options_are_read_by_their_types() -> None:
    frame = ask("wavelengths", a="rope", a__head_dim=6, a__inv_freq="1, 0.5,0.25", a__rotary_dim="none")
    np.testing.assert_allclose(shown(frame)[0], 2 * math.pi * np.array([1, 2, 4]))
    assert "inv_freq=(1.0, 0.5, 0.25)" in frame.header["code"]["python"]
    frame = ask("bias", a="alibi", a__n_heads=2, a__slopes="0.5,0.25", a__sides="one-sided", length=3, ahead="1")
    np.testing.assert_allclose(shown(frame)[0], [0, 0, 0, -0.5, -1])
    assert "'slopes=(0.5, 0.25)'" in frame.header["code"]["command"]


def test_a_user_class_is_drawn_if_it_is_allowed() -> None:
    name = "posenc.encodings.rope:RoPE"
    with pytest.raises(ValueError, match="named on the command line"):
        ask("heat", a=name)
    views.allow(name)
    np.testing.assert_allclose(shown(ask("heat", a=name, length=9)), shown(ask("heat", a="rope", length=9)))
    with pytest.raises(TypeError, match="not a class derived from"):
        views.allow("os:PathLike")


def test_views_describe_themselves_and_fit_encodings() -> None:
    fitting = {view.id for view in views.VIEWS.values() if view.fits(posenc.card("rope"))}
    assert fitting == {"heat", "points", "wavelengths", "profile", "similarity", "distances", "precision"}
    assert views.VIEWS["bias"].fits(posenc.ALiBi(n_heads=2))
    for view in views.VIEWS.values():
        plain = json.loads(json.dumps(view.as_dict()))
        assert plain["title"]
        assert plain["help"].endswith(".")
        assert all(c["help"].endswith((".", "3")) for c in plain["controls"])
        assert all(c["default"] in c["choices"] for c in plain["controls"] if c["kind"] == "choice")


def test_long_texts_get_fewer_draws_and_a_note() -> None:
    frame = ask("profile", a="cope", length=65_536, points=5)
    assert "Means of 8 draws; the band contains 90 % of them." in frame.header["notes"]
    fewer = "8 of 64 draws were taken: each draw of CoPE needs a whole text of 65,536 tokens"
    assert any(fewer in note for note in frame.header["notes"])
    assert "n_draws=8" in frame.header["code"]["python"]
    _compare(frame, run(frame.header["code"]["python"]))
    assert "Means of 64 draws; the band contains 90 % of them." in ask("profile", a="cope", length=512).header["notes"]
    assert "n_draws=64" in ask("profile", a="rope", length=65_536, points=5).header["code"]["python"]
