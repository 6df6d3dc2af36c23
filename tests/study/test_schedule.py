import io
import itertools
import time

import pytest
from rich.console import Console

from posenc.study.board import Board
from posenc.study.config import Config
from posenc.study.schedule import Estimate, Schedule, makespan
from posenc.study.store import Store
from posenc.study.text import Text


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


@pytest.mark.slow
def test_a_worker_that_dies_with_nothing_to_do_is_replaced(tmp_path):
    config = Config(
        encodings=("nope",), train_len=8, test_lens=(8,), windows=4, tokens_per_step=64, d_model=16, n_heads=2
    )
    text, store = Text("t", b"abcdefgh" * 40, ""), Store(tmp_path / "s", {})
    with Board(config, Console(file=io.StringIO())) as board:
        schedule = Schedule(config, text, store, board, steps=2, began=time.monotonic())
        try:
            schedule.time_first_steps()
            for worker in schedule.workers:
                worker.process.kill()
                worker.process.join()
            schedule.run()
        finally:
            schedule.stop()
            store.close()
    assert sorted(r["seed"] for r in schedule.results) == [0, 1]
    assert schedule.problems == []
