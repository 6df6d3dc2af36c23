from dataclasses import replace

import pytest
import torch
from torch import nn

import posenc
from posenc import attention
from posenc.bench import attend, candidates, memory, peers, rows, setting, text, told
from posenc.bench.memory import NotMeasured, Peak
from posenc.bench.rows import Goal, Row

ROW = Row("kerple.forward", "kerple", Goal(ratio=1.3, of_q=4.0), length=32, rounds=2)
NAMED = Row("kerple.named", "kerple", Goal(ratio=1.3), length=32, rounds=2, backends=("reference",), peers=("dense",))


@pytest.fixture
def no_children(monkeypatch):
    """Let no process be started: every peak is 4,096 bytes."""
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: Peak(4096, 2**30))


@pytest.mark.sample(10)
@pytest.mark.parametrize("row", rows.choose([64], ["float32"], None), ids=lambda row: row.name)
def test_every_row_can_be_explained(row):
    found = attend.explain_row(row)
    if row.device == "cuda" and not torch.cuda.is_available():
        assert "no GPU" in found["skipped"]
    elif row.encoding not in posenc.names():
        assert "unknown encoding" in found["skipped"]
    else:
        assert found["skipped"] is None
        assert [v["backend"] for v in found["verdicts"]] == list(attention.BACKENDS)
        assert text.verdict_lines(found)


@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
@pytest.mark.parametrize("encoding", ["alibi", "t5", "transformer_xl"])
def test_every_candidate_computes_the_same(encoding, mode):
    """The peers that build a matrix agree with attend: what is timed is one and the same thing."""
    made = setting.prepare(Row("x", encoding, Goal(), length=24, mode=mode))
    results = [candidates.build(made, name)() for name in ("attend:reference", "attend:auto", "dense", "naive")]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)
    assert isinstance(results[0], tuple) == (mode == "train")
    shapes = [tuple(t.shape) for t in results[0]] if mode == "train" else [tuple(results[0].shape)]
    assert shapes[0] == (1, 8, 1 if mode == "decode" else 24, 64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("encoding", "causal", "peer"),
    [
        ("alibi", True, "x-transformers"),
        ("t5", True, "transformers"),
        ("t5", False, "transformers"),
        pytest.param("alibi", True, "flex", marks=pytest.mark.compiles),
        pytest.param("t5", False, "flex", marks=pytest.mark.compiles),
    ],
)
def test_peers_of_other_libraries_compute_attention(encoding, causal, peer, monkeypatch):
    if peer != "flex":
        pytest.importorskip(peer.replace("-", "_"))
    options = {"bidirectional": not causal, "score_scale": 1.0} if encoding == "t5" else {}
    made = setting.prepare(Row("x", encoding, Goal(), length=24, causal=causal, options=options))
    drawn = nn.Embedding.__init__
    if peer == "transformers":  # whose table is its own, and its scale 1: the same numbers in both

        def same(self, *sizes, **options):
            drawn(self, *sizes, **options)
            with torch.no_grad():
                self.weight.copy_(made.encoding.weight)

        monkeypatch.setattr(nn.Embedding, "__init__", same)
    with torch.no_grad():
        theirs, ours = candidates.build(made, peer)(), candidates.build(made, "attend:reference")()
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_documents_restart_and_windows_end():
    made = setting.prepare(Row("x", "t5", Goal(), length=32, documents=4))
    assert made.pos.tolist() == list(range(8)) * 4
    assert made.document_ids.unique_consecutive().tolist() == [0, 1, 2, 3]
    out = candidates.build(made, "attend:reference")()
    torch.testing.assert_close(out[:, :, ::8], made.v[:, :, ::8])  # the first of a document sees itself alone


@pytest.mark.slow
def test_a_row_is_told_in_full(no_children):
    found = attend.measure_row(NAMED)
    assert found["skipped"] is None
    assert found["goal_for"] == "attend:reference"
    assert [c["name"] for c in found["candidates"]] == ["plain", "attend:reference", "dense"]
    assert [c["role"] for c in found["candidates"]] == ["baseline", "posenc", "peer"]
    assert found["candidates"][0]["ratio"]["median"] == 1.0
    assert found["candidates"][1]["memory_mib"] == 4096 / 2**20
    assert found["candidates"][1]["of_q"] == 4096 / (8 * 32 * 64 * 4)
    assert set(found["met"]) == {"ratio"}


def test_a_backend_that_is_missing_or_refuses_is_skipped_aloud(no_children, monkeypatch):
    class Choosy:
        name = "choosy"
        rejects = staticmethod(lambda call: "it is Tuesday.")
        memory = staticmethod(lambda call: 0)
        run = staticmethod(lambda call: call.q)

    monkeypatch.setitem(attention.BACKENDS, "choosy", Choosy())
    found = attend.measure_row(replace(NAMED, backends=("nowhere", "choosy", "auto"), peers=()))
    skipped = {c["name"]: c["skipped"] for c in found["candidates"] if c["skipped"]}
    assert skipped["attend:nowhere"] == "there is no backend 'nowhere' in this version"
    assert skipped["attend:choosy"] == "it refuses: it is Tuesday"
    assert found["goal_for"] == "attend:nowhere"
    assert found["met"] == {"ratio": None}
    assert len(found["candidates"]) == 4
    assert "skipped, it refuses: it is Tuesday" in "\n".join(text.row_lines(found))


