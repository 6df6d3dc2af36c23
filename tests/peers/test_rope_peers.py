"""Rotation as timm, x-transformers and rotary-embedding-torch do it, forwards and backwards; and where they are wrong.

One check serves both: what it finds of a peer that is right, it must not find where the peer is known to be wrong.
"""

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import frequencies, positions
from strategies import check

rotary_torch = pytest.importorskip("rotary_embedding_torch")
xt = pytest.importorskip("x_transformers.x_transformers")


def timm_sincos():
    """Read timm's file alone: `import timm` needs torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None:
        pytest.skip("timm is not installed")
    package = sys.modules.setdefault("timm_layers", ModuleType("timm_layers"))
    package.__path__ = [str(Path(found.origin).parent / "layers")]
    return importlib.import_module("timm_layers.pos_embed_sincos")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def heads(*shape, dtype=torch.float32):
    """Queries and keys with two heads of each of two texts."""
    return [torch.randn(2, 2, *shape, dtype=dtype, requires_grad=True) for _ in range(2)]


def agrees(peer, ours, inputs, atol):
    """Return whether two functions of the same inputs have the same values, and the same gradients of a random sum."""
    close = []
    for theirs, mine in zip(peer(*inputs), ours(*inputs), strict=True):
        assert (theirs.shape, theirs.dtype) == (mine.shape, mine.dtype)
        weight = torch.randn_like(mine)
        back = [
            torch.autograd.grad(y, inputs, weight, retain_graph=True, materialize_grads=True) for y in (theirs, mine)
        ]
        assert all(any(g.any() for g in gradients) for gradients in back)
        close += [torch.allclose(a, b, rtol=1e-4, atol=atol) for a, b in zip(*back, strict=True)]
        close.append(torch.allclose(theirs, mine, rtol=1e-4, atol=atol))
    return all(close)


def turned(encoding, pos, k_pos=None):
    """Return the function that turns queries and keys as an encoding of ours does."""

    def turn(q, k):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        placed = encoding.place(pos, dtype=dtype)
        return encoding.rotate(q, k, placed, placed if k_pos is None else encoding.place(k_pos, dtype=dtype))

    return turn


def scores(turn):
    """Return what is left of a turn in the products of queries and keys."""

    def product(q, k):
        q, k = turn(q, k)
        return (q @ k.mT,)

    return product


def each(turn):
    """Return a turn of queries and keys alike."""
    return lambda q, k: (turn(q), turn(k))


def of_xt(peer, pos):
    """Turn as x-transformers' attention does, which hands the angles of the last tokens to the queries."""

    def turn(q, k):
        angles, scale = peer(pos)
        return xt.apply_rotary_pos_emb(q, angles, scale), xt.apply_rotary_pos_emb(k, angles, scale**-1.0)

    return turn


