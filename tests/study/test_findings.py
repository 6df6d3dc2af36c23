import math

from posenc.study.advice import form_advice
from posenc.study.findings import form_findings
from posenc.study.measures import Measures, plain, signed
from study.samples import REAL, make_cell, make_run, make_study

FLAT_ROPE = (2.3, 2.3, 2.31, 2.3, 2.31)
BROKEN_ALIBI = (2.1, 3.2, 3.9, 4.4, 5.0)


def found(run, cells):
    return {finding.kind: finding.text for finding in form_findings(run, cells)}


def advised(run, cells):
    return {advice.kind: advice for advice in form_advice(run, cells)}


def test_realistic_numbers_give_the_known_story():
    text = found(*make_study())
    assert "rope has the lowest loss: 2.1" in text["best_base"]
    assert "alibi has the lowest loss: 2.3" in text["best_longest"]
    assert "no encoding's loss falls" in text["gains"]
    assert "rope falls from rank 1 of 11 at 1× to rank 10 at 16×" in text["rank"]


def test_an_upside_down_world_gives_the_opposite_story():
    study = make_study({**REAL, "rope": FLAT_ROPE, "alibi": BROKEN_ALIBI, "xpos": (2.4, 2.5, 2.6, 2.7, 2.9)})
    text = found(*study)
    assert "alibi has the lowest loss: 2.1" in text["best_base"]
    assert text["best_longest"].startswith("With 1,024 bytes of context, the longest tested, rope")
    assert advised(*study)["long"].winners == ("rope",)
    assert advised(*study)["trained"].winners == ("alibi",)


def test_a_gain_from_context_is_named_with_its_length():
    text = found(*make_study({"nope": REAL["nope"], "t5": (2.6, 2.5, 2.3, 2.45, 2.9)}))
    assert text["gains"].startswith("Context beyond the trained length lowers the loss of t5 (−0.3")
    assert "at 4×" in text["gains"]
    assert "nope" not in text["gains"]


def test_a_gain_smaller_than_the_spread_is_not_claimed():
    run = make_run(["t5"])
    cells = [
        make_cell("t5", 0, (2.6, 2.6, 2.6, 2.6, 2.4), 0),
        make_cell("t5", 1, (2.6, 2.6, 2.6, 2.6, 2.59), 0),
    ]
    assert "no encoding's loss falls" in found(run, cells)["gains"]


def test_differences_within_the_spread_are_no_difference():
    run = make_run(["one", "two"])
    pairs = (("one", 0, 2.30), ("one", 1, 2.50), ("two", 0, 2.35), ("two", 1, 2.55))
    cells = [make_cell(name, seed, (value,) * 5, 0) for name, seed, value in pairs]
    text = found(run, cells)
    assert "one has the lowest mean, 2.40 ± 0.10 bits per byte, but is not separated from two" in text["best_base"]
    assert "the spread over seeds" not in text["best_longest"]
    assert "do not separate one and two" in advised(run, cells)["trained"].text
    assert advised(run, cells)["trained"].winners == ("one", "two")


def test_two_seeds_that_happen_to_agree_do_not_make_a_difference_certain():
    run = make_run(["one", "two", "three", "four"])
    values = {"one": (2.30, 2.30), "two": (2.33, 2.33), "three": (2.6, 2.7), "four": (2.8, 2.9)}
    cells = [make_cell(n, seed, (v,) * 5, 0) for n, pair in values.items() for seed, v in enumerate(pair)]
    assert "is not separated from two (2.33" in found(run, cells)["best_base"]


def test_one_seed_is_held_against_the_standard_error():
    bits = {"one": (2.30,) * 5, "two": (2.36,) * 5, "three": (2.6,) * 5}
    text = found(*make_study(bits, seeds=(0,), noise=0))["best_base"]
    assert "is not separated from two (2.36)" in text
    assert "three" not in text
    assert "±" not in text


def test_cost_follows_the_measured_steps():
    bits = {name: REAL[name] for name in ("nope", "rope", "alibi")}
    run, cells = make_study(bits)
    steps = {"nope": (40.0, 42.0), "rope": (30.0, 30.5), "alibi": (41.0, 41.4)}
    for cell in cells:
        cell["step_ms"] = steps[cell["encoding"]][cell["seed"]]
    text = found(run, cells)["cost"]
    assert "nope takes 41.0 ± 1.0 ms" in text
    assert "Cheaper: rope (0.74×" in text
    assert "Not separated from it: alibi" in text
    assert "More expensive" not in text
    assert advised(run, cells)["step"].winners == ("rope",)


def test_without_nope_the_cheapest_step_is_the_reference():
    run, cells = make_study({name: REAL[name] for name in ("rope", "transformer_xl")})
    assert "A training step with rope takes" in found(run, cells)["cost"]


def test_the_fewest_parameters_are_counted_not_assumed():
    run, cells = make_study({name: REAL[name] for name in ("rope", "alibi", "t5")})
    advice = advised(run, cells)["parameters"]
    assert set(advice.winners) == {"rope", "alibi"}
    assert "at 1×: rope" in advice.text
    assert "at 16×: alibi" in advice.text
    for cell in cells:
        cell["position_parameters"] = {"rope": 9, "alibi": 7, "t5": 1}[cell["encoding"]]
    assert advised(run, cells)["parameters"].winners == ("t5",)


def test_undertrained_encodings_are_in_no_finding_and_no_advice():
    run, cells = make_study()
    for cell in cells:
        cell["undertrained"] = cell["encoding"] == "rope" and cell["seed"] == 1
    texts = [*found(run, cells).values(), *(f"{a.winners} {a.text}" for a in advised(run, cells).values())]
    assert not any("rope" in text for text in texts)
    assert "xpos has the lowest loss" in found(run, cells)["best_base"]


def test_nothing_measured_gives_no_finding_and_advice_that_says_so():
    run = make_run(list(REAL))
    assert form_findings(run, []) == []
    assert all(not advice.winners and "no measurements" in advice.text for advice in form_advice(run, []))
    assert form_findings({}, []) == []


def test_values_that_are_not_finite_count_as_not_measured():
    run, cells = make_study({"rope": REAL["rope"], "alibi": REAL["alibi"]})
    for cell in cells:
        if cell["encoding"] == "rope":
            cell["bits_by_length"]["1024"] = math.nan
            cell["step_ms"] = math.inf
    assert "there is no other encoding" in found(run, cells)["best_longest"]
    assert "nan" not in " ".join(found(run, cells).values())


def test_only_the_trained_length_measured_says_nothing_of_longer_ones():
    run, cells = make_study()
    for cell in cells:
        cell["bits_by_length"] = {"64": cell["bits_by_length"]["64"]}
    assert set(found(run, cells)) == {"best_base", "cost"}
    assert advised(run, cells)["long"].winners == ()


def test_changes_are_paired_within_a_seed():
    run = make_run(["alibi"])
    cells = [make_cell("alibi", 0, (2.0,) * 5, 0), make_cell("alibi", 1, (3.0,) * 5, 0)]
    change = Measures(run, cells).encodings["alibi"].change[1024]
    assert (change.mean, change.spread) == (0.0, 0.0)


def test_numbers_are_set_with_true_signs():
    assert (plain(-1234.5, 1), plain(-0.001), signed(0.014), signed(-0.014)) == (
        "−1,234.5",
        "0.00",
        "+0.01",
        "−0.01",
    )
