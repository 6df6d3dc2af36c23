"""Every encoding with random options, at random positions, against its definition in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
import strategies
from defined import PRODUCTS, READ_TOKENS, mathematics, turn
from posenc import definitions
from posenc.defined import of_text

EPS = 2.0**-52


def rows(pos: Tensor, n_axes: int = 1) -> list[np.ndarray]:
    """Plain positions, one row a batch, in a kind whose differences do not wrap."""
    wide = pos.double() if pos.is_floating_point() else pos.long()
    plain = wide.shape[-1:] if n_axes == 1 else wide.shape[-2:]
    return list(wide.reshape(-1, *plain).numpy())


def slack(pos: Tensor, *more: Tensor) -> float:
    """What float64 leaves of an angle: frequencies (2 at most) are rounded, and positions multiply that."""
    far = max(float(p.double().abs().max()) for p in (pos, *more))
    return 1e-12 + 16 * EPS * far


def scores(encoding: Any, q: Tensor, k: Tensor, pos: Tensor, k_pos: Tensor) -> Tensor:
    """The contract's one law, written out."""
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos, k_pos))
    turned_q, turned_k = encoding.rotate(q, k, placed, k_placed)
    product = encoding.score_scale(q.shape[-1]) * torch.einsum("bhid,bhjd->bhij", turned_q, turned_k)
    bias = encoding.bias(q, k, placed, k_placed)
    return (product if bias is None else product + bias).detach()


def close(got: Tensor, wanted: np.ndarray, tolerance: float) -> None:
    assert got.dtype == torch.float64
    assert got.shape == wanted.shape
    size = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=0, atol=tolerance * size)


def embedding(*families: str) -> list[str]:
    return [n for n in posenc.names() if posenc.card(n).family in families]


@pytest.mark.parametrize("name", embedding("additive", "embedded"))
@given(data=st.data())
@strategies.check(60)
def test_embedding(name: str, data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, name).eval()
    pos = data.draw(strategies.sites(encoding))
    batched = pos.ndim == 2 + (encoding.n_axes > 1)
    n = pos.shape[1] if batched else pos.shape[0]
    x = strategies.normal(pos.shape[0] if batched else 1, n, encoding.d_model)
    define = definitions.find(name)
    assert define is not None
    wanted, learned = [], mathematics(encoding)
    for tokens, row in zip(x.numpy(), rows(pos, encoding.n_axes), strict=True):
        additive = posenc.card(name).family == "additive"
        wanted.append(tokens + define(row, **learned) if additive else define(tokens, row, **learned))
    close(encoding.embed(x, encoding.place(pos, dtype=torch.float64)), np.array(wanted), amplified(encoding, pos))


def amplified(encoding: Any, pos: Tensor) -> float:
    """What float64 leaves, where learned frequencies or a network make more of it than frequencies up to 2."""
    steep = [float(p.detach().abs().sum(-1).max()) for p in encoding.parameters() if p.ndim]
    return slack(pos) * max(1.0, math.prod(max(s, 1.0) for s in steep) if len(steep) < 6 else 1e3)


ROTARY = [n for n in posenc.names() if posenc.card(n).family == "rotary" and n not in {"pope", *READ_TOKENS}]


