import posenc
from posenc.bench.report import KINDS
from posenc.bench.rows import ROWS, choose


def test_goals_are_those_that_were_set():
    """The figures of the issue that set them: time to plain SDPA, memory in sizes of q, time to a copy."""
    found = {row.key: {(g.what, g.limit) for g in row.goals} for of in ("attend", "rotary") for row in choose(of)}
    for name in ("alibi", "t5", "kerple", "relative_bias"):
        assert found[f"{name}.forward.1024.float32"] == set()
        for length in (4096, 16384):
            assert found[f"{name}.forward.{length}.float32"] == {("time", 1.35), ("memory", 4.0)}
        assert found[f"{name}.train.4096.float32"] == {("time", 1.7)}
    for name in ("shaw", "transformer_xl", "fire", "deberta"):
        assert ("time", 3.5) in found[f"{name}.forward.4096.float32"]
    for name in ("t5", "alibi"):
        assert found[f"{name}.compiled.4096.float32"] == {("time", 1.3)}
    assert found["long.half.4096.float32"] == {("time", 1.4), ("time", 3.0)}
    assert found["hf.bloom.2048.float32"] == {("time", 0.51)}  # nine tenths of 2.2 times as fast


def test_the_table_names_what_there_is():
    names = [(command, row.name) for command, row, _ in ROWS]
    assert len({*names}) == len(names)
    for _, row, _ in ROWS:
        assert {*row.candidates} <= {*KINDS[row.kind].candidates}
        assert all({*goal.of} <= {*row.ours} for goal in row.goals)
        assert row.options.get("encoding", "t5") in posenc.names()


def test_a_page_is_measured_in_twenty_minutes():
    """At half a minute a row at most."""
    assert len([row for row in choose("attend") if row.device == "cpu"]) <= 60


def test_options_choose():
    assert {row.name for row in choose("attend", only="kerple")} == {
        f"kerple.{m}" for m in ("forward", "train", "decode")
    }
    assert [row.key for row in choose("attend", only="t5.f*.4096.float32")] == ["t5.forward.4096.float32"]
    assert choose("attend", only="no such row") == []
    picked = choose("attend", [512, 64], ["float16"], "t5.forward")
    assert [row.key for row in picked] == ["t5.forward.512.float16", "t5.forward.64.float16"]
    assert all(row.goals == () for row in picked)  # goals were set for long sequences
    assert {row.length for row in choose("rotary", [128], only="decode")} == {1}


def test_peers_that_form_all_scores_end_where_memory_does():
    assert "dense" in choose("attend", only="t5.forward.4096.float32")[0].candidates
    assert choose("attend", only="t5.forward.16384")[0].candidates == ("plain", "attend:auto")


def test_quick_is_small_and_has_no_goals():
    found = choose("attend", quick=True)
    assert {(row.rounds, row.goals, row.dtype, row.length) for row in found} == {(2, (), "float32", 256)}
    assert not any("compiled" in name for row in found for name in row.candidates)
    assert {row.length for row in choose("attend", [32], only="t5.forward", quick=True)} == {32}


def test_rows_of_a_gpu_are_left_out_where_there_is_none(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not [row for row in choose("attend") if row.device == "cuda"]
    assert {row.device for row in choose("attend", only="gpu")} == {"cuda"}  # named, they say why
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert len([row for row in choose("attend") if row.device == "cuda"]) == 8
