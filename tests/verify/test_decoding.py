"""Models with a cache, and attention as a whole: each fault planted alone, beside what is right and unusual."""

import copy
import math

import pytest
import torch
from torch import nn

from posenc import verify
from posenc.verify.codes import rules
from posenc.verify.decoding import check as decoding
from posenc.verify.decoding import reading
from posenc.verify.decoding.words import WORDS

ROPE = {"kind": "decode_equivalence", "encoding": "rope"}


def report(subject, convention="cached_model", spec=ROPE):
    return decoding.check(subject, convention, spec).report(convention)


def code(subject, convention="cached_model", spec=ROPE):
    found = report(subject, convention, spec)
    return found.causes[0].code if found.causes else found.status


def turn(x, p, base=10000.0):
    half = x.shape[-1] // 2
    angle = p.double()[..., None] * base ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Model(nn.Module):
    """Attention with a cache of turned keys; `fault` names the line that is wrong."""

    def __init__(self, fault="", layers=1, bias=False, residual=False, dim=32, heads=4):
        super().__init__()
        torch.manual_seed(0)
        self.fault, self.heads, self.residual = fault, heads, residual or layers > 1
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim, bias=bias) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(dim, dim, bias=bias) for _ in range(layers))
        self.tables, self.kept = {}, 0

    def forward(self, x, cache=None):
        new, n, fault = cache is None, x.shape[1], self.fault
        if new:
            cache = dict.fromkeys(("seen", "calls", "added", "late", "last"), 0)
            cache |= {"k": [None] * len(self.qkv), "v": [None] * len(self.qkv)}
        past = self.kept if fault == "state" and not new else cache["seen"]
        for i, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
            p = self.where(i, new, n, past, cache)
            at_q = torch.arange(n) if fault == "query" and not new else p
            if fault == "again":
                k = k if new else torch.cat((cache["k"][i], k), 2)
                k = turn(k, torch.arange(k.shape[2]))
            else:
                k = turn(k, p)
                k = k if new else torch.cat((cache["k"][i], k), 2)
            v = v if new else torch.cat((cache["v"][i], v), 2)
            seen_k, seen_v = (k[:, :, -n:], v[:, :, -n:]) if fault == "unused" else (k, v)
            cache["k"][i], cache["v"][i] = k, v
            q = turn(q, at_q)
            if fault == "first row" and n == 1:
                q = torch.cat((q[:1], 0 * q[1:]))
            scores = q @ seen_k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(scores.shape[-1] - n + 1)
            if fault == "no mask" or (fault == "mask of the first call only" and not new):
                ahead = ahead & False
            scores = scores.masked_fill(ahead, -math.inf)
            y = out((scores.softmax(-1) @ seen_v).transpose(1, 2).flatten(2))
            x = x + y if self.residual else y
        cache["added"] += cache["seen"] + n
        cache["late"] += cache["last"] or n
        cache["last"] = n
        cache["seen"] += n
        cache["calls"] += 1
        self.kept += n
        return x, cache

    def where(self, layer, new, n, past, cache):
        offset = {
            "ignored": 0,
            "single": 0 if n == 1 else past,
            "one too far": past if new else past + 1,
            "one too near": past if new else past - 1,
            "early": past + n,
            "early above": past + n if layer else past,
            "one more above": past + 1 if layer and not new else past,
            "calls": cache["calls"],
            "double": cache["added"],
            "twice": 2 * past,
            "call before": cache["late"],
        }.get(self.fault, past)
        if self.fault == "chunk" and n > 1 and not new:
            return torch.full((n,), offset)
        if self.fault == "part from zero" and n > 1:
            return torch.arange(n)
        if self.fault == "nowhere":
            return torch.zeros(n)
        p = offset + torch.arange(n)
        return self.tables.setdefault(n, p) if self.fault == "table" else p


FAULTS = {
    "ignored": "rope.kv_cache.offset_ignored",
    "single": "rope.decode.single_token_path",
    "first row": "rope.decode.single_token_path",
    "one too far": "rope.kv_cache.off_by_one",
    "one too near": "rope.kv_cache.off_by_one",
    "early": "rope.kv_cache.count_too_early",
    "calls": "rope.kv_cache.counts_calls",
    "double": "rope.kv_cache.offset_double_counted",
    "twice": "rope.kv_cache.offset_double_counted",
    "chunk": "rope.window.positions_constant",
    "part from zero": "rope.decode.chunk_positions",
    "call before": "rope.kv_cache.offset_double_counted",
    "query": "rope.kv_cache.query_offset_missing",
    "again": "rope.kv_cache.rotated_then_rotated_again",
    "table": "rope.offset.ignored_by_cache",
    "state": "rope.kv_cache.state_kept",
    "unused": "rope.kv_cache.past_not_seen",
    "no mask": "rope.decode.not_causal",
    "nowhere": "rope.not_applied",
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault):
    cause = report(Model(fault)).causes[0]
    assert cause.code == FAULTS[fault]
    assert cause.code in rules()
    assert cause.evidence > 1e-3


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", ["single", "early", "calls", "double", "chunk", "again", "table", "state", "unused"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_planted_fault_is_named_in_several_layers(fault, bias):
    assert code(Model(fault, layers=2, bias=bias)) == FAULTS[fault]


