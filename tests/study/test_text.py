import hashlib
import math

import pytest
import torch

from posenc.study.config import Config
from posenc.study.text import BUILT_IN, Text, load

SMALL = Config(train_len=8, test_lens=(8, 16))


def test_the_built_in_text_is_the_prose_of_this_python():
    text = load([], Config())
    assert text.name == BUILT_IN == "pydoc_data.topics"
    assert len(text.data) > 400_000
    assert b"assignment" in text.data
    facts = text.facts(Config())
    assert facts["sha256"] == hashlib.sha256(text.data).hexdigest()
    assert facts["train_bytes"] + facts["test_bytes"] == len(text.data)
    assert text.undertrained_above == 3.2
    assert 4.6 < text.entropy < 4.8  # so 3.2 bits is well below what byte counts alone give


def test_files_are_read_in_order_and_split_without_overlap(tmp_path):
    for name, words in (("a.txt", b"abcd" * 20), ("b.txt", b"wxyz" * 20)):
        (tmp_path / name).write_bytes(words)
    text = load([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")], SMALL)
    assert text.data == b"wxyz" * 20 + b"\n" + b"abcd" * 20
    train, test = text.split(SMALL)
    back = bytes(text.alphabet[i] for i in torch.cat((train, test)))
    assert back == text.data
    assert len(test) == 32  # two longest windows, more than a tenth of 161 bytes


def test_entropy_is_that_of_the_counts():
    assert math.isclose(Text("t", b"aabc", "").entropy, 1.5)  # 1/2 log 2 + 2 * 1/4 log 4


@pytest.mark.parametrize(
    ("words", "said"),
    [(b"", "the text is empty"), (b"ab" * 20, "too short: 40 bytes.*needs 64"), (b"a" * 100, "repeats a single byte")],
)
def test_a_text_that_cannot_serve_is_refused(tmp_path, words, said):
    (tmp_path / "t.txt").write_bytes(words)
    with pytest.raises(ValueError, match=said):
        load([str(tmp_path / "t.txt")], SMALL)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read --text .*missing.txt: No such file"):
        load([str(tmp_path / "missing.txt")], SMALL)
    with pytest.raises(ValueError, match="Is a directory"):
        load([str(tmp_path)], SMALL)


def test_what_the_built_in_text_tests_was_not_read_in_training():
    config = Config()
    text = load([], config)
    n = text.facts(config)["train_bytes"]
    train, test = text.data[:n], text.data[n:]
    windows = [test[i : i + 96] for i in range(0, len(test) - 96, 61)]
    # phrases come back in any prose, passages must not: none here, and few in another Python's edition
    assert sum(window in train for window in windows) < 0.01 * len(windows)