@pytest.mark.parametrize("name", ROTARY)
@given(data=st.data())
@strategies.check(60)
def test_rotary(name: str, data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, name)
    pos = data.draw(strategies.sites(encoding, batch=False))
    k_pos = data.draw(strategies.sites(encoding, batch=False))
    if name == "xpos":  # factors leave float32 beyond
        reach = 80 * encoding.scale_base / np.log(1 + 1 / encoding.gamma)
        pos, k_pos = (p.double().clamp(encoding.centre - reach, encoding.centre + reach) for p in (pos, k_pos))
    head_dim = getattr(encoding, "head_dim", 4)
    arguments = mathematics(encoding) | {"head_dim": head_dim}
    groups = getattr(encoding, "n_kv_heads", None) or 1
    heads = getattr(encoding, "n_heads", 2 * groups), groups
    q, k = (strategies.normal(1, h, len(p), head_dim, seed=len(p)) for h, p in zip(heads, (pos, k_pos), strict=True))
    define = definitions.find(name)
    assert define is not None
    # slack counts on 2 radians a position at most, and LieRE's trained generators have more
    steep = max(1.0, float(encoding.skew.detach().norm(dim=-1).sum(0).max()) / 2) if name == "liere" else 1.0
    turned = encoding.rotate(q, k, *(encoding.place(p, dtype=torch.float64) for p in (pos, k_pos)))
    for side, (x, at) in enumerate(((q, pos), (k, k_pos))):
        points = [float(p) if encoding.n_axes == 1 else p.double().numpy() for p in at]
        matrices = [define(p, **arguments)[side] for p in points]
        for i, matrix in enumerate(matrices):
            here = x[0, :, i].numpy()
            each = np.repeat(matrix, len(here) // len(matrix), axis=0) if matrix.ndim == 3 else matrix
            wanted, size = ((m @ y[..., None])[..., 0] for m, y in ((each, here), (np.abs(each), np.abs(here))))
            ones = np.maximum(size, np.finfo(float).tiny)
            close(turned[side][0, :, i] / torch.from_numpy(ones), wanted / ones, 8 * steep * slack(pos, k_pos))
    factor = encoding.options().get("score_factor", 1.0)
    assert encoding.score_scale(head_dim) == pytest.approx(factor / np.sqrt(head_dim), rel=1e-15)


@given(data=st.data())
@strategies.check(60)
def test_pope(data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, "pope")
    pos, k_pos = (data.draw(strategies.sites(encoding, batch=False)) for _ in "qk")
    heads, head_dim = (2 * encoding.n_kv_heads, encoding.n_kv_heads), encoding.head_dim
    q, k = (strategies.normal(1, h, len(p), head_dim, seed=h) for h, p in zip(heads, (pos, k_pos), strict=True))
    define = definitions.find("pope")
    assert define is not None
    at = [p.double().numpy() for p in (pos, k_pos)]
    wanted = define(q[0].numpy(), k[0].numpy(), *at, **mathematics(encoding)) * head_dim**-0.5
    turned_q, turned_k = encoding.rotate(q, k, *(encoding.place(p, dtype=torch.float64) for p in (pos, k_pos)))
    got = encoding.score_scale(turned_q.shape[-1]) * turned_q @ turned_k.repeat_interleave(2, 1).mT
    close(got[0].detach(), wanted, 8 * slack(pos, k_pos))


BIASES = [
    name
    for name in posenc.names()
    if posenc.card(name).family in ("none", "bias", "content_bias") and name not in READ_TOKENS
]


@pytest.mark.parametrize("name", BIASES)
@given(data=st.data())
@strategies.check(60)
def test_bias(name: str, data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, name)
    pos, k_pos = (data.draw(strategies.sites(encoding, max_len=4)) for _ in "qk")
    plain = 1 if encoding.n_axes == 1 else 2  # dimensions without a batch
    if pos.ndim == k_pos.ndim == 1 + plain:
        k_pos = k_pos[:1].expand(pos.shape[0], *k_pos.shape[1:])
    batch = max(p.shape[0] if p.ndim > plain else 1 for p in (pos, k_pos))
    n_heads, head_dim = getattr(encoding, "n_heads", 2), getattr(encoding, "head_dim", 3)
    q, k = (strategies.normal(batch, n_heads, p.shape[-plain], head_dim, seed=i) for i, p in enumerate((pos, k_pos)))
    family, define = posenc.card(name).family, definitions.find(name)
    assert define is not None
    options = encoding.options()
    scale = options.get("score_scale") or (PRODUCTS.get(name, lambda _: 1)(options) * head_dim) ** -0.5
    wanted = []
    for b in range(batch):
        at = [rows(p, encoding.n_axes)[b if p.ndim > plain else 0] for p in (pos, k_pos)]
        both = q[b].numpy(), k[b].numpy()
        product = np.einsum("hid,hjd->hij", *both) * scale
        term = {
            "none": lambda both=both: define(*both),
            "bias": lambda at=at, product=product: product + define(*at, **mathematics(encoding)),
            "content_bias": lambda at=at, both=both, product=product: (
                product + define(*both, *at, **mathematics(encoding))
            ),
        }
        wanted.append(term[family]())
    close(scores(encoding, q, k, pos, k_pos), np.array(wanted), slack(pos, k_pos) * 8)


@pytest.mark.parametrize("name", [n for n in sorted(READ_TOKENS) if posenc.card(n).family == "rotary"])
@given(data=st.data())
@strategies.check(60)
def test_read_rotations(name: str, data: st.DataObject) -> None:
    """Each row of a batch is a text, whose tokens rotate queries and keys that are its own."""
    encoding = strategies.draw_encoding(data, name)
    pos = data.draw(strategies.sites(encoding))
    batch, n = data.draw(st.integers(1, 3)) if pos.ndim == 1 else pos.shape[0], pos.shape[-1]
    x = strategies.normal(batch, n, encoding.d_model)
    groups = encoding.n_kv_heads
    q, k = (strategies.normal(batch, h, n, encoding.head_dim, seed=h) for h in (2 * groups, groups))
    define = definitions.find(name)
    assert define is not None
    at = rows(pos) if pos.ndim > 1 else rows(pos) * batch
    rotated = encoding.rotate(q, k, encoding.place(pos, x, dtype=torch.float64))
    for i in range(batch):
        sides = define(x[i].numpy(), at[i], **mathematics(encoding))
        for got, side, t in zip(rotated, sides, (q, k), strict=True):
            close(got[i], turn(side, t[i].numpy()), 1e-11)


@pytest.mark.parametrize("name", [n for n in sorted(READ_TOKENS) if posenc.card(n).family == "bias"])
@given(data=st.data())
@strategies.check(60)
def test_read_tokens(name: str, data: st.DataObject) -> None:
    """Each row of a batch is a text; what FoX's tokens forget follows their order, wherever they stand."""
    encoding = strategies.draw_encoding(data, name)
    pos = data.draw(strategies.sites(encoding))
    batch, n = data.draw(st.integers(1, 3)) if pos.ndim == 1 else pos.shape[0], pos.shape[-1]
    x = strategies.normal(batch, n, encoding.d_model)
    q, k = (strategies.normal(batch, encoding.n_heads, n, 3, seed=seed) for seed in (1, 2))
    define = definitions.find(name)
    assert define is not None
    at = rows(pos) if pos.ndim > 1 else rows(pos) * batch
    placed = encoding.place(pos, x, dtype=torch.float64)
    got = torch.einsum("bhid,bhjd->bhij", q, k) * 3**-0.5 + encoding.bias(q, k, placed, placed)
    texts = zip(x.numpy(), at, strict=True)
    terms = np.array([define(*of_text(define, *text), **mathematics(encoding)) for text in texts])
    close(got, np.einsum("bhid,bhjd->bhij", q, k) * 3**-0.5 + terms, 1e-12)


@pytest.mark.parametrize("name", [n for n in posenc.names() if posenc.card(n).family == "piecewise"])
@given(data=st.data())
@strategies.check(60)
def test_piecewise(name: str, data: st.DataObject) -> None:
    """Definitions give whole scores, q.k included, for whole positions."""
    encoding = strategies.draw_encoding(data, name)
    pos, k_pos = (data.draw(strategies.sites(encoding, max_len=4, batch=False, real=False)) for _ in "qk")
    heads = zip((4, 2), (pos, k_pos), strict=True)
    q, k = (strategies.normal(1, h, len(p), encoding.head_dim, seed=h) for h, p in heads)
    define = definitions.find(name)
    assert define is not None
    wanted = define(q[0].numpy(), k[0].numpy(), *(rows(p)[0] for p in (pos, k_pos)), **mathematics(encoding))
    close(scores(encoding, q, k.repeat_interleave(2, 1), pos, k_pos)[0], wanted, slack(pos, k_pos) * 8)
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (pos, k_pos))
    shared, each = (encoding.bias(q, keys, placed, k_placed) for keys in (k, k.repeat_interleave(2, 1)))
    torch.testing.assert_close(shared, each, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in posenc.names() if posenc.card(n).family == "score_map"])
