import pytest

from posenc.bench import measure
from posenc.bench.measure import Spread, Timing, compare, spread


def work(n):
    return lambda: sum(range(n))


@pytest.mark.slow
def test_a_slow_candidate_is_seen_as_slow():
    found = compare({"plain": work(20_000), "same": work(20_000), "slow": work(200_000)}, "plain", rounds=5)
    assert found["plain"].ratio == Spread(1.0, 1.0, 1.0)
    assert 0.5 < found["same"].ratio.median < 2
    assert 5 < found["slow"].ratio.median < 20
    assert found["slow"].seconds.median > 3 * found["plain"].seconds.median


def test_a_ratio_is_taken_within_its_round(monkeypatch):
    """A clock that halves between rounds moves no ratio."""
    seconds = iter([1.0, 2.0, 3.0, 6.0, 0.5, 1.0])
    monkeypatch.setattr(measure, "sample", lambda run, repeats, settle: (next(seconds), False))
    found = compare({"plain": int, "other": int}, "plain", rounds=3)
    assert found["other"].ratio == Spread(2.0, 2.0, 2.0)
    assert found["other"].seconds == Spread(1.5, 2.0, 4.0)


def test_a_candidate_that_fails_leaves_the_others():
    def fail():
        raise ValueError("no such thing.\nAnd more.")

    found = compare({"plain": int, "broken": fail, "fine": int}, "plain", rounds=2)
    assert found["broken"] == "no such thing"
    assert isinstance(found["fine"], Timing)
    assert list(found) == ["plain", "broken", "fine"]
    with pytest.raises(ValueError, match="no such thing"):
        compare({"plain": fail}, "plain")


@pytest.mark.slow
def test_time_that_is_up_ends_the_rounds_after_three():
    assert compare({"plain": int}, "plain", rounds=9, budget_s=0.0)["plain"].rounds == 3
    assert compare({"plain": int}, "plain", rounds=2)["plain"].rounds == 2
    assert compare({"plain": int}, "plain", rounds=1)["plain"].ratio == Spread(1.0, 1.0, 1.0)


def test_a_preempted_sample_is_taken_again(monkeypatch):
    counts = iter([0, 1, 1, 2, 2, 2])  # before and after each try: two are disturbed, the third is not
    calls = []
    monkeypatch.setattr(measure, "count", lambda _: next(counts))
    seconds, disturbed = measure.sample(lambda: calls.append(1), 2)
    assert (len(calls), disturbed) == (1 + 6, False)  # one ahead of all
    assert seconds > 0


@pytest.mark.slow
def test_a_machine_that_never_rests_is_told(monkeypatch):
    counts = iter(range(100))
    monkeypatch.setattr(measure, "count", lambda _: next(counts))
    assert measure.sample(int, 1)[1] is True
    found = compare({"plain": int}, "plain", rounds=4)
    assert found["plain"].disturbed == 4


def test_a_device_is_waited_for_before_and_after():
    order = []
    measure.sample(lambda: order.append("call"), 2, lambda: order.append("settle"))
    assert order[:7] == ["settle", "call", "settle", "settle", "call", "call", "settle"]


def test_the_first_call_after_others_is_not_timed(monkeypatch):
    clock = iter([0.0, 0.5, 0.5, 0.6])  # it takes half a second, and the one behind it a tenth
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(measure, "count", lambda _: 0)
    assert measure.sample(int, 1)[0] == pytest.approx(0.1)


def test_a_call_of_seconds_is_not_made_twice(monkeypatch):
    clock = iter([0.0, 3.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert measure.sample(int, 1) == (3.0, False)


def test_quartiles():
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