@pytest.mark.parametrize("fault", ["early above", "one more above"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_count_that_grows_between_layers_is_named(fault, bias):
    spec = {**ROPE, "layers": 2}
    assert code(Model(fault, layers=2, bias=bias), spec=spec) == "rope.kv_cache.count_too_early"


class Windowed(nn.Module):
    """The last five keys alone are kept; new tokens stand behind all that were seen, or behind what is left."""

    def __init__(self, kept_count=False):
        super().__init__()
        torch.manual_seed(5)
        self.kept_count, self.w = kept_count, nn.Parameter(torch.randn(3, 24, 24) / 4)

    def forward(self, x, cache=None):
        seen, past = cache or (0, x.new_zeros(2, len(x), 0, 24))
        n, m = x.shape[1], past.shape[2] + x.shape[1]
        q, k, v = (x @ w for w in self.w)
        p = (past.shape[2] if self.kept_count else seen) + torch.arange(n)
        kv = torch.cat((past, torch.stack((turn(k, p), v))), 2)
        distance = torch.arange(m - n, m)[:, None] - torch.arange(m)
        scores = (turn(q, p) @ kv[0].mT / 5).masked_fill((distance < 0) | (distance >= 5), -math.inf)
        return scores.softmax(-1) @ kv[1], (seen + n, kv[:, :, -5:])


def test_positions_that_count_what_a_window_left():
    assert code(Windowed()) == "pass"
    assert code(Windowed(kept_count=True)) == "rope.kv_cache.eviction_offset"


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("chunk", "rope.window.positions_constant"),
        ("part from zero", "rope.decode.chunk_positions"),
        ("ignored", "rope.kv_cache.offset_ignored"),
    ],
)
def test_a_softmax_over_other_things(fault, name):
    class Routed(Model):
        def forward(self, x, cache=None):
            gates = (x @ torch.ones(32, 3) * torch.arange(3)).softmax(-1).sum(-1, keepdim=True)
            return super().forward(x * gates, cache)

    assert code(Routed(fault, layers=2)) == name


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("chunk", "rope.window.positions_constant"),
        ("part from zero", "rope.decode.chunk_positions"),
        ("ignored", "rope.kv_cache.offset_ignored"),
    ],
)
def test_scores_that_nobody_sees(fault, name, monkeypatch):
    monkeypatch.setattr(reading, "watch", lambda b, x, chunks: [[] for _ in chunks])
    assert code(Model(fault)) == name


def test_what_has_no_name_is_a_mismatch():
    class Stretched(Model):
        def where(self, layer, new, n, past, cache):
            return past * past + torch.arange(n)

    assert code(Stretched()) == "rope.decode.mismatch"


def test_the_smallest_case_fails_by_itself():
    case = report(Model("early")).causes[0].smallest_case
    assert case["chunks"] == [2, 1]


class Static(Model):
    """A cache of a fixed size that is written into, held by an object."""

    class Held:
        def __init__(self):
            self.inner = None

    def forward(self, x, cache=None):
        held = self.Held() if cache is None else cache
        y, held.inner = super().forward(x, held.inner)
        return y, held


