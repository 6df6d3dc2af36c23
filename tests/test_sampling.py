"""The rule of the default run: every pair of values stays, tables stay whole."""

import random
from itertools import combinations, product

import pytest

from sampling import pairwise, sampled

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
    assert {type(cases[i]["a"]) for i in sampled(cases, 0)} == {bool, int, float}
