"""Models with a cache: each fault planted by itself, next to caches that are right in their own way."""

import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from posenc import verify
from posenc.verify.engine.judge import settle
from posenc.verify.engine.records import Seen
from posenc.verify.families import cache_runs, cache_table
from posenc.verify.families.cache import FAMILIES, MASK, SCORES, Cached
from posenc.verify.rules import known

ROPE = {"kind": "decode_equivalence", "encoding": "rope"}
OPEN = {"kind": "decode_equivalence", "dim": 32, "heads": 2}
CHUNKED = {**OPEN, "chunked": True}


def check(subject, spec=ROPE):
    return verify.check(subject, convention="cached_model", spec=spec)


def code(subject, spec=ROPE):
    found = check(subject, spec)
    return found.causes[0].code if found.causes else found.status


def rotate(x, p):
    half = x.shape[-1] // 2
    angle = p.double()[..., None] * 10000.0 ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


FAULTS = {  # each with its code and where a call of n tokens begins; programs/ holds those that people reported
    "ignored": ("kv_cache.offset_ignored", lambda seen, n: 0),
    "single": ("decode.single_token_path", lambda seen, n: seen * (n > 1)),
    "part from zero": ("decode.chunk_positions", lambda seen, n: seen * (n == 1)),
    "one too far": ("kv_cache.off_by_one", lambda seen, n: seen + (seen > 0)),
    "early": ("kv_cache.count_too_early", lambda seen, n: seen + n),
    "squared": ("decode.mismatch", lambda seen, n: seen**2),
    "again": ("kv_cache.rotated_then_rotated_again", None),
    "table": ("offset.ignored_by_cache", None),
    "state": ("kv_cache.state_kept", None),
    "unused": ("kv_cache.past_not_seen", None),
    "no mask": ("decode.not_causal", None),
    "other speeds": ("decode.frequencies", None),
}


class Model(nn.Module):
    """Attention in layers; the cache holds keys and values of each layer and counts of calls and tokens."""

    window = kept = 10**6
    place, beyond = staticmethod(rotate), staticmethod(lambda p: p)

    def __init__(self, fault="", layers=1, bias=False, dim=32, heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.fault, self.heads, self.residual = fault, heads, layers > 1
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim, bias=bias) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(dim, dim, bias=bias) for _ in range(layers))
        self.tables, self.total = {}, 0

    def forward(self, x, cache=None):
        new, n, fault = cache is None, x.shape[1], self.fault
        held = {"seen": 0} if new else dict(cache)
        held["kv"] = list(held.get("kv", [None] * len(self.qkv)))
        for i, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
            p, late = self.where(new, n, held), fault in ("again", "by index")
            k = k if late else self.place(k, p)
            if not new:
                k, v = (torch.cat(pair, 2) for pair in zip(held["kv"][i], (k, v), strict=True))
            kept, k = k, self.place(k, torch.arange(k.shape[2])) if late else k
            q = self.place(q, p)
            seen = (k[:, :, -n:], v[:, :, -n:]) if fault == "unused" else (k, v)
            y = out(self.attend(q, *seen, new).transpose(1, 2).flatten(2))
            x = x + y if self.residual else y
            held["kv"][i] = ((k if fault == "again" else kept)[:, :, -self.kept :], v[:, :, -self.kept :])
        self.total += n
        return x, held | {"seen": held["seen"] + n}

    def where(self, new, n, held):
        past = self.total if self.fault == "state" and not new else held["seen"]
        if (rule := FAULTS.get(self.fault, ("", None))[1]) is not None:
            past = rule(held["seen"], n)
        p = past + torch.arange(n)
        if self.fault == "other speeds":  # as with another base, but for whole positions
            return torch.where(torch.tensor(new), p, p + p // 2)
        if self.fault == "table":
            return self.tables.setdefault(n, p)
        return self.beyond(p) if past else p

    def attend(self, q, k, v, first):
        shown = self.shown(apart(q, k), first) | (self.fault == "no mask")
        return scaled_dot_product_attention(q, k, v, attn_mask=shown)

    def shown(self, apart, first):
        return (apart >= 0) & (apart < self.window)


def like(base=Model, **methods):
    """Return a model with some attributes or methods of its own."""
    return type("Like", (base,), methods)


def apart(q, k):
    n, m = q.shape[2], k.shape[2]
    return torch.arange(m - n, m)[:, None] - torch.arange(m)


@pytest.mark.sample(8)
@pytest.mark.parametrize(("fault", "layers"), [*((fault, 1) for fault in FAULTS), ("again", 2), ("table", 2)])
def test_a_planted_fault_is_named(fault, layers):
    cause = check(Model(fault, layers, bias=layers > 1)).causes[0]
    assert cause.code == f"rope.{FAULTS[fault][0]}"
    assert cause.evidence > 1e-3


def by_layer(start):
    """Return a model of two layers, each of which places tokens by its number, the tokens seen, and a counter."""

    class Layered(Model):
        calls = counter = 0

        def where(self, new, n, held):
            layer, self.calls = self.calls % 2, self.calls + 1
            past = 0 if new else start(layer, held["seen"], self.counter)
            self.counter = past + n
            return past + torch.arange(n)

    return Layered(layers=2)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (lambda layer, seen, counter: seen * (layer == 0), "kv_cache.first_layer_only"),
        (lambda layer, seen, counter: counter, "kv_cache.counts_layers"),
    ],
)
def test_layers_that_place_tokens_each_in_its_way(start, name):
    cause = check(by_layer(start)).causes[0]
    assert cause.code == f"rope.{name}"
    assert {"position", "found", "expected"} <= set(cause.smallest_case)


