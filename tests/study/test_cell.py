import math

import pytest
import torch

import strategies
from posenc.study import cell, memory
from posenc.study.config import Config

CONFIG = Config(train_len=8, test_lens=(8, 16, 32), windows=6, tokens_per_step=256, d_model=32, n_heads=2)


@pytest.fixture(scope="module")
def data():
    words = torch.randint(7, (600,), generator=torch.Generator().manual_seed(0))
    return cell.Data(words[:500], words[500:], 7, undertrained_above=2.0)


def test_shared_parts_and_batches_are_the_same_for_every_encoding_of_a_seed(data):
    models = {name: cell.build(CONFIG, data, name, seed=3) for name in strategies.HOSTED}
    shared = [{n: p for n, p in m.named_parameters() if not n.startswith("encoding.")} for m in models.values()]
    for other in shared[1:]:
        assert other.keys() == shared[0].keys()
        assert all(torch.equal(other[name], shared[0][name]) for name in other)
    another = dict(cell.build(CONFIG, data, "nope", seed=4).named_parameters())
    assert not torch.equal(another["head.weight"], shared[0]["head.weight"])


def test_batches_depend_on_the_seed_alone(data, monkeypatch):
    def batches(name, seed):
        model, seen = cell.build(CONFIG, data, name, seed), []
        model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
        list(cell.train(model, CONFIG, data, seed, steps=3))
        return torch.stack(seen)

    assert torch.equal(batches("rope", 0), batches("t5", 0))
    assert not torch.equal(batches("rope", 0), batches("rope", 1))


def test_the_same_bytes_are_the_targets_at_every_length(data):
    """A model that knows each byte's number of occurrences, whatever the context: every length gives the same."""
    counts = torch.bincount(data.train, minlength=7).float()

    class Counting(torch.nn.Module):
        def forward(self, tokens, last):
            return counts.log().expand(tokens.shape[0], last, 7)

    found = [cell.measure(Counting(), CONFIG, data, n, last=4, windows=6) for n in CONFIG.test_lens]
    assert all(torch.equal(bits, found[0]) for bits in found)
    ends = torch.linspace(32, len(data.test) - 1, 6).long()
    wanted = -(counts / counts.sum()).log2()[data.test[ends]]
    torch.testing.assert_close(found[0][:, -1], wanted)


def test_bits_are_those_of_a_model_that_knows_nothing(data):
    class Ignorant(torch.nn.Module):
        def forward(self, tokens, last):
            return torch.zeros(tokens.shape[0], last, 7)

    bits = cell.measure(Ignorant(), CONFIG, data, 16, last=8, windows=6)
    torch.testing.assert_close(bits, torch.full((6, 8), math.log2(7)))


def test_a_cell_reports_what_it_did(data):
    heard = []
    outcome = cell.run(CONFIG, data, "t5", 0, 25, lambda step, bits: heard.append((step, bits)))
    result = outcome.result
    assert [step for step, _ in heard] == [10, 20, 25]
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
def test_what_cannot_learn_order_is_never_called_undertrained(data, name):
    assert cell.run(CONFIG, data, name, 0, 2, lambda *_: None).result["undertrained"] is False


def test_training_lowers_the_loss_of_a_text_with_order(data):
    pattern = torch.arange(7).repeat(80)
    orderly = cell.Data(pattern[:480], pattern[480:], 7, 2.0)
    result = cell.run(CONFIG, orderly, "rope", 0, 60, lambda *_: None).result
    assert result["bits_by_length"]["8"] < 0.3
    assert not result["undertrained"]


def test_memory_that_is_used_and_freed_is_seen():
    before = memory.start()
    if before is None:
        pytest.skip("this system does not tell a process its peak memory")
    block = torch.ones(32 * 2**18)  # 32 MiB
    del block
    assert 30 <= memory.grown(before) < 60
