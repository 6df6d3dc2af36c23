import posenc
from posenc.bench import attend, rotary
from posenc.bench.rows import Goal, choose


def rows(*given, of=attend, **options):
    return choose(of.templates(), *given, **options)


def test_goals_are_those_that_were_set():
    """The figures of the issue that set them: time to plain SDPA, memory in sizes of q, time to a copy."""
    found = {
        row.key: {(g.what, g.limit) for g in row.goals} for of in (attend, rotary) for row in rows(of=of, full=True)
    }
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


def test_names_are_unique_and_goals_are_for_candidates():
    for of in (attend, rotary):
        found = rows(of=of, full=True)
        assert len({row.key for row in found}) == len(found)
        for row in found:
            for goal in row.goals:
                assert {*goal.ours} <= {*row.candidates}
    assert {row.options["encoding"] for row in rows(full=True) if row.kind == "attend"} <= {*posenc.names()}


def test_options_choose():
    assert {row.name for row in rows([], [], "kerple")} == {f"kerple.{m}" for m in ("forward", "train", "decode")}
    assert [row.key for row in rows([], [], "t5.f*.4096.float32")] == ["t5.forward.4096.float32"]
    assert rows([], [], "no such row") == []
    picked = rows([512, 64], ["float16"], "t5.forward")
    assert [row.key for row in picked] == ["t5.forward.512.float16", "t5.forward.64.float16"]
    assert all(row.goals == () for row in picked)  # goals were set for long sequences
    assert {row.length for row in rows([128], [], "decode", of=rotary)} == {1}


def test_peers_that_form_all_scores_wait_for_full():
    [long] = rows([], ["float32"], "t5.forward.16384")
    assert long.candidates == ("plain", "attend:auto")
    [long] = rows([], ["float32"], "t5.forward.16384", full=True)
    assert "dense" in long.candidates


def test_quick_is_small_and_has_no_goals():
    found = rows(full=True, quick=256)
    assert {(row.rounds, row.goals, row.dtype, row.length) for row in found} == {(2, (), "float32", 256)}
    assert not any("compiled" in name for row in found for name in row.candidates)
    assert {row.length for row in rows([32], [], "t5.forward", quick=256)} == {32}
    assert Goal(("a",), 1.0).what == "time"