class Unturned(nn.Module):
    """Keys are kept as they are and turned anew at every step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.w = nn.Parameter(torch.randn(3, 24, 24) / 5)

    def forward(self, x, cache=None):
        past = None if cache is None else cache[0]
        x = x if past is None else torch.cat((past, x), 1)
        q, k, v = (x @ w for w in self.w)
        p = torch.arange(x.shape[1])
        scores = turn(q, p) @ turn(k, p).mT / 5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        y = scores.softmax(-1) @ v
        return (y if past is None else y[:, past.shape[1] :]), (x,)


def refuses_parts(x, cache=None, model=Model()):  # noqa: B008
    if cache is not None and x.shape[1] > 1:
        raise NotImplementedError("one token at a time")
    return model(x, copy.deepcopy(cache))


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("ignored", "rope.kv_cache.offset_ignored"),
        ("one too far", "rope.kv_cache.off_by_one"),
        ("double", "rope.kv_cache.offset_double_counted"),
        ("again", "rope.kv_cache.rotated_then_rotated_again"),
        ("early", "rope.kv_cache.count_too_early"),
    ],
)
def test_models_that_take_single_tokens_only(fault, name):
    model = Model(fault)
    assert code(lambda x, cache: refuses_parts(x, cache, model)) == name


INNOCENT = {
    "plain": Model(),
    "layers": Model(layers=3),
    "biased": Model(bias=True, residual=True),
    "eval": Model().eval(),
    "float64": Model().double(),
    "held": Static(),
    "unturned": Unturned(),
    "one at a time": refuses_parts,
    "no mask beside a cache": Model("mask of the first call only"),
    "wide": Model(dim=48, heads=3),
    "bfloat16": Model().bfloat16(),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", INNOCENT)
def test_innocent_models_pass(name):
    found = report(INNOCENT[name])
    assert (found.status, found.causes) == ("pass", ())


def test_dropout_is_not_called_a_fault():
    class Dropped(Model):
        def forward(self, x, cache=None):
            return super().forward(nn.functional.dropout(x, 0.5, self.training), cache)

    class Always(Model):
        def forward(self, x, cache=None):
            return super().forward(nn.functional.dropout(x, 0.5), cache)

    assert code(Dropped()) == "pass"
    assert code(Always()) == "cannot_tell"


class Biased(nn.Module):
    """ALiBi beside a cache; the bias of a step may be missing, or that of the queries among themselves."""

    def __init__(self, dropped=False, own=False):
        super().__init__()
        torch.manual_seed(2)
        self.dropped, self.own, self.w = dropped, own, nn.Parameter(torch.randn(3, 16, 16) / 4)

    def forward(self, x, cache=None):
        q, k, v = (x @ w for w in self.w)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        n, m = q.shape[1], k.shape[1]
        distance = (torch.arange(m - n, m)[:, None] - torch.arange(m)).float()
        bias = torch.zeros(1, 1) if self.dropped and cache is not None else 0.3 - 0.5 * distance
        bias = bias[:, m - n :] if self.own else bias
        scores = (q @ k.mT / 4 + bias).masked_fill(distance < 0, -math.inf)
        return scores.softmax(-1) @ v, (k, v)


def test_a_bias_that_is_dropped_beside_a_cache():
    assert code(Biased(), spec={"encoding": "alibi"}) == "pass"
    assert code(Biased(dropped=True), spec={"encoding": "alibi"}) == "alibi.decode.bias_dropped"
    assert code(Biased(own=True), spec={"encoding": "alibi"}) == "alibi.kv_cache.bias_zero"
    assert code(Biased(dropped=True), spec={"encoding": "t5"}) == "t5.decode.bias_dropped"
    assert code(Biased(own=True), spec={"encoding": "t5"}) == "t5.kv_cache.query_from_zero"


def test_xpos_with_a_centre_that_moves():
    def model(x, cache=None, fixed=False):
        torch.manual_seed(3)
        q, k, v = (x @ w for w in torch.randn(3, 16, 16) / 4)
        past = 0 if cache is None else cache[0].shape[1]
        p = torch.arange(past, past + x.shape[1])
        size = (torch.cat([torch.arange(8) / 8] * 2) + 0.4) / 1.4
        size = size ** ((p - (0 if fixed else (past + x.shape[1]) // 2))[:, None] / 16)
        q, k = turn(q, p) * size, turn(k, p) / size
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        scores = q @ k.mT / 4
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(past + 1)
        return scores.masked_fill(ahead, -math.inf).softmax(-1) @ v, (k, v)

    spec = {"encoding": "xpos", "dim": 16}
    assert code(lambda x, cache: model(x, cache, fixed=True), spec=spec) == "pass"
    assert code(model, spec=spec) == "xpos.kv_cache.centre_moves"


def attention(of_q=lambda p: p, of_k=lambda p: p, bias=None, causal=True, scale=0.25, base=10000.0):
    def run(q, k, v, positions):
        scores = turn(q, of_q(positions), base) @ turn(k, of_k(positions), base).mT * scale
        if bias is not None:
            scores = q @ k.mT * scale + bias(q.shape[1], positions)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v

    return run


def count(p):
    return torch.arange(len(p))


ASKED = {"encoding": "rope", "head_dim": 16, "heads": 3, "layout": "half", "base": 10000.0}


@pytest.mark.parametrize(
    ("subject", "spec", "name"),
    [
        (attention(), ASKED, "pass"),
        (attention(causal=False), ASKED, "pass"),
        (attention(lambda p: p + 7, lambda p: p + 7), ASKED, "pass"),
        (attention(lambda p: -p, lambda p: -p), ASKED, "equivalent"),
        (attention(scale=1.0), ASKED, "cannot_tell"),
        (attention(), {}, "cannot_tell"),
        (attention(count, count), ASKED, "positions.given_ignored"),
        (attention(lambda p: 0 * p, lambda p: 0 * p), ASKED, "rope.not_applied"),
        (attention(), {**ASKED, "layout": "interleaved"}, "rope.layout.wrong_pairing"),
        (attention(), {**ASKED, "base": 123456.0}, "rope.config.theta_not_read"),
        (attention(of_k=lambda p: -p), ASKED, "rope.sign.one_side"),
        (attention(lambda p: p + 1), ASKED, "rope.query.off_by_one"),
        (attention(of_k=lambda p: 0 * p), ASKED, "rope.key.not_turned"),
        (attention(lambda p: p.bfloat16(), lambda p: p.bfloat16()), ASKED, "rope.precision.positions_bf16"),
        (attention(lambda p: p**2, lambda p: p**2), ASKED, "rope.mismatch"),
        (attention(causal=False), {**ASKED, "causal": True}, "attention.not_causal"),
    ],
)
def test_attention(subject, spec, name):
    assert code(subject, "attention", spec) == name


def slopes(heads):
    return torch.tensor([2 ** (-8 * (h + 1) / 2) for h in range(2)] + [2.0**-2])[:heads, None, None]


def linear(heads, p, sign=-1.0):
    return sign * slopes(heads) * (p[:, None] - p[None]).abs()


@pytest.mark.parametrize(
    ("bias", "name"),
    [
        (linear, "pass"),
        (lambda h, p: slopes(h) * p, "pass"),
        (lambda h, p: linear(h, count(p)), "positions.given_ignored"),
        (lambda h, p: linear(h, p, 1.0), "alibi.sign"),
        (lambda h, p: linear(h, p) / 4, "alibi.scale.applied_to_bias"),
        (lambda h, p: 0 * linear(h, p), "alibi.no_effect"),
        (lambda h, p: 3 * linear(h, p), "alibi.mismatch"),
    ],
)
def test_attention_with_alibi(bias, name):
    assert code(attention(bias=bias), "attention", {"encoding": "alibi", "heads": 3, "head_dim": 16}) == name


class Absolute(nn.Module):
    """Sinusoids added to the tokens, then attention that sees no positions; scaled_dot_product_attention's mask."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(4)
        self.fault, self.w = fault, nn.Parameter(torch.randn(3, 32, 32) / 5)

    def forward(self, x, cache=None):
        past = 0 if cache is None or self.fault == "ignored" else cache[0].shape[1] + (self.fault == "one too far")
        p = past + torch.arange(x.shape[1])
        angle = p[:, None] * 10000.0 ** (-torch.arange(16) / 16)
        q, k, v = ((x + torch.cat((angle.sin(), angle.cos()), -1)) @ w for w in self.w)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return y, (k, v)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("", "pass"),
        ("ignored", "sinusoidal.kv_cache.offset_ignored"),
        ("one too far", "sinusoidal.kv_cache.off_by_one"),
    ],
)
def test_added_codes_beside_a_cache(fault, name):
    assert code(Absolute(fault), spec={"encoding": "sinusoidal"}) == name


