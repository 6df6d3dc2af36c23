import itertools

import pytest

from posenc.study.schedule import Estimate, makespan


def literal_makespan(jobs, busy):
    """Walk through time in small steps: whoever is free takes the next job."""
    free, jobs = list(busy), list(jobs)
    for job in jobs:
        first = min(range(len(free)), key=lambda i: free[i])
        free[first] += job
    return max(free)


@pytest.mark.parametrize("jobs", list(itertools.product((1.0, 2.5, 4.0), repeat=4)))
def test_makespan_is_when_the_last_job_ends(jobs):
    assert makespan(list(jobs), [0.5, 0.0]) == literal_makespan(jobs, [0.5, 0.0])


def test_an_estimate_is_steps_and_tests():
    assert Estimate(step_s=0.05, tests_s=2.0).cell(100) == 7.0
