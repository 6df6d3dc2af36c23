"""Other rotations as timm, PoPE-pytorch and x-transformers make them, or as a formula says; forwards and backwards."""

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.func import functional_call

import posenc
from peers.agreement import assert_same
from posenc import positions
from strategies import normal


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


class Learned:
    """An encoding of ours whose learned tensors are a function of another's, so that both get gradients of one leaf."""

    def __init__(self, encoding, **learned):
        self.encoding, self.learned = encoding, learned

    def rotate(self, *arguments, **options):
        return functional_call(
            Turn(self.encoding), {f"inner.{k}": v for k, v in self.learned.items()}, arguments, options
        )


class Turn(torch.nn.Module):
    """The whole turn as a forward pass."""

    def __init__(self, encoding):
        super().__init__()
        self.inner = encoding

    def forward(self, q, k, pos, k_pos=None):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        placed = self.inner.place(pos, dtype=dtype)
        return self.inner.rotate(q, k, placed, None if k_pos is None else self.inner.place(k_pos, dtype=dtype))


def timm_sincos():
    """Read timm's file alone: `import timm` needs torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None:
        pytest.skip("timm is not installed")
    package = sys.modules.setdefault("timm_layers", ModuleType("timm_layers"))
    package.__path__ = [str(Path(found.origin).parent / "layers")]
    return importlib.import_module("timm_layers.pos_embed_sincos")


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("size", [(6, 11), (4, 4), (1, 7)])
@pytest.mark.parametrize("layer", [0, 2])
def test_mixed_rope_is_timms(layer, size, indexing):
    """Theirs counts columns first (xy), the default, or rows, and has frequencies for all layers in one tensor."""
    sincos = timm_sincos()
    peer = sincos.RotaryEmbeddingMixed(24, depth=3, num_heads=3, grid_indexing=indexing)
    own = peer.freqs[:, layer].flip(0) if indexing == "xy" else peer.freqs[:, layer]
    ours = posenc.MixedRoPE(n_kv_heads=3, head_dim=8, pairing="interleaved")
    q, k = leaf(2, 6, math.prod(size), 8), leaf(2, 3, math.prod(size), 8)  # two heads of queries to one of keys
    table = peer.get_embed(list(size))[layer]
    wanted = (sincos.apply_rot_embed_cat(x, table.repeat_interleave(x.shape[1] // 3, 0)) for x in (q, k))
    turned = Learned(ours, inv_freq=own.transpose(0, 1)).rotate(q, k, positions.grid(*size))
    for mine, theirs, x in zip(turned, wanted, (q, k), strict=True):
        assert_same(mine, theirs, [x, peer.freqs], atol=1e-5)


@pytest.mark.parametrize("base", [10.0, 100.0])
def test_mixed_rope_starts_as_timms(base):
    """Which draws one number for each head from the same generator."""
    torch.manual_seed(3)
    theirs = timm_sincos().RotaryEmbeddingMixed(40, depth=1, num_heads=5, temperature=base).freqs[:, 0].flip(0)
    torch.manual_seed(3)
    ours = posenc.MixedRoPE(n_kv_heads=5, head_dim=8, base=base).inv_freq
    torch.testing.assert_close(ours.transpose(0, 1), theirs, atol=1e-6, rtol=0)


def halves(x):
    """From real and imaginary parts in turn to all real ones before all imaginary ones."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def of_pope_pytorch(phase):
    peer = pytest.importorskip("PoPE_pytorch").PoPE(phase.shape[-1], heads=len(phase))

    def turn(q, k, pos):
        made = functional_call(peer, {"bias": phase}, (pos,))
        return tuple(map(halves, peer.apply_pope_to_qk(made, q, k)))

    return peer, turn


def of_x_transformers(phase):
    module = pytest.importorskip("x_transformers.x_transformers")
    peer = module.PolarEmbedding(phase.shape[-1], len(phase))

    def turn(q, k, pos):
        angles, bias = functional_call(peer, {"learned_bias": phase[:, None]}, (pos,))
        return module.apply_polar_pos_emb(q, angles), module.apply_polar_pos_emb(k, angles + bias)

    return peer, turn


