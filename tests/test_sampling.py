"""The rule of the default run: every pair of values stays, tables stay whole."""

import random
from itertools import combinations, product
from types import SimpleNamespace

import pytest

from sampling import OF_VERIFY, pairwise, sampled, split, spread

AXES = {"backend": range(5), "mask": range(7), "dtype": range(3), "length": range(2)}


def pairs(cases):
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


@pytest.mark.parametrize("seed", range(5))
def test_each_pair_of_values_occurs_in_a_small_sample(seed):
    cases = list(product(*AXES.values()))
    kept = pairwise(cases, seed)
    assert pairs(cases[i] for i in kept) == pairs(cases)
    assert 5 * 7 <= len(kept) <= 1.3 * 5 * 7  # no fewer than the two longest parameters have pairs


def test_pairs_that_never_meet_are_not_asked_for():
    cases = [case for case in product(range(4), range(4), range(4)) if case[0] <= case[1]]
    kept = pairwise(cases, 0)
    assert pairs(cases[i] for i in kept) == pairs(cases)


def test_another_seed_is_another_sample_and_the_same_one_the_same():
    cases = list(product(*AXES.values()))
    assert pairwise(cases, 1) == pairwise(cases, 1) != pairwise(cases, 2)


def test_a_table_of_cases_and_a_product_of_two_stay_whole():
    table = [{"given": i, "flag": i % 2 == 0, "wanted": f"{i * i}"} for i in range(20)]
    assert sampled(table, 0) == set(range(20))
    two = [{"name": name, "mask": mask, "fixed": "one"} for name, mask in product(range(6), range(7))]
    assert sampled(two, 0) == set(range(42))
    three = [{"name": a, "mask": b, "dtype": c} for a, b, c in product(range(6), range(7), range(3))]
    assert 42 <= len(sampled(three, 0)) < 60


def test_numbers_that_are_equal_to_true_are_values_of_their_own():
    values = [True, 1, 1.0]
    random.Random(0).shuffle(values)
    cases = [{"a": a, "b": b, "c": c} for a, b, c in product(values, range(3), range(3))]
    kept = sampled(cases, 0)
    assert len(kept) < 20  # of 27: three values of each of three parameters
    assert {type(cases[i]["a"]) for i in kept} == {bool, int, float}


def item(test, case, *marks, n=None):
    named = {mark: SimpleNamespace(args=(n,)) for mark in marks}
    return SimpleNamespace(nodeid=f"{test}[{case}]", get_closest_marker=named.get, callspec=SimpleNamespace(params={}))


@pytest.mark.parametrize("n", [1, 3, 7])
def test_a_sample_has_one_case_of_each_part(n):
    chosen = sorted(spread(7, n, 0))
    assert len(chosen) == n
    assert all(i * 7 // n <= case < (i + 1) * 7 // n for i, case in enumerate(chosen))


def test_marks_decide_and_cases_that_compile_take_no_place_from_others():
    items = [item("t.py::law", i, *(["compiles"] if i < 3 else [])) for i in range(10)]
    items += [item("t.py::long", i, "sample", n=2) for i in range(5)] + [item("t.py::late", 0, "slow")]
    items += [item("tests/verify/t.py::fault", i) for i in range(OF_VERIFY + 5)]
    kept, dropped = split(items, 0)
    found = [sum(test in one.nodeid for one in kept) for test in ("law", "long", "late", "fault")]
    assert found == [1 + 7, 2, 0, OF_VERIFY]
    assert len(kept) + len(dropped) == len(items)