# angles in float32 err by half a unit in the last place of 300 radians, and lanes reach 4
ATOL = 2e-4
N = 300
NTK = frequencies.ntk_base(1e4, width=16, factor=8.0)
STRETCHED = frequencies.linear(frequencies.geometric(8, base=1e4, width=16), factor=4.0).tolist()
PIXELS = (torch.linspace(1, 5, 4, dtype=torch.float64) * math.pi).tolist()
PLAIN = {"head_dim": 16, "pairing": "interleaved"}
CASES = {
    "plain": ({}, {}, PLAIN),
    "base": ({"theta": 5e5}, {"base": 5e5}, {**PLAIN, "base": 5e5}),
    "partial": ({}, {}, {**PLAIN, "head_dim": 24, "rotary_dim": 16}),
    "interpolated": ({"interpolate_factor": 4.0}, {"interpolation_factor": 4.0}, {**PLAIN, "inv_freq": STRETCHED}),
    "ntk": ({"theta_rescale_factor": 8.0}, {"base_rescale_factor": 8.0}, {**PLAIN, "base": NTK}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("start", [0, 37])
def test_rope_is_rotary_embedding_torchs(case, start):
    options, _, ours = CASES[case]
    peer, rope = rotary_torch.RotaryEmbedding(16, **options), posenc.RoPE(**ours)
    turn = each(lambda x: peer.rotate_queries_or_keys(x, offset=start))
    assert agrees(turn, turned(rope, positions.arange(N, start=start)), heads(N, rope.head_dim), ATOL)


@pytest.mark.parametrize("case", CASES)
def test_rope_is_x_transformers(case):
    """Each text has positions of its own, some between two integers or below zero."""
    _, options, ours = CASES[case]
    peer, rope = xt.RotaryEmbedding(16, **options), posenc.RoPE(**ours)
    for pos in (torch.randint(N, (2, 50)), torch.rand(2, 50) * 2 * N - N):
        assert agrees(of_xt(peer, pos), turned(rope, pos), heads(50, rope.head_dim), ATOL)


@given(
    width=st.integers(2, 32).map(lambda half: 2 * half),
    still=st.integers(0, 8),
    base=st.floats(2.0, 1e9),
    factor=st.floats(1.0, 64.0),
    start=st.integers(0, 200),
)
@check(60)
def test_random_ropes_are_theirs(width, still, base, factor, start):
    inv_freq = frequencies.linear(frequencies.geometric(width // 2, base=base, width=width), factor=factor)
    rope = posenc.RoPE(head_dim=width + still, rotary_dim=width, inv_freq=inv_freq.tolist(), pairing="interleaved")
    pos, inputs = positions.arange(9, start=start), heads(9, width + still)
    first = rotary_torch.RotaryEmbedding(width, theta=base, interpolate_factor=factor)
    turn = each(lambda x: first.rotate_queries_or_keys(x, offset=start))
    assert agrees(turn, turned(rope, pos), inputs, ATOL)
    second = xt.RotaryEmbedding(width, base=base, interpolation_factor=factor)
    assert agrees(of_xt(second, pos), turned(rope, pos), inputs, ATOL)


def test_in_float64_they_are_the_same_to_the_last_digits():
    """Given our frequencies; their own are float32."""
    rope = posenc.RoPE(**PLAIN)
    inputs, pos = heads(N, 16, dtype=torch.float64), positions.arange(N)
    first = rotary_torch.RotaryEmbedding(16, custom_freqs=rope.inv_freqs()).double()
    assert agrees(each(first.rotate_queries_or_keys), turned(rope, pos), inputs, 1e-11)
    second = xt.RotaryEmbedding(16).double()
    assert not agrees(of_xt(second, pos), turned(rope, pos), inputs, 1e-11)
    second.inv_freq = rope.inv_freqs()
    assert agrees(of_xt(second, pos), turned(rope, pos), inputs, 1e-11)


def test_learned_frequencies_get_the_gradients_of_theirs():
    peer, ours = rotary_torch.RotaryEmbedding(16, learned_freq=True), posenc.RoPE(**PLAIN, trainable=True)
    ours.inv_freq = peer.freqs
    turn, inputs = turned(ours, positions.arange(20)), heads(20, 16)
    found = agrees(
        lambda q, k, _: each(peer.rotate_queries_or_keys)(q, k),
        lambda q, k, _: turn(q, k),
        [*inputs, peer.freqs],
        2e-3,  # 20 tokens of 4 heads, each times its position
    )
    assert found


@pytest.mark.parametrize("size", [(7,), (5, 8), (3, 4, 6)])
@pytest.mark.parametrize("kind", ["lang", "pixel"])
def test_axial_rope_is_rotary_embedding_torchs(kind, size):
    """Cells of an image by number, or by coordinates between -1 and 1 with frequencies up to half the resolution."""
    peer = rotary_torch.RotaryEmbedding(8, freqs_for=kind, max_freq=10)
    lines = [torch.linspace(-1, 1, n, dtype=torch.float64) if kind == "pixel" else torch.arange(n) for n in size]
    pos = torch.cartesian_prod(*lines)
    own = {"inv_freq": PIXELS} if kind == "pixel" else {}
    lanes = 8 * len(size)
    ours = posenc.AxialRoPE(head_dim=lanes, n_axes=len(size), pairing="interleaved", **own)
    if len(size) == 1:
        ours = posenc.RoPE(head_dim=8, pairing="interleaved", **own)
    angles = peer.get_axial_freqs(*size)
    turn = each(lambda x: rotary_torch.apply_rotary_emb(angles, x.unflatten(2, size)).flatten(2, -2))
    assert agrees(turn, turned(ours, pos), heads(math.prod(size), lanes), 1e-5)


def test_frequencies_for_pixels_turn_text_as_well():
    turn = each(rotary_torch.RotaryEmbedding(8, freqs_for="pixel").rotate_queries_or_keys)
    ours = posenc.RoPE(head_dim=8, inv_freq=PIXELS, pairing="interleaved")
    assert agrees(turn, turned(ours, positions.arange(50)), heads(50, 8), 2e-4)


def decay(centre=0.0):
    """Return xPos that decays fast enough to be seen among a few tokens."""
    return posenc.XPos(head_dim=16, scale_base=16.0, centre=centre)


@pytest.mark.parametrize("n", [1, 2, 9, 40])
def test_xpos_of_a_whole_text_is_theirs(n):
    """Both centre on the middle of the text, which the scores cannot tell from any other centre."""
    first = rotary_torch.RotaryEmbedding(16, use_xpos=True, xpos_scale_base=16)
    second = of_xt(xt.RotaryEmbedding(16, use_xpos=True, scale_base=16), positions.arange(n))
    for peer in (first.rotate_queries_and_keys, second):
        assert agrees(peer, turned(decay(float(n // 2)), positions.arange(n)), heads(n, 16), 1e-4)
        assert agrees(scores(peer), scores(turned(decay(3.0), positions.arange(n))), heads(n, 16), 1e-3)


def kept(turn_of, before, after):
    """Return the turn of the last token's query, and of keys of which the first were turned when they were all."""

    def turn(q, k):
        _, past = turn_of(before)(q[..., :before, :], k[..., :before, :])
        q, k = turn_of(after)(q, k)
        return q[..., -1:, :], torch.cat((past, k[..., before:, :]), -2)

    return turn


# the middle of 8 tokens and of 9 is token 4
GROWING = [(8, 9, True), (8, 10, False), (9, 10, False), (10, 11, True), (9, 40, False)]


@pytest.mark.parametrize(("before", "after", "right"), GROWING)
@pytest.mark.parametrize("library", ["rotary-embedding-torch", "x-transformers"])
def test_xpos_with_keys_that_were_turned_before_is_theirs_until_the_middle_moves(library, before, after, right):
    """Then their queries are turned about one centre and the keys in the cache about another; ours has one."""

    def turn_of(n):
        if library == "x-transformers":
            return of_xt(xt.RotaryEmbedding(16, use_xpos=True, scale_base=16), positions.arange(n))
        return rotary_torch.RotaryEmbedding(16, use_xpos=True, xpos_scale_base=16).rotate_queries_and_keys

    inputs = heads(after, 16)
    ours = kept(lambda n: turned(decay(), positions.arange(n)), before, after)
    assert agrees(scores(kept(turn_of, before, after)), scores(ours), inputs, 1e-3) is right
    whole = scores(lambda q, k: (turn_of(after)(q, k)[0][..., -1:, :], turn_of(after)(q, k)[1]))
    assert agrees(whole, scores(ours), inputs, 1e-3)  # all keys turned anew
    # without decay keys may be kept
    plain = kept(lambda n: of_xt(xt.RotaryEmbedding(16), positions.arange(n)), before, after)
    rope = kept(lambda n: turned(posenc.RoPE(**PLAIN), positions.arange(n)), before, after)
    assert agrees(scores(plain), scores(rope), inputs, 1e-3)


@pytest.mark.parametrize(("q_len", "k_len", "right"), [(4, 4, True), (4, 5, True), (4, 6, False), (1, 9, False)])
def test_rotary_embedding_torchs_own_method_for_caches_centres_xpos_twice(q_len, k_len, right):
    """Though it turns all keys anew: queries about the middle of the new tokens, keys about that of all."""
    q, k = heads(k_len, 16)
    inputs = [q[:, :, -q_len:].detach().requires_grad_(), k]
    pos, last = positions.arange(k_len), positions.continued(k_len - q_len, q_len)
    for peer, ours, holds in (
        (rotary_torch.RotaryEmbedding(16, use_xpos=True, xpos_scale_base=16), decay(), right),
        (rotary_torch.RotaryEmbedding(16), posenc.RoPE(**PLAIN), True),
    ):
        theirs = scores(peer.rotate_queries_with_cached_keys)
        assert agrees(theirs, scores(turned(ours, last, pos)), inputs, 1e-3) is holds


# the last position that each format counts without a gap, and the next
FORMATS = [
    (torch.float32, 256, True),
    (torch.float32, 2049, True),
    (torch.bfloat16, 255, True),
    (torch.bfloat16, 256, True),
    (torch.bfloat16, 257, False),
    (torch.bfloat16, 258, True),  # even, and held again
    (torch.bfloat16, 4099, False),
    (torch.float16, 2048, True),
    (torch.float16, 2049, False),
]


@pytest.mark.parametrize(("dtype", "at", "right"), FORMATS)
@pytest.mark.parametrize("whole", [False, True])
def test_rotary_embedding_torch_counts_in_the_format_of_the_tokens(dtype, at, right, whole):
    """Whether the token is the last of a text or comes alone after a cache. Lanes of up to 4 are rounded twice."""
    atol = 16 * torch.finfo(dtype).eps + 1e-3

    def last(turn):
        return lambda q, k: tuple(x[..., -1:, :] for x in turn(q, k))

    n = at + 1 if whole else 1
    inputs, pos = heads(n, 16, dtype=dtype), positions.arange(n, start=at + 1 - n)
    ours = last(turned(posenc.RoPE(**PLAIN), pos))
    first = rotary_torch.RotaryEmbedding(16)
    theirs = last(each(lambda x: first.rotate_queries_or_keys(x, offset=at + 1 - n)))
    assert agrees(theirs, ours, inputs, atol) is right
    second = xt.RotaryEmbedding(16)  # counts in integers
    assert agrees(last(of_xt(second, pos)), ours, inputs, atol)
    if not right:
        assert not agrees(last(of_xt(second.to(dtype), pos)), ours, inputs, atol)  # until it is cast itself


TIMM = {
    "cells": ({"in_pixels": False}, None),
    "cells from 1/2": ({"in_pixels": False, "grid_offset": 0.5}, lambda pos: pos + 0.5),
    "cells of another size": (
        {"in_pixels": False, "ref_feat_shape": [14, 14]},
        lambda pos: pos * 14 / torch.tensor([6.0, 11.0], dtype=torch.float64),
    ),
    "columns first": ({"in_pixels": False, "grid_indexing": "xy"}, lambda pos: pos.flip(-1)),
    "pixels": ({"max_res": 64}, lambda pos: 2 * pos / torch.tensor([5.0, 10.0], dtype=torch.float64) - 1),
    "pixels linearly": (
        {"max_res": 64, "linear_bands": True},
        lambda pos: 2 * pos / torch.tensor([5.0, 10.0], dtype=torch.float64) - 1,
    ),
}


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("case", TIMM)
def test_axial_rope_is_timms(case, pairing):
    sincos = timm_sincos()
    options, move = TIMM[case]
    half = pairing == "half"
    peer = sincos.RotaryEmbeddingCat(24, feat_shape=[6, 11], rotate_half=half, **options)
    own = {}
    if options.get("linear_bands"):
        own = {"inv_freq": (torch.linspace(1, 32, 6, dtype=torch.float64) * math.pi).tolist()}
    elif "max_res" in options:
        own = {"inv_freq": [math.pi * 2**k for k in range(6)]}
    ours = posenc.AxialRoPE(head_dim=24, pairing=pairing, **own)
    pos = positions.grid(6, 11).double()
    table = peer.get_embed()
    turn = each(lambda x: sincos.apply_rot_embed_cat(x, table, half=half))
    assert agrees(turn, turned(ours, pos if move is None else move(pos)), heads(66, 24), 5e-5)


@pytest.mark.parametrize("at", [256, 257, 4099])
def test_timm_counts_in_float32_whatever_the_tokens_are(at):
    sincos = timm_sincos()
    table = sincos.RotaryEmbeddingCat(24, in_pixels=False).bfloat16().get_embed([at + 1, 1])
    ours = turned(posenc.AxialRoPE(head_dim=24, pairing="interleaved"), torch.tensor([[at, 0]]))
    peer = each(lambda x: sincos.apply_rot_embed_cat(x, table[-1:]))
    assert agrees(peer, ours, heads(1, 24, dtype=torch.bfloat16), 0.125)
