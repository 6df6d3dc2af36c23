"""FlexAttention's masks: which blocks are left out, and which masks are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask

from attention.flex_calls import called
from posenc.attention import flex_masks
from posenc.attention.call import Call
from strategies import check


@st.composite
def masks(draw: st.DrawFn) -> tuple[int, int, dict[str, Any]]:
    """Lengths and masks by index: all that becomes blocks."""
    q_len, k_len = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    options: dict[str, Any] = {"causal": draw(st.booleans()), "window": draw(st.none() | st.integers(1, 12))}
    rows = st.lists(st.integers(0, 2), min_size=k_len, max_size=k_len)
    if q_len <= k_len and draw(st.booleans()):
        rising = draw(st.booleans())
        ids = torch.tensor([draw(rows), draw(rows)])
        ids = ids if draw(st.booleans()) else ids[0]
        options["document_ids"] = ids.sort(-1)[0] if rising else ids
    if draw(st.booleans()):
        shown = torch.tensor([draw(rows) for _ in range(draw(st.integers(1, 2)))]) > 0
        options["mask"] = shown[:, None, None]
    return q_len, k_len, options


@given(masks())
@check(200)
def test_blocks_that_are_left_out_hold_no_pair_and_full_ones_hold_all(lengths_and_masks: Any) -> None:
    q_len, k_len, options = lengths_and_masks
    call = called(q_len, k_len, **options)
    allowed = call.allowed()
    if (what := flex_masks.hidden(call)) is None:
        assert allowed is None
        return
    assert allowed is not None
    some, full = flex_masks.seen_blocks(what._replace(size=4))
    allowed = allowed.expand(call.shape)[:, 0]
    b, i, j = torch.arange(2)[:, None, None], torch.arange(q_len)[:, None], torch.arange(k_len)
    assert torch.equal(flex_masks.mask_mod(what)(b, 0 * b, i, j).expand_as(allowed), allowed)
    padded = F.pad(allowed, (0, -k_len % 4, 0, -q_len % 4)).unflatten(-1, (-1, 4)).unflatten(-3, (-1, 4))
    anything, everything = (how(how(padded, -1), -2) for how in (torch.any, torch.all))
    assert not bool((anything & ~some).any())
    assert not bool((full & ~everything).any())
    if call.document_ids is None and call.mask is None:
        assert torch.equal(full.expand_as(everything), everything)
        assert torch.equal(some.expand_as(anything), anything)


def same_as_torch_s(call: Call) -> bool:
    """Whether a block mask is the one that torch makes by looking at each pair."""
    got, what = flex_masks.block_mask(call), flex_masks.hidden(call)
    assert got is not None
    assert what is not None
    rows = 2 if what.keys is not None else None
    wanted = create_block_mask(flex_masks.mask_mod(what), rows, None, *call.shape[2:], device="cpu")
    counts = ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks")
    alike = all(torch.equal(getattr(got, name), getattr(wanted, name)) for name in counts)
    return alike and torch.equal(got.to_dense(), wanted.to_dense())


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "causal": (300, {}),
    "cache": (40, {"window": 100}),
    "another window": (40, {"window": 101}),
    "both ways": (300, {"causal": False, "window": 90}),
    "more queries than keys": (400, {}),
    "documents": (300, {"document_ids": (torch.arange(300) >= 130).long()}),
    "padding": (300, {"mask": (torch.arange(300) < torch.tensor([[50], [260]]))[:, None, None], "causal": False}),
}


@pytest.mark.compiles  # torch counts the arguments of a function, which shape checks hide
def test_blocks_are_those_that_torch_finds_pair_by_pair() -> None:
    for name, (q_len, options) in [*CASES.items(), *CASES.items()]:  # and as they are kept
        assert same_as_torch_s(called(q_len, 300, **options)), name


def test_nothing_is_built_where_everybody_sees_everybody() -> None:
    assert flex_masks.block_mask(called(5, 7, causal=False)) is None


@pytest.mark.compiles
def test_masks_by_index_are_kept_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(n: int = 300, **options: Any) -> Any:
        return flex_masks.block_mask(called(n, 300, **options))

    flex_masks._kept.cache_clear()
    with torch.inference_mode():
        first = built()
    assert not first.kv_indices.is_inference()  # of which no later call could have gradients
    assert built() is built(mask=torch.zeros(300, 300)) is first  # a floating mask joins the scores
    for hiding in ({"document_ids": torch.zeros(300)}, {"mask": torch.ones(1, 300).bool()}):
        assert built(**hiding) is not built(**hiding)
    of_torch = next(iter(torch.export.export(torch.nn.Identity(), (torch.ones(2),)).graph.nodes)).meta["val"]
    with of_torch.fake_mode:
        assert isinstance(built().kv_indices, type(of_torch))
    assert built() is first
    for n in range(1, 2 * flex_masks.KEPT):
        built(n)
    assert flex_masks._kept.cache_info().currsize == flex_masks.KEPT
    assert built() is not first
    monkeypatch.setattr(flex_masks, "LARGEST", 8)  # blocks, where there are nine
    assert built() is not built()