def test_what_auto_takes_is_measured_once(no_children):
    taken = next(v.backend for v in candidates.verdicts(ROW) if v.verdict == "taken")
    found = attend.measure_row(replace(ROW, backends=("auto", taken)))
    own = [c for c in found["candidates"] if c["role"] == "posenc"]
    assert [(c["name"], c["auto"], c["title"]) for c in own] == [(f"attend:{taken}", True, f"posenc, auto: {taken}")]


def test_a_missing_encoding_skips_the_row():
    found = attend.measure_row(replace(ROW, encoding="no_such_encoding"))
    assert found["skipped"].startswith("not measured: unknown encoding 'no_such_encoding'")
    assert found["candidates"] == []
    assert len(text.row_lines(found)) == 2


def test_what_dies_alone_is_not_run_here(monkeypatch):
    dies = NotMeasured("its process was killed by signal 9", fatal=True)
    peak = Peak(4096, 2**30)
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: dies if "dense" in make.args else peak)
    ran = []
    entry = peers.PEERS["dense"]._replace(make=ran.append)
    monkeypatch.setitem(peers.PEERS, "dense", entry)
    found = attend.measure_row(NAMED)
    assert found["candidates"][2]["skipped"] == dies.why
    assert ran == []


@pytest.mark.slow
def test_what_would_not_fit_is_not_begun(no_children, monkeypatch):
    monkeypatch.setattr(attend, "available", lambda device: 1000)
    found = attend.measure_row(NAMED)
    assert [bool(c["skipped"]) for c in found["candidates"]] == [False, True, True]
    assert all("are free" in c["skipped"] for c in found["candidates"][1:])


def test_peers_wait_for_full_where_they_take_long(monkeypatch):
    long = replace(NAMED, length=attend.LONG + 1, backends=())
    assert "--full" in attend.make_plan(long, full=False).skipped["dense"]
    assert attend.make_plan(replace(long, mode="decode"), full=False).skipped == {}
    monkeypatch.setattr(attend, "available", lambda device: 2**50)
    assert attend.make_plan(long, full=True).skipped == {}


def judged(goal, **got):
    row = replace(ROW, goal=goal)
    own = told.entry(row, "attend:reference") | {"ratio": {"median": got.get("ratio")}} if "ratio" in got else None
    own = (own or told.entry(row, "attend:reference")) | {k: v for k, v in got.items() if k != "ratio"}
    return told.judge(row, [own, told.entry(row, "dense") | {"memory_mib": 100.0}], "attend:reference")


def test_goals_are_reached_missed_or_not_measured():
    goal = Goal(ratio=1.3, of_q=4.0, of_dense=0.2, total_mib=4096.0)
    reached = judged(goal, ratio=1.3, of_q=3.9, memory_mib=20.0, process_mib=4096.0)
    assert reached == {"ratio": True, "of_q": True, "of_dense": True, "total_mib": True}
    missed = judged(goal, ratio=1.31, of_q=4.1, memory_mib=20.1, process_mib=4097.0)
    assert missed == {"ratio": False, "of_q": False, "of_dense": False, "total_mib": False}
    assert judged(goal) == {"ratio": None, "of_q": None, "of_dense": None, "total_mib": None}


def test_growth_is_the_exponent_of_plain_and_ours():
    measured = []
    for length, plain, ours, size in ((1024, 1.0, 1.5, 10.0), (4096, 16.0, 24.0, 40.0), (16384, 256.0, 384.0, 160.0)):
        row = replace(ROW, growth=True, length=length)
        sides = [told.entry(row, "plain"), told.entry(row, "attend:reference")]
        for side, seconds in zip(sides, (plain, ours), strict=True):
            side |= {"seconds": {"median": seconds}, "memory_mib": size}
        measured.append(told.describe(row) | {"candidates": sides})
    [growth] = attend.grow(measured)
    assert [(c["time"], c["memory"]) for c in growth["candidates"]] == [(2.0, 1.0), (2.0, 1.0)]
    assert growth["lengths"] == [1024, 4096, 16384]
    assert "memory p = 1.00" in text.growth_lines(growth)[2]
    assert growth["met"] == {"memory": True, "time": True}
    assert [line.rsplit(": ", 1)[1] for line in text.growth_lines(growth)[3:]] == ["reached", "reached"]
    measured[2]["candidates"][1] |= {"seconds": {"median": 400.0}}  # p = 2.01
    assert next(attend.grow(measured))["met"]["time"]
    measured[2]["candidates"][1] |= {"seconds": {"median": 500.0}, "memory_mib": 250.0}
    [growth] = attend.grow(measured)
    assert growth["met"] == {"memory": False, "time": False}
    assert [line.rsplit(": ", 1)[1] for line in text.growth_lines(growth)[3:]] == ["missed", "missed"]
    assert list(attend.grow(measured[:1])) == []
    measured[0]["candidates"][1]["memory_mib"] = None
    [growth] = attend.grow(measured)
    assert growth["candidates"][1]["memory"] is None
    assert growth["met"]["memory"] is None


def test_a_page_holds_every_row(no_children):
    report = attend.begin([NAMED])
    report["rows"] = [attend.measure_row(NAMED), attend.measure_row(replace(NAMED, encoding="no_such_encoding"))]
    page = text.markdown(report, "a machine")
    assert page.count("\n## kerple.named: 32 tokens, float32\n") == 2
    assert "| plain causal SDPA |" in page
    assert "unknown encoding" in page
    assert "Goal: time at most 1.30 of plain SDPA: " in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