def test_every_code_of_a_model_with_a_cache_has_a_rule():
    named = {f"rope.{behind}" for key, (behind, *_) in WORDS.items() if not key.startswith(("bias", "centre"))}
    assert named - set(rules()) == set()


@pytest.mark.parametrize(
    ("base", "spoilt", "says"),
    [
        (50000.0, {"k": 10000.0}, "keys turned with base 10,000"),
        (10000.0, {"q": 500000.0}, "queries turned with base 500,000"),
        (10000.0, {"heads": True}, "fall on from head to head"),
    ],
)
def test_attention_with_another_base_on_one_side_or_over_all_heads(base, spoilt, says):
    def turn(x, positions, base):
        heads, d = x.shape[1], x.shape[-1]
        lanes = torch.arange(0, heads * d, 2).double().view(heads, 1, -1) / (heads * d)
        rates = base ** -(lanes if "heads" in spoilt else torch.arange(0, d, 2).double() / d)
        angle = positions[:, None] * rates
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).flatten(-2)

    def attention(q, k, v, positions):
        q, k = (turn(t.double(), positions, spoilt.get(name, base)) for name, t in (("q", q), ("k", k)))
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).to(v.dtype) @ v

    words = {"encoding": "rope", "head_dim": 16, "heads": 2, "base": base, "layout": "interleaved"}
    cause = verify.check(attention, convention="attention", spec=words).causes[0]
    assert cause.code == ("rope.heads.differ" if "heads" in spoilt else "rope.side.differ")
    assert says in cause.message