@given(data=st.data())
@strategies.check(60)
def test_score_maps(name: str, data: st.DataObject) -> None:
    """Definitions count by column, so they get keys in order; scores that are not allowed have no meaning."""
    encoding = strategies.draw_encoding(data, name)
    places = st.lists(st.integers(-strategies.FAR, strategies.FAR), min_size=1, max_size=5, unique=True)
    pos, k_pos = (torch.tensor(data.draw(places)) for _ in "qk")
    x = strategies.normal(2, len(pos), encoding.d_model) if encoding.reads_x else None
    k_pos = pos if encoding.reads_x else k_pos  # one text
    n_heads, head_dim = getattr(encoding, "n_heads", 2), getattr(encoding, "head_dim", 3)
    q, k = (strategies.normal(2, n_heads, len(p), head_dim, seed=len(p)) for p in (pos, k_pos))
    given_scores = strategies.normal(2, n_heads, len(pos), len(k_pos), seed=7) * 2
    allowed = strategies.normal(len(pos), len(k_pos), seed=data.draw(st.integers(0, 99))) > -0.5
    allowed[0, 0] = True  # so that there is something to compare
    define, learned, order = definitions.find(name), mathematics(encoding), k_pos.argsort()
    order = torch.arange(len(pos)) if encoding.reads_x else order  # which says itself which keys stand later
    assert define is not None
    at = [rows(p)[0] for p in (pos, k_pos[order])]
    if name == "dape":  # the bias inside has a definition of its own
        inner = definitions.find(learned.pop("encoding"))
        assert inner is not None
        learned = {key: value for key, value in learned.items() if not key.startswith("encoding.")}
        terms = {"bias": inner(*at, **mathematics(encoding.encoding))}
    wanted = []
    for b in range(2):
        if name == "grape_ap":
            terms = {"x": x[b].numpy(), "pos": pos.numpy()}
        if name == "cope":
            terms = {"q": q[b].numpy(), "k": k[b, :, order].numpy()}
        ordered = given_scores[b, ..., order].numpy()
        wanted.append(define(ordered, **terms, allowed=allowed[:, order].numpy(), **learned))
    placed, k_placed = (encoding.place(p, x, dtype=torch.float64) for p in (pos, k_pos))
    got = encoding.rescore(given_scores, q, k, placed, k_placed, allowed)[..., order]
    seen = allowed[:, order]
    close(got[..., seen], np.array(wanted)[..., seen.numpy()], slack(pos, k_pos) * 8)
    assert bool(got.isfinite().all())
