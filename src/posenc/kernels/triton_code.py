"""The Triton kernel of the rotation; `posenc.kernels.triton` imports this file before the first launch."""

# mypy: ignore-errors
# no_type_check on each function: Python's type checkers do not know Triton's pointers and numbers. It also keeps
# jaxtyping's import hook from wrapping functions that Triton reads as source.

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _below(mask, lane, PADDED: tl.constexpr, N: tl.constexpr):
    """Mask out the lanes that pad a width to a power of two."""
    return mask if PADDED == N else mask & (lane < N)[None, :]


@triton.jit
@no_type_check
def _load(x, row, mask, N_PAIRS: tl.constexpr, LANES: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Load both numbers of each pair; for interleaved pairs load whole rows, so that threads read contiguous memory."""
    if INTERLEAVED:
        lane = tl.arange(0, 2 * LANES)
        both = tl.load(x + row + lane[None, :], mask=_below(mask, lane, 2 * LANES, 2 * N_PAIRS), other=0.0)
        a, b = tl.split(tl.reshape(both, (row.shape[0], LANES, 2)))
    else:
        lane = tl.arange(0, LANES)
        inside = _below(mask, lane, LANES, N_PAIRS)
        a = tl.load(x + row + lane[None, :], mask=inside, other=0.0)
        b = tl.load(x + row + N_PAIRS + lane[None, :], mask=inside, other=0.0)
    return a, b


@triton.jit
@no_type_check
def _store(out, row, a, b, mask, N_PAIRS: tl.constexpr, LANES: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Store both numbers of each pair in the layout of `_load`, rounded once."""
    a, b = a.to(out.dtype.element_ty), b.to(out.dtype.element_ty)
    if INTERLEAVED:
        lane = tl.arange(0, 2 * LANES)
        both = tl.reshape(tl.join(a, b), (row.shape[0], 2 * LANES))
        tl.store(out + row + lane[None, :], both, mask=_below(mask, lane, 2 * LANES, 2 * N_PAIRS))
    else:
        lane = tl.arange(0, LANES)
        inside = _below(mask, lane, LANES, N_PAIRS)
        tl.store(out + row + lane[None, :], a, mask=inside)
        tl.store(out + row + N_PAIRS + lane[None, :], b, mask=inside)


@triton.jit
@no_type_check
def _table(at, strides, batch, table, row, mask, LANES: tl.constexpr, N_PAIRS: tl.constexpr):
    """Load the cosines or sines of a tile's rows."""
    lane = tl.arange(0, LANES)
    at += batch * strides[0] + table * strides[1]
    return tl.load(at + row * strides[2] + lane[None, :], mask=_below(mask, lane, LANES, N_PAIRS), other=0.0)


@triton.jit
@no_type_check
def _rotate_heads(
    x, out, cos, sin, group, seq, x_strides, out_strides, table_strides, KEEPS: tl.constexpr,
    part, batch, row_block, steps,
    ROWS: tl.constexpr, HEADS: tl.constexpr, LANES: tl.constexpr, RESTS: tl.constexpr, N_PAIRS: tl.constexpr,
    REST: tl.constexpr, INTERLEAVED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Rotate ROWS rows of up to HEADS * steps heads that share a table, whose cosines and sines are read once.

    A tile holds ROWS * HEADS rows, ordered by head. Indices that multiply a stride are int64: in a cache of 2**20
    tokens with a head dimension of 128, the seventeenth head begins at element 2**31.
    """
    ROTATED_AT: tl.constexpr = REST if LAST else 0
    RESTS_AT: tl.constexpr = 0 if LAST else 2 * N_PAIRS
    parts = tl.cdiv(group, HEADS * steps)
    table, batch = (part // parts).to(tl.int64), batch.to(tl.int64)
    first = (part % parts) * HEADS * steps
    place = tl.arange(0, ROWS * HEADS)
    row = (row_block * ROWS + place % ROWS).to(tl.int64)[:, None]
    rest_lane = tl.arange(0, RESTS)[None, :]
    c = _table(cos, table_strides, batch, table, row, row < seq, LANES, N_PAIRS)
    s = _table(sin, table_strides, batch, table, row, row < seq, LANES, N_PAIRS)
    x += batch * x_strides[0] + table * group * x_strides[1]
    out += batch * out_strides[0] + table * group * out_strides[1]
    for step in range(steps):
        head = (first + step * HEADS + place // ROWS).to(tl.int64)[:, None]
        mask = (row < seq) & (head < group)
        x_row = row * x_strides[2] + head * x_strides[1]
        out_row = row * out_strides[2] + head * out_strides[1]
        a, b = _load(x + ROTATED_AT, x_row, mask, N_PAIRS, LANES, INTERLEAVED)
        a, b = a.to(c.dtype), b.to(c.dtype)
        if REST > 0 and not KEEPS:
            rest_mask = mask & (rest_lane < REST)
            rest = tl.load(x + RESTS_AT + x_row + rest_lane, mask=rest_mask, other=0.0)
            tl.store(out + RESTS_AT + out_row + rest_lane, rest, mask=rest_mask)
        _store(out + ROTATED_AT, out_row, a * c - b * s, b * c + a * s, mask, N_PAIRS, LANES, INTERLEAVED)


@triton.jit(do_not_specialize=["q_group", "q_seq", "k_group", "k_seq", "q_parts", "parts", "row_blocks", "steps"])
@no_type_check
def rotate(
    q, q_out, q_cos, q_sin, k, k_out, k_cos, k_sin,
    q_group, q_seq, q_b, q_h, q_s, q_out_b, q_out_h, q_out_s, q_table_b, q_table_t, q_table_s,
    k_group, k_seq, k_b, k_h, k_s, k_out_b, k_out_h, k_out_s, k_table_b, k_table_t, k_table_s,
    q_parts, parts, row_blocks, steps, Q_KEEPS: tl.constexpr, K_KEEPS: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, LANES: tl.constexpr, RESTS: tl.constexpr, N_PAIRS: tl.constexpr,
    REST: tl.constexpr, INTERLEAVED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Rotate queries and keys, or one of them (k is None), in one launch of parts * row_blocks * batch programs.

    Programs of the same rows run next to each other, so the rows' cosines and sines are in the cache for all heads of
    queries and keys.
    """
    program = tl.program_id(0)
    part = program % parts
    row_block = program // parts % row_blocks
    batch = program // parts // row_blocks
    if part < q_parts:
        _rotate_heads(
            q, q_out, q_cos, q_sin, q_group, q_seq,
            (q_b, q_h, q_s), (q_out_b, q_out_h, q_out_s), (q_table_b, q_table_t, q_table_s),
            Q_KEEPS, part, batch, row_block, steps,
            ROWS, HEADS, LANES, RESTS, N_PAIRS, REST, INTERLEAVED, LAST,
        )  # fmt: skip
    elif k is not None:
        _rotate_heads(
            k, k_out, k_cos, k_sin, k_group, k_seq,
            (k_b, k_h, k_s), (k_out_b, k_out_h, k_out_s), (k_table_b, k_table_t, k_table_s),
            K_KEEPS, part - q_parts, batch, row_block, steps,
            ROWS, HEADS, LANES, RESTS, N_PAIRS, REST, INTERLEAVED, LAST,
        )  # fmt: skip
