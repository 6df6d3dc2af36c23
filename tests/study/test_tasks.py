"""Synthetic tasks against solvers that read their lines as text, written from the papers' definitions."""

import contextlib
import io
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from posenc.study import tasks
from posenc.study.tasks.task import IGNORED

# --- solvers: the words of a question give the words of its answer -------------------------------------------------


def add(question, fill=False):
    """School addition of numbers written from their last digit on."""
    first, second = "".join(question).split("+")
    carry, total = 0, []
    for a, b in zip(first, second, strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        total.append(str(digit))
    return total + ["1"] * carry + ["0"] * (fill and not carry) + ["."]


def falling(question):
    first, second = "".join(question).split("+")
    return [*first[::-1], "+", *second[::-1]]


def add_hinted(question):
    plus = question.index("+")
    hints = [*question[:plus:2]]
    assert hints == question[plus + 1 :: 2], "the same digits have the same hints"
    assert all(int(b[1:]) == int(a[1:]) + 1 for a, b in pairwise(hints)), "hints follow one another"
    total = add([*question[1:plus:2], "+", *question[plus + 2 :: 2]])[:-1]
    hints.append(f"i{int(hints[-1][1:]) + 1}")
    return [word for pair in zip(hints, total, strict=False) for word in pair] + ["."]


def walk(moves):
    circle = [0, 1, 2, 3, 4]
    for move in moves:
        circle = {"+1": circle[1:] + circle[:1], "-1": circle[-1:] + circle[:-1], "+0": circle}[move]
    return [str(circle[0])]


def run_stack(words):
    text = ""
    for word in words:
        text = text[:-1] if word == "pop" else text + word.removeprefix("push")
    return [*reversed(text), "."]


def fill_hole(question):
    text = "".join(question).rstrip("#")
    assert len(question) % 2 == question.count("#")
    left, right = text[: len(text) // 2], text[len(text) // 2 :]
    (answer,) = [b if a == "_" else a for a, b in zip(left, right, strict=True) if a != b]
    return [answer]


def look(question):
    string, source, step = "".join(question).split(",")
    assert len(set(string)) == len(string)
    assert -15 <= int(step) <= 15
    assert step[0] in "+-"
    return [string[string.index(source) + int(step)]]


def pairs_differ(question):
    text = "".join(question)
    unequal = sum(text[i : i + 2] in ("01", "10") for i in range(len(text)))
    return [str(unequal % 2)]


SOLVERS = {
    "copy": lambda q: [*q, "."],
    "reverse": lambda q: [*q[::-1], "."],
    "sort": lambda q: [*sorted(q, key=int), "."],
    "addition": lambda q: [*add(falling(q))[-2::-1], "."],
    "addition:reversed": lambda q: add(falling(q), fill=True),
    "addition:all_reversed": add,
    "addition:hints": add_hinted,
    "parity": lambda q: ["No" if q.count("1") % 2 else "Yes"],
    "modular_sum": lambda q: [str(eval("".join(q)) % 10)],
    "even_pairs": pairs_differ,
    "cycle": walk,
    "stack": run_stack,
    "missing_duplicate": fill_hole,
    "indirect": look,
}
# As printed in the papers and in the code of the Chomsky tasks, in our symbols.
PRINTED = [
    ("copy", "a b c d e", "a b c d e ."),
    ("reverse", "a b c d e", "e d c b a ."),
    ("sort", "3 1 4 1 5", "1 1 3 4 5 ."),
    ("addition", "5 3 7 2 6 + 1 9 1 7 7", "7 2 9 0 3 ."),  # its paper prints 55643, the sum with 1917
    ("addition:reversed", "6 5 3 + 0 4 9", "2 0 7 0 ."),
    ("addition:all_reversed", "6 7 5 + 1 6 3", "7 3 9 ."),
    ("addition:hints", "i0 6 i1 7 i2 5 + i0 1 i1 6 i2 3", "i0 7 i1 3 i2 9 ."),  # its figure 2: a6b7c5+a1b6c3=a7b3c9
    ("parity", "1 0 0 1 1", "No"),
    ("modular_sum", "1 + 2 + 3 + 4 + 7", "7"),
    ("even_pairs", "0 0 1 1 1 0", "0"),
    ("even_pairs", "0 1 0 1 0 0 1", "1"),
    ("cycle", "+1 -1 +0 -1 -1", "3"),
    ("cycle", "+1 +1 +1 -1", "2"),
    ("stack", "0 1 1 0 push1 pop pop", "1 1 0 ."),
    ("stack", "1 1 0 pop pop pop", "."),
    ("missing_duplicate", "0 1 1 0 0 _ 1 0", "1"),
    ("missing_duplicate", "1 _ 1 1 0 1 #", "0"),
    ("indirect", "T z b k W o K D y s c B e p Y v f w x E V Q t g P a , c , - 8", "b"),
    ("indirect", "N Z T U I G W k X F r h C J D z s c a t , N , + 4", "I"),
]
EVERY = [*tasks.NAMES, *tasks.FORMATS]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def words_of(name, batch):
    """Return (words read, words asked for or None) of each line."""
    symbols = tasks.find(name).symbols
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        yield [symbols[t] for t in tokens], [None if t == IGNORED else symbols[t] for t in targets]


def draw(name, length, n=300, seed=0):
    return list(words_of(name, tasks.find(name).sample(length, n, seeded(seed))))


def sizes_of(name):
    task = tasks.find(name)
    return [task.lengths[0], task.lengths[1], task.train_lengths[-1], max(task.test_lengths)]


def split(read, asked):
    """Return question and answer, and check that the answer is read only after it was asked for."""
    first = next(i for i, word in enumerate(asked) if word is not None)
    answer = [word for word in asked[first:] if word is not None]
    assert asked == [None] * first + answer + [None] * (len(asked) - first - len(answer))
    assert read[first + 1 :] == (answer + ["pad"] * len(read))[: len(read) - first - 1]
    assert read[0] == "^"
    return read[1:first], read[first], answer


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


# --- distributions -------------------------------------------------------------------------------------------------


def near(counts, chances, n):
    """Five standard errors, for each class."""
    for counted, chance in zip(counts, chances, strict=True):
        assert abs(counted - n * chance) < 5 * (n * chance * (1 - chance)) ** 0.5 + 1e-9, (counts, chances)


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


# --- position streams ----------------------------------------------------------------------------------------------


def abacus_loop(words):
    found, run = [], 0
    for word in words:
        run = run + 1 if word.isdigit() else 0
        found.append(run)
    return found


def coupling_loop(name, words):
    """Equal significance, equal position: found by the number of each symbol in its own word or number."""
    mark = words.index("?")
    question, answer = words[1:mark], words[mark + 1 :]
    numbers = "".join(question).split("+")
    digits = len(numbers[0])
    up = list(range(2, digits + 3))
    own = up[:digits][::-1] if name == "addition:reversed" else up[:digits]
    answers = own[::-1] if name == "reverse" else up
    body = [p for i, _ in enumerate(numbers) for p in ([1] if i else []) + own]
    asked = iter(answers)
    after = [0 if word in (".", "pad") else next(asked) for word in answer]
    return [0, *body, digits + 2 if name == "reverse" else 1, *after]


OFFSET = [(name, stream) for name in EVERY for stream in tasks.find(name).kinds]


def test_streams_are_offered_where_they_mean_something():
    offered = {("copy", "coupling"), ("reverse", "coupling"), ("addition:reversed", "coupling")}
    assert set(OFFSET) == offered | {("addition:all_reversed", s) for s in ("abacus", "coupling")}
    assert all(tasks.find(name).streams[:2] == ("index", "randomised") for name in EVERY)


@pytest.mark.parametrize(("name", "stream"), OFFSET)
def test_a_stream_is_what_a_loop_over_the_words_finds(name, stream):
    task = tasks.find(name)
    batch = task.mixed((1, 3, 9), 60, seeded(), training=False)
    for (read, _), positions in zip(words_of(name, batch), batch.streams[stream].tolist(), strict=True):
        assert positions == (abacus_loop(read) if stream == "abacus" else coupling_loop(name, read))
    # a decoder that writes the answer itself knows the positions of what it has written
    for end in range(batch.tokens.shape[1]):
        begun = (batch.tokens[:, :end] == 2).any(1)
        assert torch.equal(task.kinds[stream](batch.tokens[:, :end])[begun], batch.streams[stream][:, :end][begun])


@pytest.mark.parametrize(("name", "stream"), OFFSET)
def test_training_offsets_reach_the_positions_of_the_longest_test(name, stream):
    task, generator = tasks.find(name), seeded()
    size, seen = task.sizes()[stream], set()
    for _ in range(400 if stream == "abacus" else 60):
        batch = task.mixed((1, 2, 5), 16, generator)
        base, shifted = task.kinds[stream](batch.tokens), batch.streams[stream]
        assert torch.equal(base == 0, shifted == 0)
        offsets = (shifted - base)[base > 0]
        assert offsets.unique().numel() == 1 or stream == "coupling"
        for row, moved in zip(base, shifted, strict=True):
            assert (moved - row)[row > 0].unique().numel() == 1  # one offset a line
        assert int(offsets.min()) >= 0
        seen |= set(shifted.unique().tolist())
    unused = {1} if name == "reverse" else set()  # nothing stands before its first word or between two
    assert seen == set(range(size)) - unused
    longest = task.sample(max(task.test_lengths), 50, seeded(), training=False)
    assert size - 3 <= int(longest.streams[stream].max()) < size


def test_randomised_positions_are_a_sorted_draw_for_the_batch():
    task, seen = tasks.find("copy"), Counter()
    size = task.sizes()["randomised"]
    assert size == 4 * task.seq_len(80)
    for training in (True, False):
        for seed in range(100):
            batch = task.mixed((2, 4), 3, seeded(seed), training=training)
            first = batch.streams["randomised"][0].tolist()
            assert first == sorted(set(first))
            assert (batch.streams["randomised"] == batch.streams["randomised"][:1]).all()
            assert batch.streams["index"].tolist() == [list(range(len(first)))] * 3
            seen.update(first)
    assert min(seen) == 0
    assert max(seen) == size - 1


# --- the contract --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_lengths_vocabulary_and_shapes(name):
    task = tasks.find(name)
    assert task.symbols[0] == "pad"
    assert len(set(task.symbols)) == len(task.symbols)
    assert set(task.train_lengths) | set(task.test_lengths) <= set(task.lengths)
    assert task.train_lengths[-1] == task.test_lengths[0]
    assert all(tasks.find(probe).symbols == task.symbols for probe in task.probes)
    batch = task.mixed(task.train_lengths, 40, seeded())
    longest = max(task.seq_len(length) for length in task.train_lengths)
    assert batch.tokens.shape == batch.targets.shape
    assert batch.tokens.shape[1] <= longest
    assert set(batch.streams) == set(task.streams)
    assert all(p.shape == batch.tokens.shape and p.dtype == torch.int64 for p in batch.streams.values())
    assert all(int(batch.streams[s].max()) < size for s, size in task.sizes().items())
    assert ((batch.targets != IGNORED).sum(1) > 0).all()
    assert int(batch.tokens.max()) < len(task.symbols)


def test_lengths_of_a_batch_are_drawn_from_those_given():
    lines = words_of("parity", tasks.find("parity").mixed((2, 5, 9), 3000, seeded()))
    lengths = Counter(read.index("?") - 1 for read, _ in lines)
    near([lengths[i] for i in (2, 5, 9)], [1 / 3] * 3, 3000)


DIGEST = """
import hashlib, torch
from posenc.study import tasks
for name in (*tasks.NAMES, *tasks.FORMATS):
    task, all_of_it = tasks.find(name), hashlib.sha256()
    generator = torch.Generator().manual_seed(7)
    for training in (True, False):
        batch = task.mixed(task.train_lengths, 20, generator, training=training)
        for part in (batch.tokens, batch.targets, *batch.streams.values()):
            all_of_it.update(str(part.tolist()).encode())
    print(name, all_of_it.hexdigest())
"""


def test_a_seed_gives_the_same_lines_in_two_processes():
    other = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True).stdout
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(DIGEST, {})
    assert other == here.getvalue()
    assert len(set(other.split())) == 2 * len(EVERY)


def test_neither_training_nor_the_streams_change_the_lines():
    task = tasks.find("addition:all_reversed")
    batches = {}
    for training in (True, False):
        generator = seeded()
        batches[training] = [task.mixed((3, 5), 9, generator, training=training) for _ in range(3)]
    for a, b in zip(*batches.values(), strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert not torch.equal(a.streams["abacus"], b.streams["abacus"])


def test_a_score_is_exact_where_all_that_counts_is_right():
    targets = torch.tensor([[IGNORED, 1, 2], [IGNORED, 1, 2], [0, IGNORED, IGNORED]])
    predictions = torch.tensor([[5, 1, 2], [5, 1, 0], [0, 4, 4]])
    logits = torch.nn.functional.one_hot(predictions, 6).float()
    for given in (predictions, logits):
        found = tasks.score(given, targets)
        assert found.exact.tolist() == [True, False, True]
        assert found.right.tolist() == [2, 1, 1]
        assert found.counted.tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("name", "length", "shown"),
    [
        ("parity", 4, r"\^( [01]){4} \? \[(Yes|No)\]"),
        ("copy", 2, r"\^( [a-z]){2} \? \[[a-z] [a-z] \.\]"),
        ("flip_flop", 4, r"w [01] r \[[01]\]"),
        ("selective_copy", 9, r"([a-n.] ){9}(\? \[[a-n]\] ?){8}"),
        ("indirect", 2, r"\^( [A-Za-z]){2} , [A-Za-z] , [+-] [01] , \[[A-Za-z]\]"),
    ],
)
def test_a_line_is_shown_with_its_answer_in_brackets(name, length, shown):
    task = tasks.find(name)
    batch = task.mixed((length,), 3, seeded())
    assert all(re.fullmatch(shown, task.show(batch, i)) for i in range(3)), task.show(batch, 0)


def test_cards_are_plain_and_complete():
    cards = {card["name"]: card for card in tasks.cards()}
    assert list(cards) == EVERY
    assert cards["addition:reversed"]["arxiv"] == "2405.20671"
    assert cards["flip_flop"]["probes"] == ["flip_flop:sparse", "flip_flop:dense"]
    assert all(card["format"] and card["paper"] and card["example"] for card in cards.values())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tasks.find("additon"), r"unknown task 'additon': did you mean 'addition'"),
        (lambda: tasks.find("addition:hint"), r"did you mean 'addition:hints'"),
        (lambda: tasks.find("zzz"), r"unknown task 'zzz'\. Known: addition, copy"),
        (lambda: tasks.find("copy").sample(0, 1, seeded()), r"lengths up to the longest.*got n=1 and lengths \[0\]"),
        (lambda: tasks.find("copy").sample(81, 1, seeded()), r"the longest of the tests, 80.*Give longest="),
        (lambda: tasks.find("copy").mixed((), 1, seeded()), r"got n=1 and lengths \[\]"),
        (lambda: tasks.find("recall").sample(12, 1, seeded()), r"8 to 512, in steps of 8 .*keys.*got 12"),
        (lambda: tasks.find("indirect").sample(60, 1, seeded(), longest=60), r"2 to 52 \(a length is: letters"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
