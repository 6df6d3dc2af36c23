"""What `posenc bench rotary` compares computes one and the same turn, and its goals are judged by the numbers."""

import math
import re
from dataclasses import replace

import pytest
import torch

from posenc.bench import pages, rotary, rotary_calls, rotary_peers, rotary_rows, rotary_text
from posenc.bench.measure import Spread, Timing
from posenc.bench.rotary_rows import Goal, Row

QUICK = {row.name: row for row in rotary_rows.choose(quick=True)}
TURNS = [name for name, row in QUICK.items() if not row.is_model]


def literally(row, x):
    """Turn each pair of lanes by position / 10000^(2 i / 128) in float64, as the paper writes it."""
    pos = torch.tensor([4095.0]) if row.length == 1 else torch.arange(row.length).double()
    x, turned = x.detach().double(), torch.empty(x.shape, dtype=torch.float64)
    for i in range(64):
        a, b = (i, i + 64) if row.pairing == "half" else (2 * i, 2 * i + 1)
        angle = pos / 10000 ** (2 * i / 128)
        turned[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
        turned[..., b] = x[..., a] * angle.sin() + x[..., b] * angle.cos()
    return turned


def loss_gradients(row, setting):
    """Differentiate the literal turn, weighted by the slopes that all candidates go back from."""
    leaves = [t.detach().double().requires_grad_() for t in (setting.q, setting.k)]
    back = [literally(row, torch.eye(128)[lane].expand(row.length, 128)) for lane in range(128)]
    matrix = torch.stack(back, dim=-1)  # (seq, turned lane, lane)
    total = sum(
        (torch.einsum("sij,bhsj->bhsi", matrix, t) * slope.double()).sum()
        for t, slope in zip(leaves, setting.slopes, strict=True)
    )
    return torch.autograd.grad(total, leaves)


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:::rotary_embedding_torch", "ignore:.torch.jit:DeprecationWarning")  # theirs
@pytest.mark.parametrize("name", TURNS)
def test_every_candidate_computes_the_same(name):
    row = replace(QUICK[name], length=min(QUICK[name].length, 16))
    setting = rotary_calls.prepare(row)
    want = loss_gradients(row, setting) if row.kind == "train" else [literally(row, t) for t in (setting.q, setting.k)]
    tried = []
    for candidate in rotary_calls.list_names(row):
        if candidate in ("copy", "copies", "clone", "clones") or "compiled" in candidate:
            continue
        try:
            got = rotary_calls.make(setting, candidate)()
        except ImportError:
            continue
        except ValueError as error:
            if "numba" in candidate and "numba" in str(error):
                continue  # not installed
            raise
        if candidate.startswith("rotate_"):
            got, setting.own = setting.own, (setting.q.detach().clone(), setting.k.detach().clone())
        if candidate.startswith("out"):
            assert got[0] is setting.out[0]
        for mine, right in zip(got, want, strict=True):
            assert mine.shape == right.shape, candidate
            # x-transformers and others form angles in float32: 4095 radians are then wrong by up to 2.4e-4
            torch.testing.assert_close(mine.double(), right, rtol=0, atol=2e-3, msg=lambda m, c=candidate: f"{c}: {m}")
        tried.append(candidate)
    assert {"rotate:formula", "rotate:blocked", "rotate:auto"} <= {*tried}


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, while inductor is imported
@pytest.mark.parametrize("name", ["long.half", "train.interleaved"])
def test_compiled_candidates_compute_the_same(name):
    if not rotary_peers.compiler():
        pytest.skip("no C++ compiler")
    row = replace(QUICK[name], length=16, compiles=True)
    runs, failed = rotary_calls.build(row)
    want = rotary_calls.make(rotary_calls.prepare(row), "rotate:auto")()
    assert not {"compiled"} & {*failed}
    for candidate in ("compiled", "transformers-compiled"):
        if candidate in runs:
            torch.testing.assert_close(runs[candidate](), want, rtol=1e-4, atol=1e-4)


def test_copies_and_clones_move_what_is_turned():
    setting = rotary_calls.prepare(QUICK["long.half"])
    rotary_calls.make(setting, "copy")()
    assert torch.equal(setting.out[0], setting.q)
    assert torch.equal(setting.out[1], setting.k)
    clones = rotary_calls.make(rotary_calls.prepare(QUICK["train.half"]), "clones")()
    assert [tuple(t.shape) for t in clones] == [(1, 32, 64, 128), (1, 8, 64, 128)] * 2
    assert not any(t.requires_grad for t in clones)


def test_shapes_and_memory_are_those_of_models():
    setting = rotary_calls.prepare(QUICK["transposed.half"])
    assert setting.q.shape == (1, 32, 64, 128)
    assert setting.q.stride() == setting.out[0].stride() == (64 * 32 * 128, 128, 32 * 128, 1)
    assert rotary_calls.prepare(QUICK["long.half"]).q.is_contiguous()
    decode = next(row for row in rotary_rows.choose() if row.name == "decode.half")
    assert rotary_calls.prepare(decode).k.shape == (64, 8, 1, 128)
    assert next(row for row in rotary_rows.choose() if row.name == "long.half").bytes == 80 * 2**20


def test_goals_are_those_that_were_set():
    limits = {}
    for row in rotary_rows.choose():
        limits |= {(row.key, goal.title): goal.limit for goal in row.goals}
    for pairing in ("half", "interleaved"):
        for way in ("in place, best", "out=, best"):
            assert limits[f"long.{pairing}.float32", way] == 1.3
            assert limits[f"long.{pairing}.bfloat16", way] == 1.5
            assert limits[f"decode.{pairing}.float32", way] == 1.5
            assert limits[f"decode.{pairing}.bfloat16", way] == 3.0
        assert limits[f"long.{pairing}.float32", "in place, torch alone"] == 2.5
        assert limits[f"long.{pairing}.bfloat16", "in place, torch alone"] == 4.5
        assert limits[f"train.{pairing}.bfloat16", "forwards and backwards, best"] == 1.5
    named = {name for row in rotary_rows.choose() for name in rotary_calls.list_names(row)}
    for row in rotary_rows.choose():
        for goal in row.goals:  # a goal for a name that nobody has could be missed for ever
            assert {*goal.ours, goal.beside} <= {*rotary_calls.list_names(row)}
    assert "complex" in named


def test_options_choose_rows():
    assert [row.key for row in rotary_rows.choose(only="llama")] == [
        f"llama.{kind}.{dtype}" for dtype in ("float32", "bfloat16") for kind in ("prefill", "generate")
    ]
    longer = rotary_rows.choose([128, 256], ["float16"], "long.half")
    assert [(row.key, row.length, row.goals) for row in longer] == [
        ("long.half.float16", 128, ()),
        ("long.half.float16", 256, ()),
    ]
    assert {row.length for row in rotary_rows.choose([128], None, "decode")} == {1}
    assert all(not row.goals and not row.compiles and row.rounds == 2 for row in rotary_rows.choose(quick=True))
    assert rotary_rows.choose(only="nothing") == []


def timing(*seconds):
    middle = Spread(*[seconds[0]] * 3)
    return Timing(middle, middle, seconds[0], len(seconds), 0, seconds)


MEASURED = {"copy": timing(1.0, 2.0, 4.0), "a": timing(1.2, 2.4, 4.8), "b": timing(3.0, 6.0, 12.0)}


def test_a_goal_is_judged_by_the_best_within_rounds():
    goal = Goal("x", ("b", "a", "absent"), "copy", 1.3)
    told = rotary.judge(goal, MEASURED, None, {})
    assert (told["by"], told["reached"]) == ("a", True)
    assert told["ratio"] == {"low": pytest.approx(1.2), "median": pytest.approx(1.2), "high": pytest.approx(1.2)}
    assert rotary.judge(replace(goal, limit=1.1), MEASURED, None, {})["reached"] is False
    assert rotary.judge(replace(goal, ours=("absent",)), MEASURED, None, {})["reached"] is None
    assert rotary.judge(replace(goal, beside="absent"), MEASURED, None, {})["ratio"] is None


def test_a_goal_for_another_state_is_told_and_not_judged():
    goal = Goal("x", ("a",), "copy", 1.3, "reused")
    told = rotary.judge(goal, MEASURED, {"state": "fresh"}, {})
    assert (told["reached"], told["by"]) == (None, "a")
    assert rotary.judge(goal, MEASURED, {"state": "reused"}, {})["reached"] is True
    assert rotary.judge(goal, MEASURED, None, {})["reached"] is None


def test_a_candidate_with_new_pages_is_not_judged_as_with_reused_ones():
    goal, reused = Goal("x", ("a",), "copy", 1.3, "reused"), {"state": "reused"}
    assert rotary.judge(goal, MEASURED, reused, {"a": 544})["reached"] is None
    assert rotary.judge(goal, MEASURED, reused, {"a": 0, "b": 544})["reached"] is True
    assert rotary.judge(goal, MEASURED, reused, {"a": None})["reached"] is True  # a system that counts no faults
    assert rotary.judge(replace(goal, state="any"), MEASURED, reused, {"a": 544})["reached"] is True


@pytest.fixture
def faked(monkeypatch):
    """Measure given calls in place of a row's own: a function of calls by name, and reasons by name."""

    def fake(runs, failed=None):
        monkeypatch.setattr(rotary_calls, "build", lambda row: (runs, failed or {}))
        monkeypatch.setattr(rotary_calls, "list_names", lambda row: [*runs, *(failed or {})])

    return fake


def fail():
    raise TypeError("rotate() got an unexpected keyword argument 'backend'")


def test_what_cannot_run_is_told_beside_the_others(faked):
    faked({"copy": int, "clone": int, "out:blocked": fail}, {"timm": "not installed: no module named 'timm'"})
    row = QUICK["long.half"]
    found = rotary.measure_row(row)
    assert [c["role"] for c in found["candidates"]] == ["baseline", "memory", "posenc", "peer"]
    assert found["candidates"][0]["ratio"]["median"] == 1.0
    assert [c["skipped"] for c in found["candidates"]] == [
        None,
        None,
        "TypeError: rotate() got an unexpected keyword argument 'backend'",
        "not installed: no module named 'timm'",
    ]
    lines = "\n".join(rotary_text.row_lines(found))
    assert "posenc out=, blocked: not measured, TypeError: rotate() got" in lines


def test_a_row_without_its_baseline_is_skipped(faked):
    faked({}, {"loaded": "not installed: no module named 'transformers'"})
    found = rotary.measure_row(QUICK["llama.prefill"])
    assert found["skipped"] == "not measured: not installed: no module named 'transformers'"
    assert len(rotary_text.row_lines(found)) == 2


@pytest.mark.parametrize(
    ("seconds", "faults", "state"),
    [(1.1, 20_000, "fresh"), (6.0, 10, "fresh"), (1.1, 10, "reused"), (1.1, None, "reused"), (2.5, None, "fresh")],
)
def test_the_allocators_state_is_measured(faked, monkeypatch, seconds, faults, state):
    row = next(row for row in rotary_rows.choose() if row.key == "long.half.float32")
    faked({"copy": int, "clone": int})
    times = {"copy": timing(1.0, 1.0), "clone": timing(seconds, seconds)}
    monkeypatch.setattr(rotary, "compare", lambda *given, **options: times)
    counts = iter([0, 0, 0, faults or 0]) if faults is not None else iter([-1] * 4)
    monkeypatch.setattr(pages, "faults", lambda: next(counts))
    found = rotary.measure_row(row)
    assert found["pages"]["state"] == state
    assert found["pages"]["faults"] == faults
    assert found["candidates"][1]["faults"] == faults
    assert ("stock" if state == "fresh" else "reused") in rotary_text.page_sentences(found)[0]


def report():
    row = next(row for row in rotary_rows.choose() if row.key == "long.half.float32")
    found = rotary.describe(row)
    for name, seconds in (("copy", 0.0041), ("rotate_:numba", 0.0043), ("transformers", 0.1)):
        own = Timing(Spread(*[seconds] * 3), Spread(*[seconds / 0.0041] * 3), seconds, 15, 1, (seconds,) * 15)
        found["candidates"].append(rotary._tell(row, name, own, 20_480))
    found["candidates"].append(rotary._tell(row, "timm", "not installed: no module named 'timm'", None))
    own = {c["name"]: timing(c["seconds"]["median"]) for c in found["candidates"] if c["seconds"]}
    found["goals"] = [rotary.judge(goal, own, {"state": "fresh"}, {}) for goal in row.goals]
    found["pages"] = {"state": "fresh", "clone": {"low": 5.0, "median": 6.44, "high": 7.0}, "faults": 20_480}
    return found


def test_a_row_is_told_within_80_columns():
    lines = rotary_text.row_lines(report())
    assert lines[0] == "long.half: (1, 32+8, 4096, 128), float32"
    assert "  posenc in place, numba          4.30 ms    1.05  1.05 .. 1.05        20,480" in lines
    assert (
        "  memory: new pages for each large tensor (stock): a clone takes 6.44 copies and 20,480 page faults" in lines
    )
    assert "  goal: in place, best: at most 1.30 of a copy: reached, 1.05 by numba" in lines
    assert "  goal: out=, best: at most 1.30 of a copy: not measured" in lines
    assert "  goal: a tenth of transformers: at most 0.10 of transformers: reached, 0.04 by numba" in lines
    assert "  3 samples were disturbed by other work, however often they were taken again" in lines
    assert max(len(line) for line in lines if re.match(r"  (copy|posenc|transformers)", line)) <= 80


def test_a_page_holds_every_row():
    page = rotary_text.markdown([report(), report() | {"skipped": "not measured: no"}], "Stock allocator")
    assert page.startswith("## Stock allocator\n\n### long.half: (1, 32+8, 4096, 128), float32\n")
    assert page.count("### long.half") == 2
    assert "| timm, not measured: not installed: no module named 'timm' |  |  |  |  |" in page
    assert {line.count("|") for line in page.splitlines() if line.startswith("|")} == {6}
    assert "- in place, best: at most 1.30 of a copy: reached, 1.05 by numba" in page


def test_tokens_per_second_are_those_of_the_call():
    row = QUICK["llama.generate"]
    own = Timing(Spread(1.0, 2.0, 4.0), Spread(1.0, 1.0, 1.0), 1.0, 3, 0, (1.0, 2.0, 4.0))
    told = rotary._tell(row, "hf.use", own, 0)
    tokens = row.batch * 32
    assert told["tokens_per_s"] == {"low": tokens / 4, "median": tokens / 2, "high": tokens / 1}
    assert told["role"] == "posenc"
    assert math.isclose(rotary._tell(QUICK["llama.prefill"], "loaded", own, 0)["tokens_per_s"]["median"], 32.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prefill", "generate"])
def test_a_model_says_the_same_with_and_without(kind):
    pytest.importorskip("transformers")
    from posenc.bench import rotary_models

    row = replace(QUICK[f"llama.{kind}"], length=12)
    loaded, ours = (rotary_models.run(row, ours=ours)() for ours in (False, True))
    assert loaded.shape == ((1, 1, 1024) if kind == "prefill" else (2, 44))
    if kind == "prefill":
        torch.testing.assert_close(ours, loaded, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(ours, loaded)


def test_a_peer_that_needs_more_than_it_uses_is_read_alone(tmp_path, monkeypatch):
    layers = tmp_path / "needy" / "layers"
    layers.mkdir(parents=True)
    (tmp_path / "needy" / "__init__.py").write_text("raise RuntimeError('no other package here')")
    (layers / "turns.py").write_text("from .more import number")
    (layers / "more.py").write_text("number = 7")
    monkeypatch.syspath_prepend(tmp_path)
    assert rotary_peers._load("needy", "layers", "turns").number == 7
    with pytest.raises(ImportError, match="no module named 'nowhere'"):
        rotary_peers._load("nowhere", "layers", "turns")


def test_rows_have_names_of_their_own():
    keys = [row.key for row in rotary_rows.choose()]
    assert len(keys) == len(set(keys)) == 18
    assert isinstance(rotary_rows.choose()[0], Row)


def test_faults_are_those_of_a_call_behind_another(monkeypatch):
    happened = []
    monkeypatch.setattr(pages, "faults", lambda: 100 if len(happened) == 1 else 100 * len(happened))
    assert rotary._count_faults({"one": lambda: happened.append(1)}) == {"one": 100}
    assert len(happened) == 2
