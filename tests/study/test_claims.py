import numpy as np
import pytest
from scipy import stats

from posenc.study.claims import CANNOT_TELL, CONTRADICTED, SEEN, weigh_claims
from study.samples import EXACT, REAL, make_cell, make_run, make_study, make_task_study


def claim(study, start):
    (found,) = [claim for claim in weigh_claims(*study) if claim.claim.startswith(start)]
    return found


def of_changes(**changes):
    """Return a study in which each encoding loses so much by 16 times the trained length, a number per seed."""
    cells = [
        make_cell(name, seed, (2.0, 2.0, 2.0, 2.0, 2.0 + change), 0)
        for name, values in changes.items()
        for seed, change in enumerate(values)
    ]
    return make_run(list(changes)), cells


def of_copy(**far):
    """Return a study of copy in which each encoding has these shares of exact lines at the longest length."""
    return make_task_study({"copy": {n: [(1.0, 0.9, 0.9, value) for value in values] for n, values in far.items()}})


ROPE_BREAKS, XPOS_LESS, NOPE_COPIES = (
    "RoPE is much worse",
    "xPos",
    "NoPE copies beyond the trained length better than ALiBi",
)


@pytest.mark.parametrize(
    ("study", "start", "verdict", "why"),
    [
        (of_changes(rope=(1.0, 1.1)), ROPE_BREAKS, SEEN, "rope +1.05 (+0.73 to +1.37); at 16×"),
        (of_changes(rope=(0.0, 0.02)), ROPE_BREAKS, CONTRADICTED, "rope +0.01"),
        (of_changes(rope=(0.31, 0.8)), ROPE_BREAKS, CANNOT_TELL, "the interval crosses the limit"),
        (of_changes(rope=(0.1, 0.8)), ROPE_BREAKS, CANNOT_TELL, "seeds disagree"),
        (of_changes(rope=(1.0,)), ROPE_BREAKS, CANNOT_TELL, "rope +1.00, one pair of seeds"),
        # clear of the limit as a mean of thirty, yet one seed says otherwise
        (of_changes(rope=(0.29, *[1.0] * 29)), ROPE_BREAKS, CANNOT_TELL, "seeds disagree"),
        (of_changes(rope=(*[1.0] * 29, 0.31)), ROPE_BREAKS, SEEN, ""),
        # seeds differ far more than the two encodings do, and within each seed xpos loses less
        (of_changes(rope=(0.5, 2.5), xpos=(0.4, 2.4)), XPOS_LESS, SEEN, "xpos − rope −0.10 (−0.10 to −0.10)"),
        (of_changes(rope=(0.4, 2.4), xpos=(0.5, 2.5)), XPOS_LESS, CONTRADICTED, "xpos − rope +0.10"),
        (of_changes(rope=(0.5, 2.4), xpos=(0.4, 2.5)), XPOS_LESS, CANNOT_TELL, "seeds disagree"),
        (of_changes(rope=(1.0, 2.0), xpos=(0.1,)), XPOS_LESS, CANNOT_TELL, "xpos − rope −0.90, one pair of seeds"),
        (of_copy(nope=(0.9, 0.9, 0.8), alibi=(0.1, 0.2, 0.0)), NOPE_COPIES, SEEN, "nope − alibi +0.77"),
        (of_copy(nope=(0.1, 0.2, 0.0), alibi=(0.9, 0.9, 0.8)), NOPE_COPIES, CONTRADICTED, "nope − alibi −0.77"),
        (of_copy(nope=(0.9, 0.9, 0.0), alibi=(0.0, 0.0, 0.0)), NOPE_COPIES, CANNOT_TELL, "crosses the limit"),
        # both fail in every seed: that is no difference, and no contradiction
        (of_copy(nope=(0.0, 0.0, 0.0), alibi=(0.0, 0.0, 0.0)), NOPE_COPIES, CANNOT_TELL, "nope − alibi 0.00"),
    ],
)
def test_a_verdict_follows_from_the_interval_of_paired_differences(study, start, verdict, why):
    found = claim(study, start)
    assert (found.verdict, why in found.measured) == (verdict, True), found


@pytest.mark.parametrize("n_seeds", [2, 3, 5, 31, 40])
def test_a_verdict_turns_where_scipys_interval_does(n_seeds):
    moves = np.linspace(-0.2, 0.2, n_seeds)
    half = stats.t.interval(0.9, n_seeds - 1, 0, stats.sem(moves))[1]
    for beyond, verdict in ((0.002, SEEN), (-0.002, CANNOT_TELL)):
        centre = 0.3 + max(half, 0.2) + beyond  # every seed on the claim's side, or the interval, whichever needs more
        assert claim(of_changes(rope=centre + moves), ROPE_BREAKS).verdict == verdict


