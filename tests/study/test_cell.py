import math

import pytest
import torch

import strategies
from posenc.study import cell, memory
from posenc.study.config import Cell, Config
from posenc.study.subjects import Reading, Solving
from posenc.study.text import Text

SIZE = "32x2x2"
CONFIG = Config(train_len=8, test_lens=(8, 16, 32), sizes=(SIZE,), windows=6, tokens_per_step=256, lines=40)
CPU = torch.device("cpu")


def text_cell(encoding, seed=0):
    return Cell(encoding, "text", SIZE, seed)


@pytest.fixture(scope="module")
def subject():
    words = torch.randint(7, (600,), generator=torch.Generator().manual_seed(0))
    return Reading(CONFIG, Text("", bytes(words.tolist()), ""))


def test_shared_parts_are_the_same_for_every_encoding_of_a_seed(subject):
    models = {name: cell.build(CONFIG, subject, text_cell(name, 3)) for name in strategies.HOSTED}
    shared = [{n: p for n, p in m.named_parameters() if not n.startswith("encoding.")} for m in models.values()]
    for other in shared[1:]:
        assert other.keys() == shared[0].keys()
        assert all(torch.equal(other[name], shared[0][name]) for name in other)
    another = dict(cell.build(CONFIG, subject, text_cell("nope", 4)).named_parameters())
    assert not torch.equal(another["head.weight"], shared[0]["head.weight"])


def test_batches_depend_on_the_seed_alone(subject):
    def batches(name, seed):
        this = text_cell(name, seed)
        model, seen = cell.build(CONFIG, subject, this), []
        model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
        list(cell.train(model, CONFIG, subject, this, steps=3))
        return torch.stack(seen)

    assert torch.equal(batches("rope", 0), batches("t5", 0))
    assert not torch.equal(batches("rope", 0), batches("rope", 1))


def test_the_same_bytes_are_the_targets_at_every_length(subject):
    """A model that knows each byte's number of occurrences, whatever the context: every length gives the same."""
    counts = torch.bincount(subject.train, minlength=7).float()

    class Counting(torch.nn.Module):
        def forward(self, tokens, last):
            return counts.log().expand(tokens.shape[0], last, 7)

    found = [subject.measure(Counting(), CPU, n, last=4) for n in CONFIG.test_lens]
    assert all(torch.equal(bits, found[0]) for bits in found)
    ends = torch.linspace(32, len(subject.held_out) - 1, 6).long()
    wanted = -(counts / counts.sum()).log2()[subject.held_out[ends]]
    torch.testing.assert_close(found[0][:, -1], wanted)


def test_bits_are_those_of_a_model_that_knows_nothing(subject):
    class Ignorant(torch.nn.Module):
        def forward(self, tokens, last):
            return torch.zeros(tokens.shape[0], last, 7)

    bits = subject.measure(Ignorant(), CPU, 16, last=8)
    torch.testing.assert_close(bits, torch.full((6, 8), math.log2(7)))


def test_a_cell_reports_what_it_did(subject):
    heard = []
    outcome = cell.run(CONFIG, subject, text_cell("t5"), 25, heard.append)
    result = outcome.result
    assert [seen["step"] for seen in heard] == [10, 20, 25]
    assert list(result["bits_by_length"]) == ["8", "16", "32"]
    assert result["position_parameters"] == 32 * 2  # T5's buckets times heads
    assert result["parameters"] == sum(p.numel() for p in outcome.model.parameters())
    assert len(result["bits_by_position"]["edges"]) == len(result["bits_by_position"]["bits"]) + 1
    assert result["bits_by_position"]["edges"][-1] == 32
    # random symbols cannot be guessed: near log2(7), which is above what this text demands
    assert abs(result["bits_by_length"]["8"] - math.log2(7)) < 0.5
    assert result["undertrained"] is True
    assert result["peak_mib"] is None or result["peak_mib"] >= 0


@pytest.mark.parametrize("name", ["nope", "binary"])
def test_what_cannot_learn_order_is_never_called_undertrained(subject, name):
    assert cell.run(CONFIG, subject, text_cell(name), 2, lambda _: None).result["undertrained"] is False


def test_training_lowers_the_loss_of_a_text_with_order():
    orderly = Reading(CONFIG, Text("", bytes(range(7)) * 80, ""))
    result = cell.run(CONFIG, orderly, text_cell("rope"), 60, lambda _: None).result
    assert result["bits_by_length"]["8"] < 0.3
    assert not result["undertrained"]


class Answering(torch.nn.Module):
    """Know a task's answers, but for those of lines of some length; positions are those of the stream."""

    def __init__(self, solving, wrong=()):
        super().__init__()
        self.answers = {}
        for length in solving.tested:
            lines = solving.task.sample(length, 40, torch.Generator().manual_seed(2**31 - 1), training=False)
            for tokens, targets, pos in zip(lines.tokens, lines.targets, lines.streams[solving.stream], strict=True):
                answer = targets.clamp_min(0) if length not in wrong else targets.clamp_min(0).roll(1)
                self.answers[tuple(tokens.tolist())] = answer, pos

    def forward(self, tokens, pos):
        known = [self.answers[tuple(line.tolist())] for line in tokens]
        assert torch.equal(pos, torch.stack([pos for _, pos in known]))
        return torch.nn.functional.one_hot(torch.stack([answer for answer, _ in known])).float()


@pytest.mark.parametrize("label", ["copy", "addition:all_reversed@abacus", "copy@coupling"])
def test_a_model_that_knows_every_answer_solves_every_length_and_one_that_errs_does_not(label):
    solving = Solving(CONFIG, label)
    right, wrong = solving.tested[0], solving.tested[-1]
    found = solving.test(Answering(solving, wrong={wrong}), CPU)
    assert found["exact_by_length"][str(right)] == found["right_by_length"][str(right)] == 1.0
    assert found["exact_by_length"][str(wrong)] == 0.0
    assert found["right_by_length"][str(wrong)] < 0.6
    this = Cell("rope", label, SIZE, 0)
    assert not solving.undertrained(this, found)
    assert solving.undertrained(this, solving.test(Answering(solving, wrong=solving.tested), CPU))


def test_a_cell_of_a_task_reports_shares_by_length_and_its_probes():
    this = Cell("alibi", "flip_flop", SIZE, 0)
    result = cell.run(CONFIG, Solving(CONFIG, "flip_flop"), this, 3, lambda _: None).result
    lengths = [str(n) for n in CONFIG.lengths_of("flip_flop")[1]]
    assert list(result["exact_by_length"]) == list(result["right_by_length"]) == lengths
    assert result["probes"].keys() == {"flip_flop:sparse", "flip_flop:dense"}
    assert [result[part] for part in Cell._fields] == list(this)


def test_memory_that_is_used_and_freed_is_seen():
    before = memory.start()
    if before is None:
        pytest.skip("this system does not tell a process its peak memory")
    block = torch.ones(32 * 2**18)  # 32 MiB
    del block
    assert 30 <= memory.grown(before) < 60
