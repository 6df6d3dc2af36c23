import io

import pytest
from rich.console import Console

from posenc.study.board import Board, clock
from posenc.study.config import Config

CONFIG = Config(encodings=("rope", "alibi", "nope"), tasks=("text", "copy"), train_len=8, test_lens=(4, 8, 16))


def result(encoding, seed, *bits):
    of_length = dict(zip(("4", "8", "16"), bits, strict=True))
    return {
        "encoding": encoding, "task": "text", "size": "64x2x4", "seed": seed, "bits_by_length": of_length,
        "undertrained": encoding == "alibi",
    }  # fmt: skip


def copied(encoding, seed, *shares):
    of_length = dict(zip(("20", "40", "80"), shares, strict=True))
    return {
        "encoding": encoding, "task": "copy", "size": "64x2x4", "seed": seed, "exact_by_length": of_length,
        "undertrained": shares[0] < 0.9,
    }  # fmt: skip


RESULTS = [result("rope", 0, 2.5, 2.0, 4.0), result("rope", 1, 2.5, 2.2, 5.0), result("alibi", 0, 2.6, 2.4, 2.5)]


def shown(act, *, terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with Board(CONFIG, console) as board:
        act(board)
    return out.getvalue()


def test_the_table_means_over_seeds_and_puts_the_best_at_the_longest_length_first():
    results = [
        *RESULTS,
        copied("rope", 0, 1.0, 0.5, 0.0),
        copied("rope", 1, 0.5, 0.0, 0.0),
        copied("nope", 0, 1.0, 1.0, 0.9),
    ]
    table = shown(lambda board: board.console.print(*board.tables(results)), terminal=False)
    rows = [line.split() for line in table.splitlines()]
    assert [row for row in rows if row and row[0] in CONFIG.encodings] == [
        ["alibi", "2.600", "2.400", "2.500", "+0.100", "1/2"],  # change since the trained length, 8
        ["rope", "2.500", "2.100", "4.500", "+2.400", "2/2"],
        ["nope", "1.00", "1.00", "0.90", "-0.10", "1/2"],
        ["rope", "0.75", "0.25", "0.00", "-0.75", "2/2"],
    ]


def test_without_a_terminal_there_are_plain_lines_only():
    def act(board):
        board.draw(RESULTS, lambda: ["nope s0 3/9"], lambda: 61.0)
        board.finished(RESULTS[2], 61.0)
        board.finished(copied("nope", 1, 0.5, 0.25, 0.0), 3.0)

    text = shown(act, terminal=False)
    assert text.splitlines() == [
        "alibi s0: 2.400 at 8, 2.500 at 16 bytes, undertrained (1:01 left)",
        "nope s1: copy 0.50 at 20, 0.25 at 40, 0.00 at 80, not learned (0:03 left)",
    ]


def test_a_terminal_sees_what_runs_and_how_long_it_will_take():
    text = shown(lambda board: board.draw(RESULTS, lambda: ["nope s0 3/9"], lambda: 61.0), terminal=True)
    assert "nope s0 3/9" in text
    assert "about 1:01 left" in text
    assert "timing the first steps" in shown(lambda board: board.draw([], list, lambda: None), terminal=True)


def test_markup_in_a_name_is_shown_as_it_is():
    text = shown(lambda board: board.say("my:[bold]Class[/bold] failed: [red]no"), terminal=False)
    assert text == "my:[bold]Class[/bold] failed: [red]no\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (187, "3:07"), (-4, "0:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text