def test_published_outcomes_on_realistic_numbers():
    text = [(SEEN, CONTRADICTED)[k in (1, 2)] for k in range(10)]
    assert [found.verdict for found in weigh_claims(*make_study(noise=0.0))] == text + [CANNOT_TELL] * 10
    verdicts = {found.claim: found.verdict for found in weigh_claims(*make_task_study())}
    far = "beyond the trained length"
    for words, verdict in (
        (f"NoPE copies {far} better than RoPE and sinusoidal", SEEN),
        (f"The T5 bias copies {far} better than RoPE and sinusoidal", SEEN),
        (f"NoPE copies {far} better than ALiBi", CANNOT_TELL),
        (f"No encoding solves parity {far}", SEEN),
        (f"Randomised positions help {far}: rope on copy", SEEN),
        (f"Randomised positions help {far}: sinusoidal on copy", CANNOT_TELL),
        ("PoPE learns indirect indexing better than RoPE", CANNOT_TELL),
    ):
        assert verdicts[words] == verdict, words


def test_a_claim_about_several_needs_every_one_of_them():
    start = "RoPE is ahead of absolute"
    assert claim(make_study(noise=0.0), start).verdict == SEEN
    behind = make_study(REAL | {"sinusoidal": (1.9, 3.1, 3.3, 3.4, 3.5)}, noise=0.0)
    assert claim(behind, start).verdict == claim(behind, "RoPE is the best of all").verdict == CONTRADICTED
    assert claim(behind, start).measured.startswith("rope − sinusoidal +0.21")
    level = make_study(REAL | {"sinusoidal": REAL["rope"]}, noise=0.0)
    assert claim(level, start).verdict == CANNOT_TELL


def test_a_hump_before_the_longest_length_is_not_flat():
    found = claim(make_study({"alibi": (2.3, 2.3, 2.9, 2.4, 2.3)}, noise=0.0), "ALiBi")
    assert found.verdict == CONTRADICTED
    assert "+0.60" in found.measured


def test_parity_is_solved_by_none_only_where_every_trained_encoding_fails():
    solved = make_task_study({"parity": EXACT["parity"] | {"t5": ((1.0, 1.0, 1.0, 0.97),) * 3}})
    found = claim(solved, "No encoding solves parity")
    assert found.verdict == CONTRADICTED
    assert found.measured.startswith("t5 0.97")
    assert found.measured.endswith("left out as undertrained: alibi")


def test_a_task_at_the_trained_length_is_weighed_though_one_did_not_learn_it():
    study = make_task_study({"indirect": {"pope": ((0.95,) * 4, (0.93,) * 4), "rope": ((0.1,) * 4, (0.12,) * 4)}})
    assert claim(study, "PoPE").verdict == SEEN


def test_what_was_not_run_or_not_measured_or_undertrained_says_so():
    run, cells = make_study({"alibi": REAL["alibi"], "rope": REAL["rope"]})
    cells[2]["undertrained"] = True
    del cells[1]["bits_by_length"]["1024"], cells[0]["bits_by_length"]["1024"]
    for start, why in (
        ("Sinusoidal", "not run: sinusoidal"),
        ("KERPLE", "not run: kerple"),
        ("RoPE is ahead", "undertrained: rope; not run: sinusoidal, learned"),
        ("RoPE is much worse", "undertrained: rope"),
        ("NoPE copies beyond the trained length better than ALiBi", "not run: copy"),
        ("Abacus positions add beyond the trained length better than FIRE",
         "not run: addition:all_reversed@abacus, addition:all_reversed"),
        ("Randomised", "not run: …@randomised"),
    ):  # fmt: skip
        assert (claim((run, cells), start).verdict, claim((run, cells), start).measured) == (CANNOT_TELL, why)
    short = [cell | {"bits_by_length": {"64": 2.0}} for cell in cells[:2]]
    assert claim((run, short), "ALiBi").measured == "not measured past the trained length: alibi"
    assert {found.verdict for found in weigh_claims(run, [])} == {CANNOT_TELL}


def test_streams_tested_at_other_lengths_are_not_compared():
    run, cells = make_task_study({"copy": EXACT["copy"], "copy@randomised": EXACT["copy@randomised"]})
    for cell in (cell for cell in cells if cell["task"] == "copy"):
        del cell["exact_by_length"]["80"]
    assert claim((run, cells), "Randomised positions help beyond the trained length: rope").measured == (
        "not tested at the same lengths"
    )


def test_each_size_has_verdicts_of_its_own():
    run, cells = make_task_study({"copy": EXACT["copy"]}, sizes=("64x2x4", "128x2x4"))
    for cell in cells:
        if cell["size"] == "128x2x4" and cell["encoding"] == "nope":
            cell["exact_by_length"]["80"] = 0.0
    start = "NoPE copies beyond the trained length better than RoPE"
    verdicts = [
        found.verdict
        for size in ("64x2x4", "128x2x4")
        for found in weigh_claims(run, cells, size)
        if found.claim.startswith(start)
    ]
    assert verdicts == [SEEN, CANNOT_TELL]
