"""Positions of one sequence on several ranks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import positions
from strategies import check, normal, refuses

ORDERS = ("contiguous", "zigzag")


def shards(seq_len: int, world_size: int, order: Any, **options: Any) -> list[torch.Tensor]:
    return [
        positions.sharded(seq_len, rank=r, world_size=world_size, order=order, **options) for r in range(world_size)
    ]


@given(st.integers(1, 9), st.integers(0, 5), st.sampled_from(ORDERS), st.integers(-50, 10**9))
@check()
def test_the_ranks_hold_each_position_once_and_equally_many(world: int, chunk: int, order: Any, start: int) -> None:
    n = 2 * world * chunk
    parts = shards(n, world, order, start=start)
    assert {len(part) for part in parts} == {n // world}
    assert torch.cat(parts).sort().values.tolist() == list(range(start, start + n))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


@given(st.integers(1, 9), st.integers(1, 5))
@check(20)
def test_zigzag_gives_each_rank_the_same_work_and_contiguous_does_not(world: int, chunk: int) -> None:
    n = 2 * world * chunk
    seen = {order: [int((part + 1).sum()) for part in shards(n, world, order)] for order in ORDERS}  # keys looked at
    assert len(set(seen["zigzag"])) == 1
    assert seen["contiguous"] == sorted(seen["contiguous"])
    assert len(set(seen["contiguous"])) == world


def test_zigzag_pairs_the_first_chunk_with_the_last() -> None:
    parts = shards(16, 4, "zigzag")
    assert [part.tolist() for part in parts] == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]
    assert [part.tolist() for part in shards(8, 4, "contiguous", start=3)] == [[3, 4], [5, 6], [7, 8], [9, 10]]
    # without gaps, an odd number of tokens a rank will do
    assert [part.tolist() for part in shards(6, 2, "contiguous")] == [[0, 1, 2], [3, 4, 5]]
    assert positions.sharded(4, rank=0, world_size=1, order="zigzag").tolist() == [0, 1, 2, 3]
    assert positions.sharded(4, rank=1, world_size=2, device="meta").device.type == "meta"


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_zigzag_is_the_order_of_torch(world: int) -> None:
    """What torch's own context parallelism gives to its ranks, and how it puts them back."""
    balancer = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    theirs = balancer._HeadTailLoadBalancer(12 * world, world, "cpu")
    ours = torch.cat(shards(12 * world, world, "zigzag"))
    assert ours.tolist() == theirs._generate_indices()[0].tolist()
    assert ours.argsort().tolist() == theirs._generate_indices(restore=True)[0].tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_what_ranks_turn_is_what_one_turns(world: int, order: Any) -> None:
    rope, pos = posenc.RoPE(head_dim=8), positions.packed(torch.tensor([0] * 5 + [1] * 7))
    q, k = normal(2, 4, 12, 8), normal(2, 2, 12, 8, seed=1)
    parts = shards(12, world, order)
    back = torch.cat(parts).argsort()
    turned = [rope.rotate(q[:, :, i], k[:, :, i], rope.place(pos[i], dtype=torch.float64)) for i in parts]
    whole = rope.rotate(q, k, rope.place(pos, dtype=torch.float64))
    for got, wanted in zip((torch.cat(each, 2)[:, :, back] for each in zip(*turned, strict=True)), whole, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "xpos", "transformer_xl"])
def test_ranks_that_see_all_keys_attend_as_one(name: str, order: Any) -> None:
    """Keys stand in the order of the ranks, so that who is before whom is a mask by position."""
    torch.manual_seed(0)
    encoding = posenc.create(name, dims=posenc.Dims(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8)).double()
    q, k, v = normal(2, 4, 24, 8), normal(2, 2, 24, 8, seed=1), normal(2, 2, 24, 8, seed=2)
    whole = posenc.attend(q, k, v, encoding, positions.arange(24), backend="reference-float64")
    parts = shards(24, 3, order)
    keys = torch.cat(parts)
    for pos in parts:
        mask = keys <= pos[:, None]
        given = q[:, :, pos], k[:, :, keys], v[:, :, keys], encoding, pos, keys
        got = posenc.attend(*given, causal=False, mask=mask)
        torch.testing.assert_close(got, whole[:, :, pos], rtol=0, atol=1e-9)


def test_contiguous_shards_are_causal_by_index_up_to_their_own_last_key() -> None:
    """Then no mask is needed: keys from the first one to the rank's last, aligned at the end."""
    alibi, (q, k, v) = posenc.ALiBi(n_heads=4), (normal(1, 4, 12, 8, seed=i) for i in range(3))
    whole = posenc.attend(q, k, v, alibi, positions.arange(12))
    for pos in shards(12, 3, "contiguous"):
        keys = positions.arange(int(pos[-1]) + 1)
        got = posenc.attend(q[:, :, pos], k[:, :, keys], v[:, :, keys], alibi, pos, keys)
        torch.testing.assert_close(got, whole[:, :, pos], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "options", "words"),
    [
        (10, {"rank": 0, "world_size": 4}, ["multiple of 4", "one chunk", "got seq_len=10", "Pad the sequence to 12"]),
        (
            12,
            {"rank": 0, "world_size": 4, "order": "zigzag"},
            ["multiple of 8", "two chunks", "Pad the sequence to 16"],
        ),
        (-4, {"rank": 0, "world_size": 2}, ["non-negative", "got seq_len=-4"]),
        (8, {"rank": 2, "world_size": 2}, ["rank must be one of 0 .. world_size - 1", "rank=2, world_size=2"]),
        (8, {"rank": -1, "world_size": 2}, ["rank=-1"]),
        (8, {"rank": 0, "world_size": 0}, ["world_size=0"]),
        (8, {"rank": 0, "world_size": 2, "order": "striped"}, ["order must be 'contiguous' or 'zigzag'", "'striped'"]),
    ],
)
def test_sequences_that_no_ranks_can_share(n: int, options: dict[str, Any], words: list[str]) -> None:
    with refuses(ValueError, "positions.sharded:", *words):
        positions.sharded(n, **options)


def test_one_sequence_is_counted_as_it_is_in_a_batch() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    for count in (positions.left_padded, positions.padded):
        assert torch.equal(torch.stack([count(row) for row in mask]), count(mask))
    assert positions.packed(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)
