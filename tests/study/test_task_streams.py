"""Position streams of the synthetic tasks against loops over the words."""

from collections import Counter

import pytest
import torch

from posenc.study import tasks
from study.solvers import EVERY, seeded, words_of


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
