"""Synthetic tasks against solvers of their lines as text: answers and distributions."""

from collections import Counter

import numpy as np
import pytest

from posenc.study import tasks
from study.solvers import EVERY, PRINTED, SOLVERS, draw, near, seeded, sizes_of, split


def test_the_names_are_those_of_the_papers():
    wanted = "copy reverse sort addition parity modular_sum flip_flop recall indirect selective_copy even_pairs cycle"
    assert set(tasks.NAMES) == {*wanted.split(), "stack", "missing_duplicate"}
    assert set(SOLVERS) == set(EVERY) - {n for n in EVERY if n.startswith("flip")} - {"recall", "selective_copy"}


@pytest.mark.parametrize(("name", "question", "answer"), PRINTED)
def test_the_solvers_agree_with_what_the_sources_print(name, question, answer):
    assert " ".join(SOLVERS[name](question.split())) == answer
    assert {*question.split(), *answer.split()} <= set(tasks.find(name).symbols)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_line_on_the_card_is_a_line_of_the_task(name):
    line = tasks.find(name).format.split(" (")[0].split()
    mark = len(line) - 1 - line[::-1].index("," if name == "indirect" else "?")
    assert line[0] == "^"
    assert SOLVERS[name](line[1:mark]) == line[mark + 1 :]


@pytest.mark.parametrize("name", SOLVERS)
def test_every_answer_is_the_solvers(name):
    for length in sizes_of(name):
        for read, asked in draw(name, length, 300 if length < 30 else 60):
            question, mark, answer = split(read, asked)
            assert mark == ("," if name == "indirect" else "?")
            assert SOLVERS[name](question) == answer


@pytest.mark.parametrize("name", ["flip_flop", "flip_flop:sparse", "flip_flop:dense"])
def test_reads_give_the_bit_written_last(name):
    for length in sizes_of(name):
        for read, asked in draw(name, length, 100):
            assert read[0] == "w"
            assert read[-1] == "r"
            assert len(read) == length - 1
            memory = None
            for i in range(0, len(read) - 1, 2):
                memory = read[i + 1] if read[i] == "w" else memory
                assert read[i] != "r" or read[i + 1] == memory
                assert asked[i : i + 2] == [memory if read[i] == "r" else None, None]
            assert asked[-1] == memory


@pytest.mark.parametrize("length", [8, 64, 256])
def test_recall_asks_for_each_key_once(length):
    chance = []
    for read, asked in draw("recall", length):
        half = length // 4
        known = dict(zip(read[:half:2], read[1:half:2], strict=True))
        assert len(known) == len(set(known.values())) == length // 8
        queries = {i: read[i] for i, word in enumerate(asked) if word is not None}
        assert sorted(queries.values()) == sorted(known)
        assert all(i >= half and i % 2 == 0 and asked[i] == known[key] for i, key in queries.items())
        chance += [read[i + 1] == asked[i] for i in queries]
    assert np.mean(chance) < 0.03, "the value does not follow its query"


@pytest.mark.parametrize("length", [8, 32, 128])
def test_selective_copy_gives_the_data_in_order(length):
    for read, asked in draw("selective_copy", length):
        assert read[length:] == ["?"] * 8
        assert asked == [None] * length + [word for word in read[:length] if word != "."]


@pytest.mark.parametrize(
    ("name", "length", "classes"),
    [
        ("parity", 7, ("Yes", "No")),
        ("even_pairs", 7, "01"),
        ("missing_duplicate", 9, "01"),
        ("cycle", 40, "01234"),
        ("modular_sum", 12, "0123456789"),
    ],
)
def test_classes_are_balanced(name, length, classes):
    answers = Counter(asked[-1] for _, asked in draw(name, length, 4000))
    near([answers[c] for c in classes], [1 / len(classes)] * len(classes), 4000)


@pytest.mark.parametrize(
    ("name", "place", "values"),
    [
        ("copy", 3, "abcdefghijklmnopqrstuvwxyz"),
        ("reverse", 1, "abcdefghijklmnopqrstuvwxyz"),
        ("sort", 5, [str(i) for i in range(50)]),
        ("addition", 1, "123456789"),  # numbers do not begin with zero
        ("addition", 2, "0123456789"),
        ("addition:all_reversed", 5, "123456789"),
        ("addition:hints", 1, [f"i{i}" for i in range(97)]),
        ("addition:hints", 2, "0123456789"),
        ("modular_sum", 3, "123456789"),
        ("parity", 4, "01"),
        ("cycle", 2, ["-1", "+0", "+1"]),
        ("stack", 1, "01"),
        ("stack", 5, ["pop", "push0", "push1"]),
        ("indirect", 3, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ],
)
def test_symbols_are_uniform(name, place, values):
    seen = Counter(read[place] for read, _ in draw(name, 5, 6000))
    near([seen.pop(v, 0) for v in values], [1 / len(values)] * len(values), 6000)
    assert not seen


def test_stacks_have_every_height_and_at_least_one_action():
    heights = Counter(sum(word in ("0", "1") for word in read[1:7]) for read, _ in draw("stack", 6, 4000))
    near([heights[h] for h in range(1, 6)], [0.2] * 5, 4000)
    assert set(heights) == {1, 2, 3, 4, 5}


def test_holes_and_data_stand_anywhere():
    holes = Counter(read.index("_") - 1 for read, _ in draw("missing_duplicate", 8, 4000))
    near([holes[i] for i in range(8)], [1 / 8] * 8, 4000)
    lines = draw("selective_copy", 16, 4000)
    near([sum(read[i] != "." for read, _ in lines) for i in range(16)], [0.5] * 16, 4000)
    data = Counter(asked[-1] for _, asked in lines)
    near([data[c] for c in "abcdefghijklmn"], [1 / 14] * 14, 4000)


@pytest.mark.parametrize(
    ("name", "ignored"), [("flip_flop", 0.8), ("flip_flop:sparse", 0.98), ("flip_flop:dense", 0.1)]
)
def test_instructions_have_the_probabilities_of_the_paper(name, ignored):
    lines = draw(name, 64, 300)
    kinds = Counter(word for read, _ in lines for word in read[2:-1:2])
    near([kinds[k] for k in "iwr"], [ignored, (1 - ignored) / 2, (1 - ignored) / 2], 300 * 30)
    bits = [read[i + 1] for read, _ in lines for i in range(0, 62, 2) if read[i] != "r"]
    near([bits.count("0"), bits.count("1")], [0.5, 0.5], len(bits))


def test_recall_gaps_follow_the_power_law():
    slots, n = (64 - 16) // 2, 20_000
    law = np.arange(1, slots + 1) ** (0.01 - 1.0)
    law /= law.sum()
    second = [sum(law[j] * law[i] / (1 - law[j]) for j in range(slots) if j != i) for i in range(slots)]
    batch = tasks.find("recall").sample(64, n, seeded())
    for pair, chances in ((0, law), (1, second)):
        asked_at = (batch.targets == batch.tokens[:, 2 * pair + 1 : 2 * pair + 2]).int().argmax(1)
        near(np.bincount((asked_at - 16) // 2, minlength=slots), chances, n)


def test_steps_are_uniform_inside_the_string():
    steps, sources = [], Counter()
    for read, _ in draw("indirect", 40, 6000):
        string, source, step, *_ = "".join(w for w in read[1:] if w != "pad").split(",")
        sources[string.index(source)] += 1
        if 15 <= string.index(source) < 25:
            steps.append(int(step))
    near([sources[i] for i in range(40)], [1 / 40] * 40, 6000)
    near([steps.count(s) for s in range(-15, 16)], [1 / 31] * 31, len(steps))
