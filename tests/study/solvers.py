"""What solves the synthetic tasks by reading their lines as text, written from the papers' definitions."""

from itertools import pairwise

import torch

from posenc.study import tasks
from posenc.study.tasks.task import IGNORED


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


def near(counts, chances, n):
    """Five standard errors, for each class."""
    for counted, chance in zip(counts, chances, strict=True):
        assert abs(counted - n * chance) < 5 * (n * chance * (1 - chance)) ** 0.5 + 1e-9, (counts, chances)