class ByHand(Model):
    """A softmax by hand, or one over a learned sink behind the keys, as gpt-oss has."""

    sink = False

    def attend(self, q, k, v, first):
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~self.shown(apart(q, k), first), -math.inf)
        if self.sink:
            sink = torch.full((*scores.shape[:-1], 1), 0.5)
            return torch.cat((scores, sink), -1).softmax(-1)[..., :-1] @ v
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True) @ v


class Subtracts(ByHand):
    """A mask that is added: a hidden key keeps its score."""

    window, kept = 6, 6

    def attend(self, q, k, v, first):
        hidden = (~self.shown(apart(q, k), first)).float()
        return (q @ k.mT / math.sqrt(q.shape[-1]) - 1e4 * hidden).softmax(-1) @ v


def with_sink(fault):
    return like(ByHand, sink=True)(fault) if fault == "again" else like(ByHand, sink=True, window=6, kept=5)(fault)


def one_at_a_time(fault=""):
    model = Model(fault)

    def step(x, cache=None):
        if cache is not None and x.shape[1] > 1:
            raise NotImplementedError("one token at a time")
        return model(x, cache)

    return step


@pytest.mark.sample(6)
@pytest.mark.parametrize("make", [ByHand, one_at_a_time, with_sink])
@pytest.mark.parametrize("fault", ["ignored", "again", "early"])
def test_faults_are_named_however_scores_are_formed(make, fault):
    assert code(make(fault)) == f"rope.{FAULTS[fault][0]}"


@pytest.mark.parametrize("fault", ["single", "part from zero", "ignored", "table"])
def test_outputs_name_a_fault_where_no_scores_are_seen(fault, monkeypatch):
    monkeypatch.setattr(cache_table, "watch", lambda subject, x, chunks: [[] for _ in chunks])
    assert code(Model(fault)) == f"rope.{FAULTS[fault][0]}"


class Spoilt(Model):
    """Faults of masks and windows."""

    def attend(self, q, k, v, first):
        if self.fault == "causal flag":
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.fault == "empty slots" and not first:
            return scaled_dot_product_attention(q, *(nn.functional.pad(t, (0, 0, 0, 3)) for t in (k, v)))
        return super().attend(q, k, v, first)

    def shown(self, apart, first):
        causal, (n, m) = super().shown(apart, first), apart.shape
        return {
            "window, but one query": causal & ((apart < 6) | (len(apart) == 1)),
            "own key": causal & ((apart > 0) | (apart.shape[0] == apart.shape[1])),
            "causal where square": causal | (apart.shape[0] < apart.shape[1]),
            "own call": causal & ((apart == 0) | (torch.arange(m) < m - n) | (m == n)),
        }.get(self.fault, causal)


