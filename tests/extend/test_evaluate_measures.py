"""What is scored, where needles lie, and what intervals and verdicts are formed from."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from extend.small import TEXT, TRAINED, llama
from posenc.extend.evaluate.findings import Findings, estimate
from posenc.extend.evaluate.measures import DEPTHS, NEEDLES, POSITION, SLIDING, Text, find_needles, fits, hide, read
from posenc.extend.evaluate.report import answer
from posenc.extend.evaluate.targets import Model, find

TOKENS = Text(torch.tensor(list(TEXT)), longest=256, scored=16, pieces=8)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return find(llama(tmp_path_factory.mktemp("models") / "llama"), None)


def copier(window):
    """Stand in for a model: half of the probability goes to what followed the last bytes where they stood before."""

    def logits(tokens, last):
        out = torch.full((len(tokens), last, 128), math.log(0.5 / 127))
        for row, ids in enumerate(tokens.tolist()):
            for i in range(last):
                past = ids[: len(ids) - last + 1 + i]
                cue = past[-window:]
                found = [j for j in range(window, len(past)) if past[j - window : j] == cue]
                if found:
                    out[row, i, past[found[-1]]] = math.log(0.5)
        return out

    return Model(logits, lambda _: None, torch.device("cpu"))


@pytest.mark.parametrize("measure", [POSITION, SLIDING])
def test_the_same_tokens_are_scored_at_every_length_and_none_twice(target, measure):
    seen = {}

    def logits(tokens, last):
        contexts.append(tokens.shape[1])
        return torch.zeros(len(tokens), last, 128)

    class Watched(Model):
        def score(self, windows, last):
            seen.setdefault(windows.shape[1] - 1, []).extend(map(bytes, windows[:, -last:].tolist()))
            return super().score(windows, last)

    contexts = []
    model = Watched(logits, lambda _: None, torch.device("cpu"))
    for length in (32, 64, 256):
        rows = read(model, target, TOKENS, measure, length)
        assert [row["bits"] for row in rows] == pytest.approx([7.0] * 8)  # of 128 equally likely bytes
    assert seen[32] == seen[64] == seen[256]
    assert set(contexts) == {32, 64, 256}
    places = [end - TOKENS.scored for end in TOKENS.ends(measure).tolist()]
    assert all(b - a >= TOKENS.scored for a, b in pairwise(places))
    assert seen[32] == [TEXT[end - 15 : end + 1] for end in TOKENS.ends(measure).tolist()]
    assert min(places) + TOKENS.scored >= 256
    if measure == SLIDING:
        assert {b - a for a, b in pairwise(places)} == {TOKENS.scored}


def test_the_first_token_takes_one_place_of_the_context(target):
    widths = []

    def logits(tokens, last):
        widths.append([*tokens[:, 0].tolist(), tokens.shape[1]])
        return torch.zeros(len(tokens), last, 128)

    read(Model(logits, lambda _: None, torch.device("cpu")), replace(target, start=[1]), TOKENS, POSITION, 64)
    assert widths == [[1] * 8 + [64]]


@pytest.mark.parametrize("kind", NEEDLES)
def test_needles_lie_at_their_depths_and_the_answer_ends_the_text(target, kind):
    windows, last = hide(target, TOKENS, kind, 256, 0)
    without, *given = [bytes(row).decode() for row in windows.tolist()]
    assert windows.shape == (1 + len(DEPTHS), 257)
    answer = without[-last:]
    assert answer.strip().isdecimal()
    sentence = NEEDLES[kind].sentence.split("{a}")[0]
    assert without.count(answer.strip()) == 1  # nowhere but at the end
    lines = [text.split("\n") for text in given]
    for line, depth in zip(lines, DEPTHS, strict=True):
        (place,) = [i for i, words in enumerate(line[:-1]) if words.startswith(sentence) and answer in words]
        assert line[place].endswith(f"{answer}.")
        hay = ["".join(words for words in part if " of " not in words) for part in (line[:place], line)]
        assert len(hay[0]) / len(hay[1]) == pytest.approx(depth, abs=0.02)
    assert [bytes(row).decode() for row in hide(target, TOKENS, kind, 256, 1)[0].tolist()] != [without, *given]


def test_a_needle_saves_the_bits_that_copying_it_saves(target):
    rows = find_needles(copier(3), target, TOKENS, "single", 256, 2)
    assert [(row["piece"], row["depth"]) for row in rows] == [(i, depth) for i in (0, 1) for depth in DEPTHS]
    flat = -math.log2(0.5 / 127)
    for row in rows:
        assert row["bits"] == pytest.approx(1.0)  # each byte of the answer follows three that stood before it once
        assert row["exact"] == 1
        assert 1.0 < row["without"] <= flat + 1e-6


def test_needles_that_do_not_fit_are_left_out(target):
    assert [fits(target, TOKENS, kind, TRAINED, 4) for kind in ("single", "multi-key")] == [True, False]
    assert all(fits(target, TOKENS, kind, 256, 4) for kind in NEEDLES)


def test_an_interval_of_one_model_is_that_of_its_pieces():
    values = np.random.default_rng(1).normal(3.0, 0.5, (1, 400))
    found = estimate(values)
    half = 1.96 * values.std() / 400**0.5  # of the central limit theorem
    assert found.mean == pytest.approx(values.mean())
    assert found.mean - found.low == pytest.approx(half, rel=0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)


def test_an_interval_over_models_covers_models_and_pieces():
    random = np.random.default_rng(2)
    models, pieces = random.normal(0, 1, (20, 1)), random.normal(0, 1, (1, 100))
    found = estimate(models + pieces)
    half = 1.96 * (models.var() / 20 + pieces.var() / 100) ** 0.5
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert found.models == pytest.approx(tuple((models + pieces).mean(1)))


def made(bits, short=((32, 0.0), (64, 0.0))):
    """A run of three models whose methods cost so many bits at 256, with pieces and models that differ."""
    run = {"methods": list(bits), "lengths": [64, 256], "short": [32, 64], "trained_len": 64}
    cells = []
    for m in range(3):
        for method, mean in bits.items():
            costs = {256: mean} | ({} if method == "none" else dict(short))
            for length in (32, 64, 256):
                rows = [{"piece": i, "bits": 3 + m + i + costs.get(length, 0.0)} for i in range(8)]
                cells.append({"model": f"m{m}", "method": method, "measure": POSITION, "length": length, "rows": rows})
    return run, cells


def test_verdicts_are_of_paired_differences():
    # models and pieces differ by far more than methods, and pairing takes that out
    found = Findings(*made({"none": 1.0, "linear": 0.9, "ntk": 0.2, "yarn": 0.3}))
    assert [(one.worse, one.better, verdict) for one, _, verdict in found.expectations(256)] == [
        ("none", "ntk", "seen"), ("linear", "ntk", "seen"), ("ntk", "yarn", "contradicted")]  # fmt: skip
    assert [(name, apart) for name, _, apart in found.ranking(256)] == [
        ("ntk", False), ("yarn", True), ("linear", True), ("none", True)]  # fmt: skip
    gap = found.difference("none", "ntk", POSITION, 256)
    assert gap.mean == pytest.approx(0.8)
    assert gap.models == pytest.approx((0.8,) * 3)


def test_what_does_not_differ_is_no_order():
    run, cells = made({"none": 1.0, "ntk": 1.0})
    for cell in cells:
        if cell["method"] == "ntk":
            cell["rows"] = [row | {"bits": row["bits"] + (-1) ** row["piece"]} for row in cell["rows"]]
    found = Findings(run, cells)
    assert [verdict for _, _, verdict in found.expectations(256)] == ["cannot tell at this size"]
    assert not any(apart for _, _, apart in found.ranking(256))


@pytest.mark.parametrize(("cost", "verdict"), [(0.0, "kept"), (0.04, "kept"), (0.2, "lost")])
def test_the_guard_on_short_texts_compares_with_none(cost, verdict):
    found = Findings(*made({"none": 1.0, "yarn": 0.1}, short=((32, cost), (64, 0.0))))
    ((name, costs, said),) = found.guard()
    assert (name, said) == ("yarn", verdict)
    assert [one.mean for one in costs] == pytest.approx([cost, 0.0])


@pytest.mark.parametrize(("saved", "said"), [(0.001, "none with any method"), (0.2, "single with none")])
def test_a_needle_that_saves_next_to_nothing_is_not_called_a_help(saved, said):
    # an untrained model saves a thousandth of a bit in every trial, so that its interval does not hold zero
    run, cells = made({"none": 1.0})
    rows = [{"piece": i, "depth": 0.5, "bits": 4.0 + i, "without": 4.0 + i + saved, "exact": 0.0} for i in range(4)]
    cells += [{"model": "m0", "method": "none", "measure": "single", "length": 256, "rows": rows}]
    assert answer(Findings(run, cells), "byte")[-1].endswith(f"at that length: {said}.")


def test_what_is_missing_is_left_out():
    run, cells = made({"none": 1.0, "yarn": 0.1})
    found = Findings(run, [cell for cell in cells if (cell["model"], cell["method"]) != ("m2", "yarn")])
    assert len(found.difference("none", "yarn", POSITION, 256).models) == 2
    assert len(found.mean("none", POSITION, 256).models) == 3
    assert found.mean("yarn", SLIDING, 256) is None
    assert Findings(run, []).ranking(256) == []
