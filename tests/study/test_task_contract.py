"""What every synthetic task keeps to: shapes, seeds, scores, printed lines, refusals."""

import contextlib
import io
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch

from posenc.study import tasks
from posenc.study.tasks.task import IGNORED
from study.solvers import EVERY, near, seeded, words_of


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
        (lambda: tasks.find("copy").sample(81, 1, seeded()), r"the longest test length, 80.*Give longest="),
        (lambda: tasks.find("copy").mixed((), 1, seeded()), r"got n=1 and lengths \[\]"),
        (lambda: tasks.find("recall").sample(12, 1, seeded()), r"8 to 512, in steps of 8 .*keys.*got 12"),
        (lambda: tasks.find("indirect").sample(60, 1, seeded(), longest=60), r"2 to 52 \(a length counts letters"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