@pytest.mark.sample(6)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (lambda n: Spoilt("causal flag", n), "decode.mask.top_left", "top left"),
        (lambda n: Spoilt("causal where square", n), "decode.mask.missing", "later tokens of the same call"),
        (lambda n: Spoilt("own key", n), "decode.mask.own_key", "its own key"),
        (lambda n: Spoilt("own call", n), "decode.mask.own_call", "earlier tokens of their call"),
        (lambda n: Spoilt("empty slots", n), "decode.cache.surplus", "found 9 cached keys, expected 6"),
        (lambda n: like(kept=20)("", n), "decode.cache.cut", "found 20 cached keys, expected 64"),
        (lambda n: Spoilt("window, but one query", n), "decode.window.long", "found 11 cached keys, expected 5"),
        (lambda n: like(window=6, kept=4)("", n), "decode.window.short", "found 4 cached keys, expected 5"),
        (lambda n: like(window=40, kept=38)("", n), "decode.window.short", "found 38 cached keys, expected 39"),
        (lambda n: like(window=6, kept=6)("by index", n), "model.kv_cache.eviction_offset", ""),
        (lambda n: like(window=6, kept=6)("", n), "pass", ""),
    ],
)
def test_which_keys_are_seen(make, name, says, layers):
    found = check(make(layers), CHUNKED)
    assert (found.causes[0].code if found.causes else found.status) == name
    assert not found.causes or (says in found.causes[0].message and found.causes[0].evidence > 1e-3)


def count_apart(session):
    """Return a model whose counts of tokens lie outside its caches: one for each sequence, or one for all."""
    model, counts = Model(), {}

    def run(x, cache=None):
        number, held = (len(counts) * session, None) if cache is None else cache
        y, held = model(x, held and {**held, "seen": counts[number]})
        counts[number] = held["seen"]
        return y, (number, held)

    return run


@pytest.mark.parametrize("model", [count_apart(False), count_apart(True)])
def test_what_belongs_to_the_cache_is_kept_on_the_model(model):
    cause = check(model).causes[0]
    assert (cause.code, cause.evidence > 1e-4) == ("decode.cache.shared", True)


def in_place(lock=None):
    """Return a model whose cache is an object that every call writes into."""
    model = Model()

    def run(x, cache=None):
        cache = cache or SimpleNamespace(lock=lock, held=None)
        y, cache.held = model(x, cache.held)
        return y, cache

    return run


def handle():
    """Return a model whose cache is a number, while all that it stands for lies on the model."""
    model, kept = Model(), [None]

    def run(x, cache=0):
        y, held = model(x, kept[cache or 0])
        kept.append(held)
        return y, len(kept) - 1

    return run