@pytest.mark.parametrize("make", [of_pope_pytorch, of_x_transformers])
@pytest.mark.parametrize("q_len", [9, 1, 4])
def test_pope_is_theirs(make, q_len):
    """Phases lie on both sides of both bounds, beyond which they get no gradient."""
    phase = torch.tensor([[-7.0, -6.0, -3.0, -0.1, 0.2], [0.5, -1.0, -6.2, -6.4, -2.0]], requires_grad=True)
    q, k, pos = leaf(2, 2, q_len, 5), leaf(2, 2, 9, 5), positions.arange(9, start=30)
    wanted = make(phase)[1](q, k, pos)  # queries are the last tokens
    ours = Learned(posenc.PoPE(n_kv_heads=2, head_dim=5), phase=phase)
    turned = ours.rotate(q, k, pos[-q_len:], pos)
    assert_same(turned[0], wanted[0], [q], atol=2e-5)  # their angles are float32, of 38 radians
    assert_same(turned[1], wanted[1], [k, phase], atol=2e-5)
    scores = [a @ b.mT for a, b in (turned, wanted)]
    assert_same(*scores, [q, k, phase], atol=1e-4)
    (gradient,) = torch.autograd.grad(scores[0].square().sum(), phase)
    assert (gradient == 0).equal((phase < -2 * math.pi) | (phase > 0))


def test_pope_in_float64_is_pope_pytorchs_to_the_last_digits():
    """Given frequencies in float64; their own are float32."""
    phase = torch.tensor([[-3.0, -0.1, -6.0]], dtype=torch.float64, requires_grad=True)
    q, k = leaf(1, 1, 5, 3, dtype=torch.float64), leaf(1, 1, 5, 3, dtype=torch.float64)
    pos = torch.tensor([0.0, 0.5, 3.0, 1e4, 1e6], dtype=torch.float64)
    peer, turn = of_pope_pytorch(phase)
    peer.inv_freqs = 10000.0 ** -(torch.arange(3, dtype=torch.float64) / 3)
    wanted = turn(q, k, pos)
    turned = Learned(posenc.PoPE(n_kv_heads=1, head_dim=3), phase=phase).rotate(q, k, pos)
    for mine, theirs, inputs in zip(turned, wanted, ([q], [k, phase]), strict=True):
        assert_same(mine, theirs, inputs, atol=1e-9)


@pytest.mark.parametrize("q_len", [7, 1])
def test_attention_with_pope_is_pope_pytorchs(q_len):
    """Scores are divided by the root of the lanes before the turn, and in x-transformers too."""
    phase = torch.empty(2, 4).uniform_(-6, 0)
    ours = posenc.PoPE(n_kv_heads=2, head_dim=4)
    ours.phase.data = phase
    peer, _ = of_pope_pytorch(phase)
    peer.bias.data = phase
    q, k, v = normal(2, 2, q_len, 4).float(), normal(2, 2, 7, 4, seed=1).float(), normal(2, 2, 7, 6, seed=2).float()
    pos = positions.arange(7)
    wanted = importlib.import_module("PoPE_pytorch").flash_attn_with_pope(q, k, v, pos_emb=peer(pos), causal=True)
    got = posenc.attend(q, k, v, ours, pos[-q_len:], pos)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=0)
    layer = pytest.importorskip("x_transformers.x_transformers").Attention(8, dim_head=4, heads=2)
    assert layer.attend.scale == ours.score_scale(8)


def retained(q, k, v, gamma, inv_freq):
    """Retention as a recurrence (Sun 2023, equation 6): a state of complex pairs turns and shrinks at each token."""
    q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
    decay = gamma[:, None] * torch.polar(torch.ones_like(inv_freq), inv_freq)
    state, out = 0.0, []
    for n in range(q.shape[2]):
        state = state * decay[..., None] + k[:, :, n, :, None].conj() * v[:, :, n, None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, :, n], state).real)
    return torch.stack(out, 2)


def test_retnet_is_the_recurrence_of_retention():
    """Values are summed with the scores themselves: no softmax. Each key head has its pace, queries share it."""
    ours = posenc.RetNet(n_kv_heads=3, head_dim=6, base=100.0, centre=4.0)
    q, k, v = (leaf(2, heads, 12, 6, dtype=torch.float64) for heads in (6, 3, 3))
    group = [x.repeat_interleave(2, 1) for x in (k, v)]
    gamma = 1 - 2.0 ** (-5 - torch.arange(3, dtype=torch.float64).repeat_interleave(2))
    inv_freq = 100.0 ** (-2 * torch.arange(3, dtype=torch.float64) / 6)
    wanted = retained(q, *group, gamma, inv_freq)
    placed = ours.place(positions.arange(12, start=1000), dtype=torch.float64)
    turned_q, turned_k = ours.rotate(q, k, placed)
    scores = (turned_q @ turned_k.repeat_interleave(2, 1).mT).tril()
    assert_same(scores @ group[1], wanted, [q, k, v], atol=1e-10)


