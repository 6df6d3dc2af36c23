"""Candidates of a row compute one and the same thing, and a report says what was measured of them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from posenc import attention
from posenc.bench import attend, memory, models, report, rotary
from posenc.bench.measure import Spread, Timing
from posenc.bench.memory import NotMeasured, Peak
from posenc.bench.rows import Goal, Row, choose

GOALS = (Goal(("attend:auto",), 1.3), Goal(("attend:auto",), 4.0, "memory"))
ROW = Row("kerple.forward", "attend", ("plain", "attend:auto", "dense"), GOALS, {"encoding": "kerple"}, length=32)
ROW = replace(ROW, rounds=2)
ROTATIONS = [r for r in choose(rotary.templates(), quick=16) if r.kind == "rotary"]
MODELS = choose([*models.templates(tuple(models.MODELS))], [48], ["float32"])


@pytest.fixture
def no_children(monkeypatch):
    """Let no process be started: every peak is 4,096 bytes."""
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: Peak(4096, 2**30))


def attending(encoding, **options):
    mode = options.pop("mode", "forward")
    return attend.prepare(Row("x", "attend", (), (), {"encoding": encoding, **options}, mode, length=24))


@pytest.mark.parametrize("mode", ["forward", "train", "decode"])
@pytest.mark.parametrize("encoding", ["alibi", "t5", "transformer_xl"])
def test_every_candidate_of_attention_computes_the_same(encoding, mode):
    setting = attending(encoding, mode=mode)
    results = [attend.make(setting, name)() for name in ("attend:reference", "attend:auto", "dense")]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)
    assert isinstance(results[0], tuple) == (mode == "train")
    first = results[0][0] if mode == "train" else results[0]
    assert tuple(first.shape) == (1, 8, 1 if mode == "decode" else 24, 64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("encoding", "causal", "peer"),
    [
        ("alibi", True, "x-transformers"),
        ("t5", True, "transformers"),
        ("t5", False, "transformers"),
        pytest.param("t5", True, "compiled", marks=pytest.mark.compiles),
    ],
)
def test_peers_of_other_libraries_compute_attention(encoding, causal, peer, monkeypatch):
    if peer != "compiled":
        pytest.importorskip(peer.replace("-", "_"))
    options = {"bidirectional": not causal, "score_scale": 1.0} if encoding == "t5" else {}
    setting = attending(encoding, causal=causal, encoding_options=options)
    drawn = nn.Embedding.__init__
    if peer == "transformers":  # whose table is its own, and its scale 1: the same numbers in both

        def same(self, *sizes, **options):
            drawn(self, *sizes, **options)
            with torch.no_grad():
                self.weight.copy_(setting.encoding.weight)

        monkeypatch.setattr(nn.Embedding, "__init__", same)
    with torch.no_grad():
        theirs, ours = attend.make(setting, peer)(), attend.make(setting, "attend:reference")()
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_documents_restart():
    setting = attending("t5", documents=4)
    assert setting.pos.tolist() == list(range(6)) * 4
    assert setting.document_ids.unique_consecutive().tolist() == [0, 1, 2, 3]
    out = attend.make(setting, "attend:reference")()
    torch.testing.assert_close(out[:, :, ::6], setting.v[:, :, ::6])  # the first of a document sees only itself


def literally(row, x):
    """Rotate each pair of dimensions by position / 10000^(2 i / 128) in float64, as the paper writes it."""
    pos = torch.tensor([4095.0]) if row.length == 1 else torch.arange(row.length).double()
    x, turned = x.detach().double(), torch.empty(x.shape, dtype=torch.float64)
    for i in range(64):
        a, b = (i, i + 64) if row.options["pairing"] == "half" else (2 * i, 2 * i + 1)
        angle = pos / 10000 ** (2 * i / 128)
        turned[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
        turned[..., b] = x[..., a] * angle.sin() + x[..., b] * angle.cos()
    return turned


def gradients(row, setting):
    """Differentiate the literal rotation: its transpose is a rotation by the negative angle."""
    matrix = torch.stack([literally(row, torch.eye(128)[i].expand(row.length, 128)) for i in range(128)], dim=-1)
    return [torch.einsum("sij,bhsi->bhsj", matrix, slope.double()) for slope in setting.slopes]


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:::rotary_embedding_torch", "ignore:.torch.jit:DeprecationWarning")  # theirs
@pytest.mark.parametrize("row", ROTATIONS, ids=lambda row: row.name)
def test_every_candidate_of_rotation_computes_the_same(row):
    setting = rotary.prepare(row)
    want = gradients(row, setting) if row.mode == "train" else [literally(row, t) for t in (setting.q, setting.k)]
    tried = []
    for name in row.candidates[1:]:
        if "compiled" in name:
            continue
        try:
            got = rotary.make(setting, name)()
        except ImportError:
            continue
        except ValueError as error:
            if "numba" in name and "numba" in str(error):
                continue  # not installed
            raise
        if name.startswith("rotate_"):
            got, setting.own = setting.own, (setting.q.detach().clone(), setting.k.detach().clone())
        for mine, right in zip(got, want, strict=True):
            # x-transformers and others form angles in float32: 4095 radians are then wrong by up to 2.4e-4
            torch.testing.assert_close(mine.double(), right, rtol=0, atol=2e-3, msg=lambda m, c=name: f"{c}: {m}")
        tried.append(name)
    assert {"rotate:formula", "rotate:blocked", "rotate:auto"} <= {*tried}
    if row.mode != "train":
        rotary.make(setting, "copy")()
        assert torch.equal(setting.out[1], setting.k)


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row.name)
def test_a_model_computes_the_same_with_and_without(row):
    pytest.importorskip("transformers")
    loaded, ours = (models.make(row, ours=ours)() for ours in (False, True))
    if row.mode == "generate":
        assert loaded.shape == (4, 48 + 32)
        assert torch.equal(loaded, ours)
    else:
        assert loaded.shape[:2] == (1, 48)
        assert (loaded - ours).abs().max() < 1e-4


def test_a_row_is_reported_in_full(no_children):
    found = report.measure_row(ROW)
    assert found["skipped"] is None
    assert [c["name"] for c in found["candidates"]] == ["plain", "attend:auto", "dense"]
    assert [c["role"] for c in found["candidates"]] == ["baseline", "posenc", "peer"]
    assert found["candidates"][0]["ratio"]["median"] == 1.0
    assert found["candidates"][1]["memory_mib"] == 4096 / 2**20
    assert found["candidates"][1]["of_q"] == 4096 / (8 * 32 * 64 * 4)
    assert [g["by"] for g in found["goals"]] == ["attend:auto"] * 2
    assert found["goals"][1]["reached"]
    assert f"posenc, auto: {attend.taken(ROW)}" in "\n".join(report.row_lines(found))


def test_what_cannot_run_is_skipped_with_a_sentence(no_children, monkeypatch):
    class Choosy:
        name = "choosy"
        rejects = staticmethod(lambda call: "it is Tuesday.")
        memory = staticmethod(lambda call: 0)

    def missing(setting):
        raise ModuleNotFoundError("No module named 'nowhere'")

    monkeypatch.setitem(attention.BACKENDS, "choosy", Choosy())
    monkeypatch.setitem(attend.MAKERS, "dense", missing)
    found = report.measure_row(replace(ROW, candidates=("plain", "attend:choosy", "attend:nowhere", "dense")))
    skipped = {c["name"]: c["skipped"] for c in found["candidates"] if c["skipped"]}
    assert "it is Tuesday" in skipped["attend:choosy"]
    assert "unknown backend 'nowhere'" in skipped["attend:nowhere"]
    assert skipped["dense"] == "not installed: ModuleNotFoundError: No module named 'nowhere'"
    assert "SDPA, mask built: skipped, not installed" in "\n".join(report.row_lines(found))


def test_a_missing_encoding_skips_the_row(no_children):
    found = report.measure_row(replace(ROW, options={"encoding": "no_such_encoding"}))
    assert found["skipped"].startswith("not measured: unknown encoding 'no_such_encoding'")
    assert len(report.row_lines(found)) == 2


def test_what_dies_in_its_process_is_not_run_here(monkeypatch):
    dies = NotMeasured("its process was killed by signal 9", fatal=True)
    monkeypatch.setattr(memory, "peak", lambda make, warm=None: dies if "dense" in make.args else Peak(4096, 2**30))
    ran = []
    monkeypatch.setitem(attend.MAKERS, "dense", ran.append)
    assert report.measure_row(ROW)["candidates"][2]["skipped"] == dies.why
    assert ran == []


def candidate(name, ratio=None, of_q=None):
    return {"name": name, "ratio": ratio and {"median": ratio}, "of_q": of_q}


def test_a_goal_is_judged_by_the_best():
    goal = Goal(("a", "b", "absent"), 1.3)
    found = report.judge(goal, [candidate("plain", 1.0), candidate("a", 1.5), candidate("b", 1.3)])
    assert (found["by"], found["got"], found["reached"]) == ("b", 1.3, True)
    assert report.judge(goal, [candidate("plain", 1.0), candidate("a", 1.31)])["reached"] is False
    assert report.judge(goal, [candidate("plain", 1.0)])["reached"] is None
    memory = Goal(("a",), 4.0, "memory")
    assert report.judge(memory, [candidate("a", 9.0, 3.9)])["reached"] is True
    assert report.judge(memory, [candidate("a", 9.0)])["reached"] is None


def test_tokens_per_second_are_those_of_the_call():
    row = Row("hf.llama.generate", "models", ("loaded", "hf.use"), (), {"model": "llama"}, "generate", 12, 4)
    timing = Timing(Spread(1.0, 2.0, 4.0), Spread(1.0, 1.0, 1.0), 1.0, 3, 0)
    found = report._entry(row, "hf.use", timing, None)
    assert found["tokens_per_s"] == {"low": 4 * 32 / 4, "median": 4 * 32 / 2, "high": 4 * 32}
    assert found["role"] == "posenc"


def test_every_backend_says_something_of_a_row():
    found = attend.explain_row(ROW)
    assert [v["backend"] for v in found["verdicts"]] == list(attention.BACKENDS)
    assert [v["verdict"] for v in found["verdicts"]].count("taken") == 1
    assert len(attend.verdict_lines(found)) == 1 + len(attention.BACKENDS)
