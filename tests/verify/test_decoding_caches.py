"""Models with a cache: what belongs to it, which keys are seen beside it, and steps far into a text."""

import copy
import math
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from posenc.verify.codes import rules
from posenc.verify.decoding import check as decoding
from posenc.verify.decoding import masks
from posenc.verify.decoding.words import WHOLE

DECODE = {"kind": "decode_equivalence", "dim": 32, "heads": 2}
CHUNKED = {**DECODE, "chunked": True}


def report(subject, spec=DECODE):
    return decoding.check(subject, "cached_model", spec).report("cached_model")


def code(subject, spec=DECODE):
    found = report(subject, spec)
    return found.causes[0].code if found.causes else found.status


def turn(x, p):
    angle = p[:, None] * 10000.0 ** (-torch.arange(x.shape[-1] // 2) / (x.shape[-1] // 2))
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Model(nn.Module):
    """Attention in layers with a cache (keys and values of each, tokens seen); methods say what may be wrong."""

    window = 10**6
    kept = 10**6

    def __init__(self, layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.layers = layers
        self.w = nn.Parameter(torch.randn(layers, 3, 32, 32) / 5)

    def forward(self, x, cache=None):
        past, kv = (0, [None] * self.layers) if cache is None else self.read(cache)
        n, new = x.shape[1], []
        for w, before in zip(self.w, kv, strict=True):
            q, k, v = ((x @ m).unflatten(-1, (2, 16)).transpose(1, 2) for m in w)
            q, k = (turn(t, self.where(past, n)) for t in (q, k))
            if before is not None:
                k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
            y = self.attend(q, k, v, cache is None).transpose(1, 2).flatten(2)
            x = x + y if self.layers > 1 else y
            new.append((k[:, :, -self.kept :], v[:, :, -self.kept :]))
        return x, self.write(past + n, new)

    def read(self, cache):
        return cache

    def write(self, seen, kv):
        return seen, kv

    def where(self, past, n):
        return past + torch.arange(n)

    def attend(self, q, k, v, first):
        n, m = q.shape[2], k.shape[2]
        apart = torch.arange(m - n, m)[:, None] - torch.arange(m)
        return scaled_dot_product_attention(q, k, v, attn_mask=self.shown(apart, first))

    def shown(self, apart, first):
        return (apart >= 0) & (apart < self.window)


class CountOnModel(Model):
    def read(self, cache):
        return self.seen, cache

    def write(self, seen, kv):
        self.seen = seen
        return kv


class CountNeverReset(CountOnModel):
    seen = 0

    def forward(self, x, cache=None):
        return super().forward(x, [None] * self.layers if cache is None else cache)


class BufferOnModel(Model):
    """Keys are written into one block of the model, and the cache is a view of it."""

    def write(self, seen, kv):
        if not hasattr(self, "block"):
            self.block = torch.zeros(2, 16, 2, 2000, 16)
        k, v = kv[0]
        for i, t in enumerate((k, v)):
            self.block[i, : len(t), :, : t.shape[2]] = t
        return seen, [tuple(self.block[i, : len(k), :, : k.shape[2]] for i in range(2))]


class CountBySession(Model):
    """Each sequence has a count of its own, under a number in the cache, so that it does not go back with the cache."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def forward(self, x, cache=None):
        if cache is None:
            self.counts.append(0)
            self.session = len(self.counts) - 1
        return super().forward(x, cache)

    def read(self, cache):
        self.session = cache[0]
        return self.counts[self.session], cache[1]

    def write(self, seen, kv):
        self.counts[self.session] = seen
        return self.session, kv


@pytest.mark.parametrize("spoilt", [CountOnModel, CountNeverReset, BufferOnModel])
def test_what_belongs_to_the_cache_is_kept_on_the_model(spoilt):
    cause = report(spoilt()).causes[0]
    assert cause.code == "decode.cache.shared"
    assert cause.evidence > 1e-3
    assert cause.smallest_case["error"] > 1e-4


def test_steps_that_are_rolled_back():
    cause = report(CountBySession()).causes[0]
    assert cause.code == "decode.cache.not_rolled_back"
    assert cause.evidence > 1e-3
    assert cause.smallest_case["dropped"] == 3


class InPlace(Model):
    """The cache is an object that every call writes into."""

    class Held:
        __slots__ = ("kv", "lock", "seen")

    locked = False

    def read(self, cache):
        self.held = cache
        return cache.seen, cache.kv

    def forward(self, x, cache=None):
        self.held = self.Held()
        if self.locked:
            self.held.lock = threading.Lock()
        return super().forward(x, cache)

    def write(self, seen, kv):
        self.held.seen, self.held.kv = seen, kv
        return self.held


class Locked(InPlace):
    locked = True


class Handle(Model):
    """The cache is a number, and all that it stands for lies on the model."""

    def forward(self, x, cache=None):
        if cache is None:
            self.all = [*getattr(self, "all", []), None]
            self.session = len(self.all) - 1
        return super().forward(x, cache)

    def read(self, cache):
        self.session = cache
        return self.all[cache]

    def write(self, seen, kv):
        self.all[self.session] = seen, kv
        return self.session


class OneAtATime(CountOnModel):
    """A second sequence is refused while the first goes on."""

    def read(self, cache):
        if cache is not self.last:
            raise RuntimeError("one sequence at a time")
        return super().read(cache)

    def write(self, seen, kv):
        self.last = super().write(seen, kv)
        return self.last


@pytest.mark.parametrize(
    ("right", "told"),
    [
        (Model, set()),
        (InPlace, set()),
        (Locked, {"a cache that is gone back to"}),
        (Handle, {"two sequences by turns", "a cache that is gone back to"}),
        (OneAtATime, {"two sequences by turns", "a cache that is gone back to"}),
    ],
)
def test_caches_that_are_right_in_their_own_way(right, told):
    found = report(right())
    assert (found.status, found.causes) == ("pass", ())
    assert set(found.measured["not_judged"]) == told


class CausalFlag(Model):
    def attend(self, q, k, v, first):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class CausalFlagForParts(Model):
    def attend(self, q, k, v, first):
        return scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


class NoMaskBesideCache(Model):
    def shown(self, apart, first):
        return super().shown(apart, first) | (not first)


class HidesOld(Model):
    def shown(self, apart, first):
        return super().shown(apart, first) & (first | (apart != 3))


class Window(Model):
    window, kept = 6, 6


class WindowShort(Model):
    window, kept = 6, 4


class CacheShort(Model):
    kept = 3


class WindowLong(Model):
    def shown(self, apart, first):
        return (apart >= 0) & ((apart < 6) | (not first))


class FarWindowShort(Model):
    window, kept = 40, 38


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("spoilt", "name", "says"),
    [
        (CausalFlag, "decode.mask.top_left", "a single new token sees the first key only"),
        (CausalFlagForParts, "decode.mask.top_left", "of a part of several"),
        (NoMaskBesideCache, "decode.mask.missing", "later tokens of the same part; single tokens are right"),
        (HidesOld, "decode.mask.hides_keys", "from a single new token"),
        (WindowShort, "decode.window.short", "behind 11 tokens it sees 4 of them, where one pass shows it 5"),
        (CacheShort, "decode.window.short", "behind 11 tokens it sees 3 of them, where one pass shows it 11"),
        (WindowLong, "decode.window.long", "behind 11 tokens it sees 11 of them, where one pass shows it 5"),
        (FarWindowShort, "decode.window.short", "it sees 38 of them, where one pass shows it 39"),
    ],
)
def test_which_keys_are_seen_beside_a_cache(spoilt, name, says, layers):
    cause = report(spoilt(layers), {**CHUNKED, "layers": layers}).causes[0]
    assert cause.code == name
    assert says in cause.message
    assert cause.evidence > 1e-3
    assert cause.smallest_case["error"] > 1e-4


def test_layers_need_not_be_told():
    assert code(CausalFlag(2)) == "decode.mask.top_left"
    assert code(WindowShort(2)) == "decode.window.short"


@pytest.mark.parametrize("layers", [1, 2])
def test_a_window_that_is_right(layers):
    assert code(Window(layers)) == "pass"


@pytest.mark.parametrize("words", [DECODE, {"encoding": "rope"}])
def test_masks_of_parts_are_told_and_not_judged_where_nobody_says_that_there_are_parts(words):
    found = report(NoMaskBesideCache(), words)
    assert found.status == "pass"
    assert "later tokens of the same part" in found.measured["not_judged"]["parts of several tokens beside a cache"]


def test_steps_and_parts_may_be_wrong_in_two_ways():
    class Both(NoMaskBesideCache):
        def where(self, past, n):
            return torch.arange(n) + past + (past > 0)

    first, second = report(Both(), CHUNKED).causes
    assert (first.code, second.code) == ("rope.kv_cache.off_by_one", "decode.mask.missing")
    assert "single tokens are right" not in second.message


def test_a_mask_is_told_from_a_cache_that_is_not_used():
    class Unused(Model):
        def attend(self, q, k, v, first):
            n = q.shape[2]
            return super().attend(q, k[:, :, -n:], v[:, :, -n:], first)

    assert code(Unused()) == "rope.kv_cache.past_not_seen"


def beyond(change):
    class Far(Model):
        def where(self, past, n):
            p = past + torch.arange(n)
            return p if past == 0 else change(p)

    return Far()


def test_unread_scores_leave_a_mismatch_with_its_own_numbers(monkeypatch):
    monkeypatch.setattr("posenc.verify.decoding.reading.read", lambda *args, **words: None)
    cause = report(beyond(lambda p: p.clamp(max=63))).causes[0]
    assert cause.code == "rope.decode.mismatch"
    assert cause.evidence > 1e-3
    assert cause.smallest_case["chunks"] == [64, 1]


@pytest.mark.parametrize(
    ("change", "name", "first"),
    [
        (lambda p: p.clamp(max=63), "rope.kv_cache.position_capped", 64),
        (lambda p: p.clamp(max=255), "rope.kv_cache.position_capped", 256),
        (lambda p: p.clamp(max=1023), "rope.kv_cache.position_capped", 1024),
        (lambda p: p % 50, "rope.kv_cache.position_wraps", 50),
        (lambda p: p % 256, "rope.kv_cache.position_wraps", 256),
        (lambda p: p + (p > 30), "rope.kv_cache.off_by_one", 31),
        (lambda p: p + (p - 99).clamp(min=0) ** 2, "rope.decode.mismatch", 100),
    ],
)
def test_steps_far_into_a_text(change, name, first, monkeypatch):
    monkeypatch.setattr("posenc.verify.decoding.far._SLOW", math.inf)
    cause = report(beyond(change)).causes[0]
    assert cause.code == name
    assert f"right up to position {first - 1} and wrong from {first} on" in cause.message
    assert cause.evidence > 1e-3
    assert cause.smallest_case["chunks"] == [first, 1]


def test_a_pass_says_how_far_it_looked(monkeypatch):
    monkeypatch.setattr("posenc.verify.decoding.far._SLOW", math.inf)
    assert report(Model()).measured["farthest_position"] == 1032

    class Table(Model):
        def where(self, past, n):
            if past + n > 128:
                raise IndexError("128 positions")
            return super().where(past, n)

    found = report(Table())
    assert (found.status, found.measured["farthest_position"]) == ("pass", 66)
    assert "128 positions" in found.measured["not_judged"]["positions beyond 66"]


def test_a_cache_may_have_an_end():
    class Room(Model):
        def where(self, past, n):
            if past >= 256:
                raise RuntimeError("the cache has room for 256 tokens")
            return super().where(past, n)

    found = report(Room())
    assert (found.status, found.measured["farthest_position"]) == ("pass", 66)
    assert "room for 256" in found.measured["not_judged"]["positions beyond 66"]


class Plain(Model):
    """Attention without turns, to which a position is added or a bias is given."""

    fault = False

    def where(self, past, n):
        return torch.zeros(n)


class Learned(Plain):
    def __init__(self, trained=True):
        super().__init__()
        table = torch.randn(1100, 32)
        self.rows = nn.Parameter(table) if trained else None
        self.waves = torch.sin(torch.arange(1100)[:, None] * 3.0 ** -torch.arange(32))

    def forward(self, x, cache=None):
        past = 0 if cache is None or self.fault else cache[0]
        rows = self.waves if self.rows is None else self.rows
        return super().forward(x + rows[past : past + x.shape[1]], cache)


class Biased(Plain):
    power = 1.0

    def attend(self, q, k, v, first):
        n, m = q.shape[2], k.shape[2]
        apart = torch.arange(m - n, m)[:, None] - torch.arange(m)
        of_bias = torch.arange(n)[:, None] - torch.arange(m) if self.fault else apart
        bias = -0.3 * of_bias.abs() ** self.power
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(apart < 0, -math.inf))


def of_t5():
    model = Biased()
    model.power = 0.5
    return model


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Learned, "learned.kv_cache.offset_ignored"),
        (lambda: Learned(trained=False), "sinusoidal.kv_cache.offset_ignored"),
        (Biased, "alibi.kv_cache.query_from_zero"),
        (of_t5, "t5.kv_cache.query_from_zero"),
    ],
)
def test_a_fault_is_told_in_the_words_of_its_encoding(make, name):
    right, wrong = make(), make()
    wrong.fault = True
    assert code(right) == "pass"
    cause = report(wrong).causes[0]
    assert cause.code == name
    assert "q and k" not in cause.help


def test_masks_and_caches_have_rules():
    assert {fault for fault, *_ in WHOLE.values()} - set(rules()) == set()


def test_a_mask_goes_through_layers():
    """Two layers with a window of three see four tokens back, and the token itself."""
    seen = masks._through(masks._band(3), 2, itself=False)
    assert bool((seen == masks._band(5)).all())
    assert copy.deepcopy(seen).sum() == 5 * 12 - 10
