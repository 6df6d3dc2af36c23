import itertools

import pytest

from posenc.study import plan
from posenc.study.config import Cell
from posenc.study.plan import Estimate

CELLS = [Cell(name, "text", "64x2x4", seed) for name in ("nope", "rope") for seed in (0, 1)]
ESTIMATES = {("nope", "text", "64x2x4"): Estimate(0.1, 1.0), ("rope", "text", "64x2x4"): Estimate(0.2, 1.0)}


def literal_makespan(jobs, workers):
    """Walk through the jobs: the worker that is free first takes the next one."""
    free = [0.0] * workers
    for job in jobs:
        first = min(range(workers), key=lambda i: free[i])
        free[first] += job
    return max(free)


@pytest.mark.parametrize("jobs", list(itertools.product((1.0, 2.5, 4.0), repeat=4)))
def test_makespan_is_when_the_last_job_ends(jobs):
    assert plan.makespan(jobs, 2) == literal_makespan(jobs, 2)


def test_an_estimate_is_steps_and_tests():
    assert Estimate(step_s=0.05, tests_s=2.0).cell(100) == 7.0


def test_a_plan_has_the_seeds_one_after_another_and_the_longest_cells_first():
    made = plan.make(CELLS, ESTIMATES, steps=10, workers=2)
    assert [(row["encoding"], row["seed"], row["seconds"]) for row in made["cells"]] == [
        ("rope", 0, 3.0), ("nope", 0, 2.0), ("rope", 1, 3.0), ("nope", 1, 2.0),
    ]  # fmt: skip
    assert made["seconds"] == 5.0  # 3 + 2 on one worker, 2 + 3 on the other
    assert made["cells"][0]["name"] == "rope-text-64x2x4-s0"


@pytest.mark.parametrize(("budget_s", "workers"), [(30.0, 1), (30.0, 2), (47.0, 3), (300.0, 2)])
def test_the_steps_of_a_budget_are_the_most_that_fit(budget_s, workers):
    steps = plan.affordable(CELLS, ESTIMATES, budget_s, 3.0, workers)
    left = budget_s * plan.MARGIN - plan.REPORT_S - 3.0

    def needed(steps):
        return literal_makespan([ESTIMATES[plan.kind(cell)].cell(steps) for cell in CELLS], workers)

    assert needed(steps) <= left < needed(steps + 1)


def test_a_budget_that_is_too_small_says_how_much_is_needed():
    with pytest.raises(ValueError, match=r"budget of 5s is too small for one step of each of the 4 cells.*about 6s"):
        plan.affordable(CELLS, ESTIMATES, 5.0, 1.0, 2)
