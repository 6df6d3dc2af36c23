import torch

import posenc
from posenc.bench import setting
from posenc.bench.rows import Goal, Row, choose


def find(key, **options):
    [row] = [row for row in choose([], [], None, **options) if row.key == key]
    return row


def test_the_goals_of_the_issue():
    for name in ("alibi", "t5", "kerple", "sandwich", "relative_bias"):
        for dtype in ("float32", "bfloat16"):
            assert find(f"{name}.forward.1024.{dtype}").goal == Goal(of_q=4.0)
            assert find(f"{name}.forward.4096.{dtype}").goal == Goal(ratio=1.3, of_q=4.0)
            assert find(f"{name}.forward.16384.{dtype}").goal == Goal(ratio=1.3, of_q=4.0)
            assert find(f"{name}.decode.16384.{dtype}").goal == Goal(ratio=1.1)
    for name in ("t5", "kerple"):
        assert find(f"{name}.train.4096.float32").goal == Goal(ratio=1.5, of_dense=0.2)
        assert find(f"{name}.train.4096.bfloat16").goal == Goal(ratio=1.65, of_dense=0.2)
    forwards = {"shaw": 2.0, "transformer_xl": 2.3, "fire": 3.5, "fox": 1.4, "deberta": 3.0, "tupe": 2.1}
    assert {name: find(f"{name}.forward.4096.float32").goal.ratio for name in forwards} == forwards
    assert {find(f"{name}.train.4096.float32").goal.ratio for name in list(forwards)[:5]} == {3.0}
    assert find("alibi.lanes.16384.bfloat16").goal.ratio == 1.25
    assert find("t5.bidirectional.4096.float32").goal.ratio == 1.1
    assert find("t5.documents.16384.float32").goal.ratio == 1.0
    assert find("rope.decode.16384.float32").rotated
    assert find("t5.growth.65536.float32", full=True).goal == Goal(ratio=1.3, of_q=4.0, total_mib=4096.0)
    assert find("alibi.gpu_lanes.65536.bfloat16").goal.ratio == 1.2


def test_names_are_unique_and_found():
    keys = [row.key for row in choose([], [], None, full=True)]
    assert len(set(keys)) == len(keys)
    assert {row.encoding for row in choose([], [], None, full=True)} <= set(posenc.names())


def test_options_choose():
    assert {row.name for row in choose([], [], "kerple")} == {f"kerple.{m}" for m in
        ("forward", "bidirectional", "train", "decode")}  # fmt: skip
    assert [row.key for row in choose([], [], "t5.f*.4096.float32")] == ["t5.forward.4096.float32"]
    assert choose([], [], "t5.f*32") != choose([], [], "t5.f*16")
    assert choose([], [], "no such row") == []
    picked = choose([512, 64], ["float16"], "t5.forward")
    assert [row.key for row in picked] == ["t5.forward.512.float16", "t5.forward.64.float16"]
    assert {row.goal.ratio for row in picked} == {None}  # goals were set for long sequences


def test_quick_is_small_and_reaches_nothing():
    rows = choose([], [], None, full=True, quick=True)
    assert {(row.rounds, row.goal, row.dtype) for row in rows} == {(2, Goal(), "float32")}
    assert {row.length for row in rows} == {64, 256}
    assert {row.length for row in choose([32], [], "t5.forward", quick=True)} == {32}
    assert not any(row.growth for row in choose([], [], None))


def test_a_row_knows_its_sizes():
    row = Row("x", "t5", Goal(), length=4096)
    assert row.q_bytes == 8 * 2**20
    assert row.small().length == 512
    assert Row("x", "t5", Goal(), length=4096, batch=16).q_bytes == 16 * row.q_bytes
    assert Row("x", "t5", Goal(), length=100, mode="decode", dtype="bfloat16").q_bytes == 8 * 64 * 2


def test_a_model_that_was_cast_has_tables_in_half_precision():
    for name, dtype in (("tupe.cast", torch.bfloat16), ("tupe.forward", torch.float32)):
        [row] = choose([64], ["bfloat16"], name)
        made = setting.prepare(row)
        assert {p.dtype for p in made.encoding.parameters()} == {dtype}
        assert made.q.dtype == torch.bfloat16


def test_rows_of_many_items_have_as_many():
    for name, batch in (("tupe.batch", 16), ("tupe.forward", 1)):
        [row] = choose([64], ["float32"], name)
        made = setting.prepare(row)
        assert [len(t) for t in (made.q, made.k, made.v)] == [batch] * 3