def test_retnet_is_the_masked_product_of_flash_linear_attention():
    """Turned queries and keys, scores over the root of the width, times 2 to the distance times log2 of the pace."""
    ours, rope = posenc.RetNet(n_kv_heads=2, head_dim=8, pairing="half"), posenc.RoPE(head_dim=8)
    q, k = leaf(1, 2, 30, 8, dtype=torch.float64), leaf(1, 2, 30, 8, dtype=torch.float64)
    pos = positions.arange(30)
    pace = torch.log2(1 - 2.0 ** torch.tensor([-5.0, -6.0], dtype=torch.float64))
    seen = torch.exp2((pos[:, None] - pos) * pace[:, None, None]) * (pos[:, None] >= pos)
    plain = rope.rotate(q, k, rope.place(pos, dtype=torch.float64))
    turned = ours.rotate(q, k, ours.place(pos, dtype=torch.float64))
    wanted = plain[0] @ plain[1].mT * 8**-0.5 * seen
    assert_same((turned[0] @ turned[1].mT * ours.score_scale(8)).tril(), wanted, [q, k], atol=1e-10)


def orthonormal(columns):
    """Gram and Schmidt, one column after the other."""
    kept = []
    for column in columns.unbind(-1):
        for other in kept:
            column = column - (other @ column) * other
        kept.append(column / column.norm())
    return kept


@pytest.mark.parametrize(("head_dim", "n_planes"), [(6, None), (7, 2), (5, 1)])
def test_grape_m_is_the_exponential_of_the_sum_of_its_generators(head_dim, n_planes):
    ours = posenc.GRAPEM(n_kv_heads=2, head_dim=head_dim, n_planes=n_planes).double()
    planes, log_freq = (torch.randn_like(p).requires_grad_() for p in (ours.planes, ours.log_freq))
    q, k = leaf(1, 4, 5, head_dim, dtype=torch.float64), leaf(1, 2, 5, head_dim, dtype=torch.float64)
    pos = torch.tensor([0.0, 1.0, -3.0, 2.5, 40.0], dtype=torch.float64)
    turns = []
    for frame, speeds in zip(map(orthonormal, planes), log_freq.exp(), strict=True):
        pairs = zip(frame[::2], frame[1::2], speeds, strict=True)
        generator = sum(speed * (torch.outer(v, u) - torch.outer(u, v)) for u, v, speed in pairs)
        turns.append(torch.matrix_exp(pos[:, None, None] * generator))
    each = torch.stack(turns)
    turned = Learned(ours, planes=planes, log_freq=log_freq).rotate(q, k, pos)
    for mine, x in zip(turned, (q, k), strict=True):
        wanted = torch.einsum("hsij,bhsj->bhsi", each.repeat_interleave(x.shape[1] // 2, 0), x)
        assert_same(mine, wanted, [x, planes, log_freq], atol=1e-10)


def exponential(generator):
    """Halve until it is small, sum the series, square as often."""
    halvings = max(0, math.ceil(math.log2(float(generator.detach().abs().sum(-1).max()) + 1e-9)) + 4)
    small = generator / 2**halvings
    total = term = torch.eye(generator.shape[-1], dtype=generator.dtype).expand_as(generator)
    for n in range(1, 15):
        term = term @ small / n
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total


@pytest.mark.parametrize(("block", "n_axes"), [(2, 1), (4, 2), (6, 3), (12, 2)])
def test_liere_is_the_exponential_of_its_generators(block, n_axes):
    ours = posenc.LieRE(head_dim=12, n_axes=n_axes, block=block).double()
    skew = torch.randn_like(ours.skew).requires_grad_()
    q, k = leaf(2, 2, 6, 12, dtype=torch.float64), leaf(2, 1, 6, 12, dtype=torch.float64)
    pos = torch.randn(6, n_axes, dtype=torch.float64)
    above = torch.combinations(torch.arange(block))  # row by row, as numbers of an upper triangle are
    upper = torch.zeros(*skew.shape[:2], block, block, dtype=torch.float64)
    upper[:, :, *above.unbind(-1)] = skew
    turn = exponential(torch.einsum("sa,anij->snij", pos, upper - upper.mT))
    turned = Learned(ours, skew=skew).rotate(q, k, pos[:, 0] if n_axes == 1 else pos)
    for mine, x in zip(turned, (q, k), strict=True):
        wanted = torch.einsum("snij,bhsnj->bhsni", turn, x.unflatten(-1, (-1, block))).flatten(-2)
        assert_same(mine, wanted, [x, skew], atol=1e-9)
