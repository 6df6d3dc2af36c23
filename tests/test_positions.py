"""Makers and checks of positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import positions
from posenc.definitions.positions import mrope_positions
from strategies import INTEGERS, check, normal, refuses

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(st.integers(0, 20), st.integers(-1000, 1_000_000))
@check()
def test_arange_counts_from_start(n: int, start: int) -> None:
    assert positions.arange(n, start=start).tolist() == list(range(start, start + n))
    assert positions.continued(start, n).tolist() == list(range(start, start + n))
    assert positions.arange(n).dtype == torch.int64


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from([torch.bool, torch.int64]))
@check()
def test_left_padded_counts_real_tokens(pads: list[int], dtype: torch.dtype) -> None:
    mask = torch.tensor([[0] * pad + [1] * (6 - pad) for pad in pads], dtype=dtype)
    wanted = [[0] * pad + list(range(6 - pad)) for pad in pads]
    assert positions.left_padded(mask).tolist() == wanted


def test_left_padded_row_without_tokens() -> None:
    assert positions.left_padded(torch.zeros(1, 3)).tolist() == [[0, 0, 0]]


@given(LENGTHS)
@check()
def test_packed_restarts_at_each_document(lengths: list[int]) -> None:
    wanted = [i for length in lengths for i in range(length)]
    ids = [(7 * number) % 5 for number, length in enumerate(lengths) for _ in range(length)]
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    # documents of length 0 may bring two equal ids together; give neighbours their own
    shown = [number for number, length in enumerate(lengths) for _ in range(length)]
    assert positions.packed(torch.tensor(shown, dtype=torch.int64)).tolist() == wanted
    for dtype in (torch.int32, torch.int64):
        cu_seqlens = torch.tensor(bounds, dtype=dtype)
        assert positions.packed(cu_seqlens=cu_seqlens).tolist() == wanted
        padded = positions.packed(cu_seqlens=cu_seqlens, total=len(wanted) + 2)
        assert padded.tolist() == [*wanted, 0, 1]
    if 0 not in lengths:
        assert positions.packed(torch.tensor(ids)).tolist() == wanted


def test_packed_takes_a_batch_and_ids_that_come_back() -> None:
    ids = torch.tensor([[3, 3, 1, 1, 3], [0, 0, 0, 0, 9]])
    assert positions.packed(ids).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 3, 0]]


def test_packed_takes_one_of_two() -> None:
    ids = torch.tensor([0, 0])
    with refuses(TypeError, "either document_ids or cu_seqlens", "got none or both"):
        positions.packed()
    with refuses(TypeError, "either document_ids or cu_seqlens"):
        positions.packed(ids, cu_seqlens=ids)
    with refuses(TypeError, "total belongs to cu_seqlens"):
        positions.packed(ids, total=2)


@pytest.mark.compiles
def test_bounds_whose_total_is_given_stay_in_one_graph() -> None:
    compiled = torch.compile(lambda cu: positions.packed(cu_seqlens=cu, total=5), fullgraph=True, backend="aot_eager")
    assert compiled(torch.tensor([0, 3, 5])).tolist() == [0, 1, 2, 0, 1]


@given(st.integers(1, 4), st.integers(1, 4))
@check(20)
def test_grid_is_row_major(h: int, w: int) -> None:
    assert positions.grid(h, w).tolist() == [[row, column] for row in range(h) for column in range(w)]


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.uint64])
def test_any_integer_dtype_becomes_int64(dtype: torch.dtype) -> None:
    checked = positions.check(torch.tensor([0, 3, 127]).to(dtype), 1, "RoPE")
    assert checked.dtype == torch.int64
    assert checked.tolist() == [0, 3, 127]


def test_real_positions_become_float64() -> None:
    checked = positions.check(torch.tensor([0.5, -2.25], dtype=torch.float32), 1, "RoPE")
    assert checked.dtype == torch.float64
    assert checked.tolist() == [0.5, -2.25]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_other_kinds_are_refused(dtype: torch.dtype) -> None:
    with refuses(TypeError, "RoPE: positions must be integers, float32 or float64", f"got {dtype}", "arange"):
        positions.check(torch.zeros(3).to(dtype), 1, "RoPE")


def test_the_reason_against_half_precision() -> None:
    assert torch.tensor(257.0, dtype=torch.bfloat16) == torch.tensor(256.0, dtype=torch.bfloat16)
    with refuses(TypeError, "cannot distinguish 256 from 257"):
        posenc.RoPE(head_dim=4).place(torch.tensor([257.0], dtype=torch.bfloat16))


def test_positions_are_tensors() -> None:
    with refuses(TypeError, "ALiBi: pos must be a tensor of positions; got list", "positions.arange(seq_len)"):
        positions.check([0, 1], 1, "ALiBi")


@pytest.mark.parametrize(
    ("shape", "n_axes", "words"),
    [
        ((), 1, ["(seq_len,) or (batch, seq_len)", "1 position axis", "got ()"]),
        ((2, 3, 2), 1, ["got (2, 3, 2)", "OnAxes"]),
        ((3,), 2, ["(seq_len, 2) or (batch, seq_len, 2)", "2 position axes", "positions.grid"]),
        ((2, 3), 2, ["got (2, 3)"]),
        ((4, 2, 3, 2), 2, ["got (4, 2, 3, 2)"]),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], n_axes: int, words: list[str]) -> None:
    with refuses(ValueError, "who: works on", *words):
        positions.check(torch.zeros(shape, dtype=torch.int64), n_axes, "who")


@pytest.mark.parametrize(("shape", "n_axes"), [((3,), 1), ((2, 3), 1), ((3, 2), 2), ((4, 3, 2), 2), ((0,), 1)])
def test_shapes_that_fit(shape: tuple[int, ...], n_axes: int) -> None:
    assert positions.check(torch.zeros(shape, dtype=torch.int32), n_axes, "who").shape == shape


@pytest.mark.parametrize(("pos", "bad"), [([0, 8], 8), ([-1, 3], -1), ([-5, 12], -5)])
def test_range(pos: list[int], bad: int) -> None:
    with refuses(ValueError, "Learned: positions must lie in 0..7", "because of max_len", f"got position {bad}"):
        positions.check_range(torch.tensor(pos), 8, "Learned", "of max_len")
    positions.check_range(torch.tensor([0, 7]), 8, "Learned", "of max_len")


def test_range_does_not_read_a_device() -> None:
    positions.check_range(torch.empty(3, dtype=torch.int64, device="meta"), 1, "Learned", "it would stall")
    positions.check_range(torch.empty(0, dtype=torch.int64), 1, "Learned", "nothing is there")


def test_makers_put_positions_on_the_device() -> None:
    made = [positions.arange(2, device="meta"), positions.continued(1, 2, device="meta")]
    made.append(positions.grid(2, 2, device="meta"))
    assert {pos.device.type for pos in made} == {"meta"}


@pytest.mark.compiles
def test_makers_compile_for_any_length() -> None:
    def make(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return positions.left_padded(mask), positions.packed(mask)

    fast = torch.compile(make, backend="eager", fullgraph=True, dynamic=True)
    for n in (5, 9):
        mask = (normal(2, n, seed=n) > 0).long().sort(-1).values
        for got, wanted in zip(fast(mask), make(mask), strict=True):
            assert torch.equal(got, wanted)


def test_text_with_pictures_goes_on_after_the_largest_number_and_frames_are_apart() -> None:
    pos = positions.mrope([2, (3, 1, 2), 1], time_step=4)
    assert pos[:, 0].tolist() == [0, 1, 2, 2, 6, 6, 10, 10, 11]
    assert pos[:, 1].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 11]
    assert pos[:, 2].tolist() == [0, 1, 2, 3, 2, 3, 2, 3, 11]
    assert positions.mrope([]).shape == (0, 3)
    assert positions.mrope([0, 2]).tolist() == [[0, 0, 0], [1, 1, 1]]


STEPPED = [  # frames of one cell each with text around them; the numbers of the time axis, by hand
    (1.5, "all_axes", [3, (4, 1, 1), 1], [0, 1, 2, 3, 4, 6, 7, 8]),
    (1.5, "sides", [3, (4, 1, 1), 1], [0, 1, 2, 3, 4, 6, 7, 4]),
    (0.5, "all_axes", [(5, 1, 1), 1], [0, 0, 1, 1, 2, 3]),
    ([2, 3], "all_axes", [1, (2, 1, 1), (2, 1, 1)], [0, 1, 3, 4, 7]),
    ([2, 3], "sides", [1, (2, 1, 1), (2, 1, 1)], [0, 1, 3, 2, 5]),
    ([1, 1.5], "all_axes", [(1, 1, 3), 2, (3, 1, 1)], [0, 0, 0, 3, 4, 5, 6, 8]),
    (torch.tensor([2.0]), "all_axes", [torch.tensor([2, 1, 1]), 1], [0, 2, 3]),
    (0, "all_axes", [(3, 1, 1), 1], [0, 0, 0, 1]),
]


@pytest.mark.parametrize(("step", "next_after", "parts", "wanted"), STEPPED)
def test_frames_are_a_step_apart_and_floored_and_what_follows_is_named(step, next_after, parts, wanted) -> None:
    assert positions.mrope(parts, time_step=step, next_after=next_after)[:, 0].tolist() == wanted
    plain = [part if isinstance(part, int) else tuple(map(int, part)) for part in parts]
    defined = mrope_positions(plain, step, next_after=next_after)
    assert defined.tolist() == positions.mrope(parts, time_step=step, next_after=next_after).T.tolist()


@pytest.mark.parametrize(
    ("parts", "options", "kind", "words"),
    [
        ([(2, 1, 1)], {"time_step": [1, 2]}, ValueError, "one for each of the 1 pictures and videos; got 2"),
        ([(2, 1, 1)], {"time_step": -1.0}, ValueError, "time_step must be a finite number, 0 or more; got -1.0"),
        ([(2, 1, 1)], {"time_step": float("nan")}, ValueError, "time_step must be a finite number"),
        ([2], {"next_after": "max"}, ValueError, "next_after must be 'all_axes' or 'sides'; got 'max'"),
        ([(2, 1)], {}, TypeError, "a part must be a number of text tokens, or (frames, rows, columns)"),
        ([2.5], {}, TypeError, "got 2.5"),
        ([-1], {}, ValueError, "the sizes of a part must be 0 or more; got -1"),
    ],
)
def test_what_mrope_does_not_take(parts, options, kind, words) -> None:
    with refuses(kind, "positions.mrope: ", words):
        positions.mrope(parts, **options)


def test_positions_of_hugging_face_put_the_axes_last() -> None:
    ids = torch.arange(24).reshape(3, 2, 4)
    assert positions.from_hf(ids)[1, 2].tolist() == [6, 14, 22]


def test_text_on_each_axis() -> None:
    pos = torch.tensor([[4, 7], [0, 2]])
    placed = positions.on_each_axis(pos, 3)
    assert placed.tolist() == [[[4] * 3, [7] * 3], [[0] * 3, [2] * 3]]
    assert torch.equal(positions.on_each_axis(torch.arange(5), 3), positions.mrope([5]))
    assert positions.on_each_axis(pos, 1) is pos


def test_a_tree_in_any_order_has_the_depth_of_each_node() -> None:
    """A chain, a fork whose children stand before it, and two roots."""
    parents = torch.tensor([[-1, 0, 1, 2], [3, 3, 0, -1], [-1, -1, 0, 1]])
    assert positions.tree(parents).tolist() == [[0, 1, 2, 3], [1, 1, 2, 0], [0, 0, 1, 1]]
    assert positions.tree(parents.int(), start=7)[0].tolist() == [7, 8, 9, 10]
    assert positions.tree(torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_the_unit_grid_keeps_the_extent_of_an_image_and_refuses_other_words() -> None:
    small, large = positions.unit_grid(2, 2), positions.unit_grid(4, 4)
    assert small.tolist() == [[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]]
    # the middle of the four cells that were one
    assert large.reshape(4, 4, 2)[:2, :2].mean((0, 1)).tolist() == small[0].tolist()
    with refuses(ValueError, "positions.unit_grid: sides must be one of", "got 'wide'"):
        positions.unit_grid(2, 2, sides="wide")


def test_jitter_moves_and_stretches_an_image_as_a_whole() -> None:
    random, pos = torch.Generator().manual_seed(0), positions.unit_grid(3, 5)
    seen = torch.stack([positions.jittered(pos, shift=0.5, generator=random) - pos for _ in range(400)])
    assert (seen - seen[:, :1]).abs().max() < 1e-12
    assert 0.48 < float(seen.max()) <= 0.5
    assert not torch.allclose(seen[:, 0, 0], seen[:, 0, 1])
    for option, axes_alike in (("jitter", False), ("rescale", True)):
        ratio = torch.stack([positions.jittered(pos, **{option: 2.0}, generator=random) for _ in range(400)]) / pos
        first, second = ratio[:, 0].unbind(-1)
        assert (first.min() > 0.5, first.max() <= 2.0, first.max() > 1.9) == (True, True, True)
        assert torch.allclose(first, second) == axes_alike
        assert abs(float(first.log().mean())) < 0.1
    assert torch.equal(positions.jittered(pos), pos)
    with refuses(ValueError, "positions.jittered: shift must not be negative", "jitter=0.5"):
        positions.jittered(pos, jitter=0.5)


@pytest.mark.parametrize("parents", [[-1, 0], torch.tensor([-1.0]), torch.tensor([True])])
def test_a_tree_is_a_tensor_of_integers(parents: object) -> None:
    with refuses(TypeError, "tree: parents must be a tensor of integers"):
        positions.tree(parents)
