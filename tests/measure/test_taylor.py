"""The Taylor view against quadratic forms of known H, closed forms, and differences without autograd."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import posenc
import strategies
from posenc import measure, positions
from posenc.nn import LanguageModel

WIDE = torch.float64


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def language_model(encoding, seed=0, vocab_size=11):
    torch.manual_seed(seed)
    model = LanguageModel(vocab_size=vocab_size, d_model=16, n_layers=2, n_heads=2, encoding=encoding)
    for weight in model.parameters():
        weight.data = torch.randn_like(weight) * 0.3
    return model.eval()


def change(function, x, p, m, n):
    """f of two displacements less f of each: the mixed difference, without derivatives."""

    def at(a, b):
        moved = x.clone()
        moved[m] += a * p[m]
        moved[n] += b * p[n]
        return float(function(moved))

    h = 1e-4
    return (at(h, h) - at(h, -h) - at(-h, h) + at(-h, -h)) / (4 * h * h)


def test_a_quadratic_form_has_the_terms_of_its_matrix_and_no_remainder():
    seq, d = 3, 4
    a, b, x, p = draw(seq, d, seq, d), draw(seq, d, seed=1), draw(seq, d, seed=2), draw(seq, d, seed=3)
    h = a + a.permute(2, 3, 0, 1)  # of f = z A z + b z
    found = measure.taylor_terms(lambda z: torch.einsum("ma,manb,nb->", z, a, z) + (b * z).sum(), x, p)
    pairs = torch.einsum("ma,manb,nb->mn", p, h, p).numpy()
    slopes = (p * (b + torch.einsum("manb,nb->ma", h, x))).sum(-1)
    np.testing.assert_allclose(found.slopes, slopes.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.curvatures, pairs.diagonal() / 2, rtol=1e-12)
    np.testing.assert_allclose(found.interaction, pairs - np.diag(pairs.diagonal()), rtol=1e-12)
    assert found.totals["remainder"] == pytest.approx(0, abs=1e-11)
    assert sum(found.shares.values()) == pytest.approx(1, abs=1e-12)
    for m, n in itertools.product(range(seq), repeat=2):
        block = measure.interaction_block(lambda z: torch.einsum("ma,manb,nb->", z, a, z), x, m, n)
        np.testing.assert_allclose(block, h[m, :, n].numpy(), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_terms_of_an_exponential_are_those_of_its_series(dtype, rtol):
    # f = exp(w·z) at 0: with s_m = w_m · p_m the terms are sums of s_m, s_m²/2 and s_m s_n
    w, p = draw(4, 3), 0.1 * draw(4, 3, seed=1)
    s = (w * p).sum(-1).numpy()
    found = measure.taylor_terms(lambda z: (w.to(dtype) * z).sum().exp(), torch.zeros(4, 3, dtype=dtype), p.to(dtype))
    np.testing.assert_allclose(found.slopes, s, rtol=rtol)
    np.testing.assert_allclose(found.curvatures, s**2 / 2, rtol=rtol)
    np.testing.assert_allclose(found.interaction, np.outer(s, s) * (1 - np.eye(4)), rtol=rtol)
    assert found.constant == 1.0
    assert found.change == pytest.approx(np.expm1(s.sum()), rel=rtol)
    remainder = np.exp(s.sum()) - 1 - s.sum() - s.sum() ** 2 / 2
    assert found.totals["remainder"] == pytest.approx(remainder, abs=rtol / 100)


def test_the_remainder_is_of_third_order():
    question = measure.taylor_question(language_model(posenc.Sinusoidal(d_model=16)), torch.tensor([1, 2, 3]), logit=4)
    smooth = lambda z: (z @ z.T / 4).softmax(-1).matmul(z).tanh().sum()  # noqa: E731
    large, small = (measure.taylor_terms(smooth, question.x, t * question.p) for t in (0.02, 0.01))
    assert large.totals["remainder"] / small.totals["remainder"] == pytest.approx(8, rel=0.05)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["sinusoidal", "learned", "alibi", "t5", "kerple", "cope"])
@pytest.mark.parametrize("logit", [None, 7])
def test_the_interaction_of_a_language_model_is_that_of_differences(name, logit):
    others = {"sinusoidal": lambda: posenc.NoPE(), "learned": lambda: posenc.RoPE(head_dim=8)}
    dims = posenc.Dims(d_model=16, n_heads=2, n_kv_heads=2, head_dim=8, max_len=16)
    encoding = others.get(name, lambda: posenc.create(name, dims=dims))()
    vectors = posenc.Learned(d_model=16, max_len=9) if name == "learned" else posenc.Sinusoidal(d_model=16)
    model = language_model(posenc.Compose(vectors, encoding))
    f, x, p = measure.taylor_question(model, torch.tensor([3, 1, 4, 1, 5]), logit=logit)
    found = measure.taylor_terms(f, x, p)
    for m, n in ((0, 3), (1, 2), (3, 2)):
        assert found.interaction[m, n] == pytest.approx(change(f, x, p, m, n), rel=1e-4, abs=1e-7)
        block = measure.interaction_block(f, x, m, n)
        assert p[m].numpy() @ block @ p[n].numpy() == pytest.approx(found.interaction[m, n], rel=1e-9)


@pytest.mark.parametrize("logit", [None, 7])
def test_the_function_is_the_model_at_x_plus_p_and_a_model_without_position_at_x(logit):
    tokens = torch.tensor([3, 1, 4, 1, 5])
    with_p, without = language_model(posenc.Sinusoidal(d_model=16)), language_model(posenc.NoPE())
    before = {name: weight.clone() for name, weight in with_p.state_dict().items()}
    f, x, p = measure.taylor_question(with_p, tokens, logit=logit)
    torch.testing.assert_close(p, posenc.Sinusoidal(d_model=16).vectors(positions.arange(5)), atol=1e-7, rtol=0)
    for z, model in ((x + p, with_p), (x, without)):
        logits = model.double()(tokens[None])[0]
        wanted = F.cross_entropy(logits[:-1], tokens[1:]) if logit is None else logits[-1, 7]
        torch.testing.assert_close(f(z), wanted, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(weight.to(before[name]), before[name]) for name, weight in with_p.state_dict().items())


def test_rows_displace_some_tokens_only():
    a, x, p = draw(6, 6), draw(3, 2, seed=1), draw(3, 2, seed=2)
    f = lambda z: z.flatten() @ a @ z.flatten()  # noqa: E731
    found, whole = measure.taylor_terms(f, x, p, rows=[2, 0]), measure.taylor_terms(f, x, p)
    assert found.rows.tolist() == [2, 0]
    np.testing.assert_allclose(found.interaction, whole.interaction[np.ix_([2, 0], [2, 0])], rtol=1e-12)
    moved = x + p * torch.tensor([[1.0], [0.0], [1.0]])
    assert found.displaced == pytest.approx(float(f(moved)), rel=1e-12)
    assert found.totals["remainder"] == pytest.approx(0, abs=1e-12)


def test_fused_attention_is_replaced_and_no_grad_around_the_call_has_no_effect():
    x, p = draw(4, 8), draw(4, 8, seed=1)

    def f(z):
        q = z.view(4, 2, 4).transpose(0, 1)[None]
        return F.scaled_dot_product_attention(q, q, q).square().sum()

    def by_hand(z):
        q = z.view(4, 2, 4).transpose(0, 1)[None]
        return ((q @ q.mT / 2).softmax(-1) @ q).square().sum()

    with torch.no_grad():
        found, wanted = measure.taylor_terms(f, x, p), measure.taylor_terms(by_hand, x, p)
    np.testing.assert_allclose(found.interaction, wanted.interaction, rtol=1e-9)
    assert found.interaction.any()


def test_a_linear_function_has_slopes_only():
    w, p = draw(3, 2), draw(3, 2, seed=1)
    found = measure.taylor_terms(lambda z: (w * z).sum(), torch.zeros(3, 2, dtype=WIDE), p)
    assert not found.interaction.any()
    assert found.totals["slope"] == pytest.approx(found.change, rel=1e-12)


class Slip(torch.autograd.Function):
    """A backward pass that does not pass gradients to its input."""

    @staticmethod
    def forward(z):
        return z.pow(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0].detach() ** 2


def fused(z):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        q = z[None, None]
        return F.scaled_dot_product_attention(q, q, q).sum()


torch.manual_seed(0)
BENT = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
DROPPED = nn.Dropout(0.5)
REFUSED = {
    "a vector": (lambda z: z[0], "must return one real number", "Pick one logit, or a loss."),
    "a number": (lambda z: 3.0, "must return one real number as a tensor; got float", "Pick"),
    "infinite": (lambda z: (0 * z.sum()).log(), "the function must be finite; got -inf", ""),
    "detached": (lambda z: z.detach().square().sum(), "the function has no gradient", "detach()"),
    "constant": (lambda z: torch.ones(()), "it does not depend on x", "Compute it from its argument"),
    "relu": (lambda z: BENT(z).sum(), "as in a network with only ReLU", "softplus or GELU for ReLU"),
    "fused": (fused, "no second derivative in torch", 'posenc.attend(..., backend="reference")'),
    "wrong": (
        lambda z: (Slip.apply(z) + z * z).sum(),
        "differs from the change of its first one",
        "hand-written backward",
    ),
    "dropout": (lambda z: DROPPED(z).square().sum(), "must return the same value when called again", "model.eval()"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(
    "ask",
    [
        lambda f, x: measure.taylor_terms(f, x, 3 * draw(*x.shape, seed=5)),
        lambda f, x: measure.interaction_block(f, x, 0, 2),
    ],
    ids=["terms", "block"],
)
def test_a_function_that_cannot_be_expanded_is_refused_with_a_remedy(case, ask):
    function, what, remedy = REFUSED[case]
    with strategies.refuses(ValueError, what, remedy):
        ask(function, draw(3, 4, seed=4))


def test_a_token_without_effect_is_refused_if_it_is_asked_for():
    x, p, f = draw(3, 2), draw(3, 2, seed=1), lambda z: (z[0] * z[1]).sum()
    assert measure.taylor_terms(f, x, p).slopes[2] == 0
    for ask in (lambda: measure.taylor_terms(f, x, p, rows=[0, 2]), lambda: measure.interaction_block(f, x, 2, 1)):
        with strategies.refuses(ValueError, "does not depend on token 2", "Leave it out."):
            ask()
    at_zero = measure.interaction_block(f, torch.zeros(3, 2, dtype=WIDE), 0, 1)  # no slope, but a block
    assert at_zero.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_wrong_tokens_are_refused():
    x, f = draw(3, 2), lambda z: z.sum()
    with strategies.refuses(TypeError, "x must be a floating tensor", "got torch.int64"):
        measure.taylor_terms(f, x.long(), x)
    with strategies.refuses(ValueError, "p must be float64, or float32", "Cast model and tokens."):
        measure.taylor_terms(f, x, x.half())
    with strategies.refuses(ValueError, "x and p must both be (seq, d_model)", "one text at a time"):
        measure.taylor_terms(f, x, x[:2])
    with strategies.refuses(ValueError, "p must be finite", ""):
        measure.taylor_terms(f, x, x / 0)
    for rows in ([3], [-1], [0, 0], []):
        with strategies.refuses(ValueError, "tokens must be from 0 to 2", "each once"):
            measure.taylor_terms(f, x, x, rows=rows)


def test_models_without_vectors_and_texts_that_do_not_fit_are_refused():
    text, sinusoidal = torch.tensor([1, 2]), language_model(posenc.Sinusoidal(d_model=16))
    refused = {
        "adds nothing to the embeddings": posenc.RoPE(head_dim=8),
        "does more to the embeddings than add to them": posenc.ComplexOrder(d_model=16),
    }
    for what, encoding in refused.items():
        with strategies.refuses(ValueError, what, "Use a model with an additive encoding."):
            measure.taylor_question(language_model(encoding), text)
    for tokens in (text[:1], text[None], text + 9, text - 2, text.double()):
        with strategies.refuses(ValueError, "tokens must be (seq,) ids below 11", "one text at a time"):
            measure.taylor_question(sinusoidal, tokens)
    with strategies.refuses(ValueError, "logit must be an id from 0 to 10", "got 11"):
        measure.taylor_question(sinusoidal, text, logit=11)


@pytest.mark.parametrize("order", ["alternating", "concatenated"])
@pytest.mark.parametrize("block", [draw(6).numpy(), 2.0], ids=["diagonal", "number"])
def test_a_diagonal_gives_half_the_sum_to_m_minus_n_and_half_the_difference_to_m_plus_n(order, block):
    pos, theta, h = np.array([0.0, 1.0, 2.5, 70.0]), 10000 ** (-np.arange(3) / 3), np.full(6, block)
    sine, cosine = (h[::2], h[1::2]) if order == "alternating" else (h[:3], h[3:])
    parts = measure.relative_parts(posenc.Sinusoidal(d_model=6, order=order), pos, block=block)
    minus, plus = pos[:, None] - pos, pos[:, None] + pos
    by_minus = sum((s + c) / 2 * np.cos(minus * t) for s, c, t in zip(sine, cosine, theta, strict=True))
    by_plus = sum((c - s) / 2 * np.cos(plus * t) for s, c, t in zip(sine, cosine, theta, strict=True))
    for part, wanted in ((parts.difference, by_minus), (parts.sum, by_plus), (parts.mixed, 0 * minus)):
        np.testing.assert_allclose(part, wanted, atol=1e-12)
    square = {"difference": ((sine + cosine) ** 2).sum(), "sum": ((sine - cosine) ** 2).sum(), "mixed": 0.0}
    total = sum(square.values())
    assert parts.shares == pytest.approx({name: float(value / total) for name, value in square.items()}, abs=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"order": "concatenated"}, {"learned_scale": 0.5}, {"d_model": 5, "base": 100.0}]
)
def test_a_general_block_is_the_sum_of_products_of_dimensions_each_in_its_part(options):
    options = {"d_model": 6, "base": 10000.0} | options
    d, base, pos = options["d_model"], options["base"], np.array([0, 2, 31])
    scale = options.get("learned_scale", 1.0)
    place = [0, 3, 1, 4, 2, 5] if "order" in options else range(d)  # of Vaswani's dimensions
    h = draw(d, d).numpy()
    parts = measure.relative_parts(posenc.Sinusoidal(**options), pos, pos + 1, block=torch.tensor(h))
    for i, m in enumerate(pos):
        for j, n in enumerate(pos + 1):
            want = {"difference": 0.0, "sum": 0.0, "mixed": 0.0}
            for a, b in itertools.product(range(d), repeat=2):
                t, u = (base ** (-2 * (of // 2) / d) for of in (a, b))
                x, y = (angle - np.pi / 2 * (of % 2 == 0) for angle, of in ((m * t, a), (n * u, b)))
                factor = scale**2 * h[place[a], place[b]]  # cos x cos y = (cos(x - y) + cos(x + y)) / 2
                want["difference" if t == u else "mixed"] += factor * np.cos(x - y) / 2
                want["sum" if t == u else "mixed"] += factor * np.cos(x + y) / 2
            for name, value in want.items():
                assert getattr(parts, name)[i, j] == pytest.approx(value, abs=1e-10)
    np.testing.assert_allclose(parts.difference + parts.sum + parts.mixed, parts.total, atol=1e-12)


def test_shares_are_mean_squares_over_many_positions_and_waves_add_up_to_the_parts():
    encoding = posenc.Sinusoidal(d_model=6, inv_freq=[1.0, 0.6180339887, 0.0])
    pos = np.arange(3000)
    parts = measure.relative_parts(encoding, pos, pos[:1500], block=draw(6, 6, seed=8).numpy())
    squares = {name: float((getattr(parts, name) ** 2).mean()) for name in parts.shares}
    total = float((parts.total**2).mean())
    assert {name: square / total for name, square in squares.items()} == pytest.approx(parts.shares, abs=0.004)
    assert min(parts.shares.values()) > 0.02
    for part, waves, sign in ((parts.difference, parts.difference_waves, -1), (parts.sum, parts.sum_waves, 1)):
        angle = (pos[:, None] + sign * pos[:1500])[:40, :40, None] * parts.inv_freq
        np.testing.assert_allclose((np.exp(1j * angle) * waves).real.sum(-1), part[:40, :40], atol=1e-10)


def test_a_frequency_and_its_negative_are_one_wave():
    encoding = posenc.Sinusoidal(d_model=4, inv_freq=[0.3, -0.3])
    parts = measure.relative_parts(encoding, np.arange(9), block=draw(4, 4).numpy())
    assert parts.inv_freq.tolist() == [0.3]
    np.testing.assert_allclose(parts.mixed, 0, atol=1e-12)
    for part, sign in ((parts.difference, -1), (parts.sum, 1)):
        m = np.arange(9)
        for value in np.unique(m[:, None] + sign * m):
            assert np.ptp(part[m[:, None] + sign * m == value]) < 1e-12


def test_distance_shares_separate_the_two_parts_and_noise():
    m = np.arange(40)
    values = {"difference": np.cos(0.3 * (m[:, None] - m)), "sum": np.cos(0.3 * (m[:, None] + m))}
    for name, other in (("difference", "sum"), ("sum", "difference")):
        found = measure.distance_shares(values[name] + 1000 * np.eye(40))  # the diagonal does not count
        assert getattr(found, name) == pytest.approx(1, abs=1e-12)
        assert getattr(found, other) < 0.3
    found = [measure.distance_shares(a + a.T) for a in draw(200, 40, 40, seed=3).numpy()]
    assert np.mean([(f.difference, f.sum) for f in found], 0) == pytest.approx(found[0].chance, rel=0.05)