RIGHT = {
    "plain": (Model(), ""),
    "layers": (Model(layers=3), ""),
    "float64": (Model(bias=True, dim=48, heads=3).double(), ""),
    "bfloat16": (Model().bfloat16(), ""),
    "in place": (in_place(), ""),
    "one at a time": (one_at_a_time(), "several tokens after a cache"),
    "locked": (in_place(threading.Lock()), "cannot be copied"),
    "handle": (handle(), "holds no tensors"),
    "parts of more keys": (Spoilt("causal where square"), "see other keys"),
    "room": (like(beyond=staticmethod(lambda p: torch.arange(256)[p]))(), "size 256"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("model", "unjudged"), RIGHT.values(), ids=RIGHT)
def test_caches_that_are_right_in_their_own_way(model, unjudged):
    found = check(model)
    assert found.status == "pass"
    assert unjudged in " ".join(found.not_judged)


@pytest.mark.parametrize(
    ("spec", "name"), [({}, "cannot_tell"), ({"encoding": "nope"}, "pass"), (ROPE, "rope.not_applied")]
)
def test_a_model_that_sees_no_order_never_passes_as_one_that_does(spec, name):
    assert code(lambda x, cache: (x, cache), spec) == name


def test_random_numbers_are_no_fault():
    model = Model()
    assert code(lambda x, cache: model(nn.functional.dropout(x), cache)) == "cannot_tell"


@pytest.mark.parametrize(
    ("change", "behind", "name", "says"),
    [
        (lambda p: p.clamp(max=1023), 1030, "ends", "the token at 1031 gets position 1023"),
        (lambda p: p % 50, 64, "ends", "the token at 65 gets position 15"),
        (lambda p: p + (p > 99), 300, "ends", "a table or a counter ends"),  # position 302 is not in the single pass
        (lambda p: p.bfloat16(), 300, "rounded", "the token at 301 gets position 300, its number in bfloat16"),
    ],
)
def test_steps_far_into_a_text(change, behind, name, says, monkeypatch):
    monkeypatch.setattr(cache_runs, "SLOW", math.inf)
    cause = check(like(beyond=staticmethod(change))()).causes[0]
    assert (cause.code, cause.smallest_case["chunks"]) == (f"rope.kv_cache.position_{name}", [behind, 1, 1, 1])
    assert f"after {behind} tokens" in cause.message
    assert says in cause.message


@pytest.mark.parametrize(
    ("make", "spec", "name"),
    [
        (lambda: like(beyond=staticmethod(lambda p: p / 2))(), ROPE, "rope.decode.frequencies"),
        (lambda: like(beyond=staticmethod(lambda p: -p))(), ROPE, "rope.decode.frequencies"),
        (lambda: Other("alibi", "slopes"), {**OPEN, "encoding": "alibi"}, "alibi.decode.other_rule"),
        (lambda: Other("learned", "nowhere"), {**OPEN, "encoding": "learned"}, "learned.decode.not_applied"),
        (lambda: Other("learned", "twice"), {**OPEN, "encoding": "learned"}, "learned.decode.other_code"),
        (lambda: Other("learned", "tokens"), {**OPEN, "encoding": "learned"}, "decode.input"),
        (lambda: Other("alibi", "scale"), {**OPEN, "encoding": "alibi"}, "decode.scale"),
        (lambda: like(window=6, kept=6)(), {**CHUNKED, "window": 6}, "pass"),
        (Subtracts, {**CHUNKED, "window": 6}, "pass"),
        (lambda: like(window=7, kept=7)(), {**CHUNKED, "window": 6}, "decode.window.single_pass"),
        (Model, {**CHUNKED, "window": 6}, "decode.window.single_pass"),
    ],
)
def test_what_steps_and_a_single_pass_do(make, spec, name):
    assert code(make(), spec) == name


class Other(Model):
    """Positions that are added to tokens, or a bias of distances; the fault begins at 0 again."""

    place = staticmethod(lambda x, p: x)

    def __init__(self, how, fault=""):
        super().__init__(fault)
        self.how, self.table = how, nn.Parameter(torch.randn(1100, 32) * (how == "learned"))

    def forward(self, x, cache=None):
        past = 0 if cache is None or self.fault == "from zero" else cache["seen"]
        code, steps = self.table[past : past + x.shape[1]], cache is not None
        code = code * {"nowhere": 0, "twice": 2}.get(self.fault, 1) if steps else code
        return super().forward(x * (2 if steps and self.fault == "tokens" else 1) + code, cache)

    def attend(self, q, k, v, first):
        at = apart(q, k)
        counted = at - at.min() + 1 - at.shape[1] if self.fault == "from zero" else at
        bias = -0.3 * counted.abs() * (self.how == "alibi")
        bias = -(bias**2) if self.fault == "slopes" and not first else bias
        scale = 1.0 if self.fault == "scale" and not first else None
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(at < 0, -math.inf), scale=scale)


@pytest.mark.parametrize(("how", "name"), [("learned", "offset_ignored"), ("alibi", "query_from_zero")])
def test_a_fault_gets_the_code_of_its_encoding(how, name):
    assert code(Other(how), OPEN) == "pass"
    assert code(Other(how, "from zero"), {**OPEN, "encoding": how}) == f"{how}.kv_cache.{name}"


def test_each_fault_is_told_from_all_others():
    """Scores as a fault predicts them get its code, or that of an earlier fault with the same scores."""
    judge, model = Cached("cached_model", {**ROPE, "chunked": True}), Model("one too far")
    cases = [case for case in judge.cases() if judge.observe(model, case) and case.kind in (MASK, SCORES)]
    faults = list(judge.faults())
    names, named = [fault.code for fault in faults], 0
    assert {f.code for encoding in (*FAMILIES, "model") for f in cache_table.faults(encoding)} <= set(known())
    for fault in faults:
        seen = [Seen(case, judge.predict({**judge.truth, **fault.change}, case)) for case in cases]
        verdict = settle(judge, seen)
        if verdict.status == "fail":  # else it changes nothing in these cases
            named += verdict.faults[0].code == fault.code
            assert names.index(verdict.faults[0].code) <= names.index(fault.code), fault
    assert named > 0.6 * len(faults) > 15
