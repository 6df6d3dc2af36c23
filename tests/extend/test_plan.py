"""The plan of a longer context: numbers by hand, from the papers' statements, and from docs of what was compared."""

import math

import numpy as np
import pytest

from posenc.config.known import known_models
from posenc.extend.plan import plan
from posenc.extend.published import PUBLISHED
from posenc.extend.stretch import METHODS

TURN = 2 * math.pi


def planned(name, target, **more):
    """Return the plan for a known model, and its candidates by name."""
    model = known_models()[name]
    found = plan(model["config"], target, **{"trained_len": model["original_max_len"], **more})
    return found, {one.method.name: one for one in found.candidates}


def frequencies(base, width=128):
    return np.array([base ** (-2 * k / width) for k in range(width // 2)])


def test_every_method_stands_there_once_with_its_sources():
    _, by_name = planned("qwen3-8b", 131072)
    assert by_name.keys() == METHODS.keys() == PUBLISHED.keys()
    assert all(one.good_source and one.bad_source for one in PUBLISHED.values())


def test_the_critical_dimension_of_llama_2_is_92_as_its_paper_says():  # Liu et al. 2023, section 3
    found, _ = planned("llama-2-7b", 16384)
    assert (2 * found.full_turns, found.n_pairs, found.unseen) == (92, 64, 18)


@pytest.mark.parametrize("target", [65536, 131072, 1048576])
def test_yarns_temperature_is_that_of_its_paper(target):  # Peng et al. 2023, eq. 15: sqrt(1/t) = 0.1 ln s + 1
    _, by_name = planned("qwen3-8b", target)
    gain = 0.1 * math.log(target / 32768) + 1
    effect = by_name["yarn"].effect
    assert effect.gain == pytest.approx(gain, rel=1e-12)
    assert (effect.logits, effect.short_logits) == pytest.approx((gain**2, gain**2), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "target", "method", "options", "cos"),
    [  # computed apart from this code for the comparison of stacks
        ("qwen3-8b", 131072, "yarn", {}, {1000: 0.9820}),
        ("qwen3-8b", 98304, "ntk", {}, {100: 0.6742, 1000: 0.4876}),  # SGLang's fixed base of dynamic NTK with factor 2
        ("llama-3.1-8b", 16384, "linear", {}, {100: 0.6329, 1000: 0.4691}),
        ("llama-3.1-8b", 16384, "base", {"rope_theta": 5e5}, {1000: 0.9631}),  # run unscaled
    ],
)
def test_short_texts_change_by_the_numbers_known_from_stacks(model, target, method, options, cos):
    _, by_name = planned(model, target, options=options)
    found = by_name[method].effect.cos
    assert {distance: found[distance] for distance in cos} == pytest.approx(cos, abs=5e-5)


def test_pairs_at_new_angles_are_those_that_a_plain_loop_counts():
    found, by_name = planned("qwen3-8b", 131072)
    slow = [w for w in frequencies(1e6) if w * 32768 < TURN]
    assert (found.n_pairs - found.full_turns, found.unseen) == (len(slow), len(slow))
    both = zip(frequencies(1e6), frequencies(1e6 * 4 ** (128 / 126)), strict=True)
    grows = [32768 * old < TURN and 131072 * new > 32768 * old * (1 + 1e-9) for old, new in both]
    ntk = tuple(pair for pair, new in enumerate(grows) if new)
    assert by_name["ntk"].effect.unseen_pairs == ntk
    assert by_name["ntk"].effect.unseen == len(ntk) > 0
    others = {name: one.effect.unseen for name, one in by_name.items() if one.effect and name != "ntk"}
    assert set(others.values()) == {0}


def test_the_larger_base_is_the_smallest_without_new_angles():
    _, by_name = planned("qwen3-8b", 131072)
    base = by_name["base"].parameters["rope_theta"]
    power = math.log(131072 / TURN) / math.log(32768 / TURN)
    assert base == math.ceil(1e6**power)
    _, smaller = planned("qwen3-8b", 131072, options={"rope_theta": base * 0.9})
    assert smaller["base"].effect.unseen > 0


def test_neighbours():
    _, by_name = planned("qwen3-8b", 131072)
    effects = {name: one.effect for name, one in by_name.items()}
    assert (effects["linear"].fastest, effects["linear"].median, effects["linear"].closer) == (0.25, 0.25, 64)
    ntk = effects["ntk"]
    assert (ntk.fastest, ntk.closer) == (1, 63)
    assert ntk.median == pytest.approx((4 ** (-31 / 63) + 4 ** (-32 / 63)) / 2)
    first_divided = math.floor(128 * math.log(32768 / (32 * TURN)) / (2 * math.log(1e6))) + 1
    assert (effects["yarn"].fastest, effects["yarn"].closer) == (1, 64 - first_divided)
    assert (effects["drope"].fastest, effects["drope"].closer) == (0, 64)
    assert all((effects[name].fastest, effects[name].closer) == (1, 0) for name in ("dual-chunk", "self-extend"))


def test_llama_3_keeps_29_pairs():  # Meta's code: 29 kept, 6 blended, 29 divided for base 500,000 and 8,192 positions
    _, by_name = planned("llama-3-8b", 65536)
    assert by_name["llama3"].effect.closer == 6 + 29


def test_dynamic_ntk_costs_short_texts_nothing_but_depends_on_the_length():
    _, by_name = planned("qwen3-8b", 131072)
    effect = by_name["dynamic"].effect
    assert set(effect.cos.values()) == {1.0}
    assert not effect.fixed
    assert by_name["yarn"].effect.fixed
    reached = frequencies(1e6 * (4 * 4 - 3) ** (128 / 126)) / frequencies(1e6)
    assert effect.median == pytest.approx(np.median(reached))


def test_dual_chunk_by_hand():
    _, by_name = planned("qwen3-8b", 131072)
    one = by_name["dual-chunk"]
    assert one.parameters == {"chunk": 24576, "local": 2048}
    # token 32,768 is the 10,241st of the second stretch of 22,528, and sees the first key from min(32768, 24576)
    expected = np.cos(frequencies(1e6) * (32768 - 24576)).mean()
    assert one.effect.cos == pytest.approx({100: 1.0, 1000: 1.0, 32768: expected}, abs=1e-9)
    assert one.effect.unseen == 0


def test_self_extend_by_hand():
    _, by_name = planned("qwen3-8b", 131072)
    one = by_name["self-extend"]
    assert one.parameters == {"window": 8192, "group": 5}  # 5 (32768 - 8192) + 8192 = 131072
    expected = np.cos(frequencies(1e6) * (32768 - (6553 + 8192 - 1638))).mean()
    assert one.effect.cos == pytest.approx({100: 1.0, 1000: 1.0, 32768: expected}, abs=1e-9)


@pytest.mark.parametrize(("target", "group"), [(15800, 5), (16384, 5), (16385, 6)])
def test_groups_are_those_of_the_authors_example(target, group):  # README of LongLM, section 4
    _, by_name = planned("llama-2-7b", target, options={"window": 1024})
    assert by_name["self-extend"].parameters == {"window": 1024, "group": group}


def test_mapped_distances_start_from_the_length_that_the_model_reads_now():
    _, by_name = planned("llama-3.1-8b", 1048576)
    assert by_name["dual-chunk"].parameters == {"chunk": 98304, "local": 8192}
    assert by_name["self-extend"].parameters == {"window": 32768, "group": 11}  # (1048576 - 32768) / 98304 = 10.3
    assert by_name["self-extend"].effect.cos[8192] == 1.0


def test_dropped_positions():
    _, by_name = planned("qwen3-8b", 131072)
    effect = by_name["drope"].effect
    assert effect.cos[100] == pytest.approx(np.cos(100 * frequencies(1e6)).mean())
    assert (effect.unseen, effect.gain, effect.logits) == (0, None, None)


def test_longrope_waits_for_its_lists():
    _, without = planned("qwen3-8b", 131072)
    assert "long_factor" in without["longrope"].refused
    lists = {"long_factor": [4.0] * 64, "short_factor": [1.0] * 64}
    _, given = planned("qwen3-8b", 131072, options=lists)
    effect = given["longrope"].effect
    assert (effect.unseen, effect.fastest, effect.fixed) == (0, 0.25, False)
    assert set(effect.cos.values()) == {1.0}
    assert effect.logits == pytest.approx(1 + math.log(4) / math.log(32768))  # Ding et al. 2024


PHI = {
    **{"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "rope_theta": 1e4},
    **{"max_position_embeddings": 8192, "original_max_position_embeddings": 1024},
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [8.0] * 16},
}


def test_the_lists_that_the_file_ships_count():
    found = plan(PHI, 16384)
    one = next(one for one in found.candidates if one.method.name == "longrope")
    assert one.parameters["long_factor"] == [8.0] * 16
    slow = [w for w in frequencies(1e4, 32) if 1024 * w < TURN]
    assert one.effect.unseen == len(slow)  # 16384 / 8 is twice what was seen
    assert one.effect.cos[8192] == 1.0


def test_a_rotation_that_no_type_scales_leaves_methods_that_change_attention():
    kinds = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    gemma = {"model_type": "gemma4_text", "head_dim": 256, "num_hidden_layers": 6, "max_position_embeddings": 32768}
    found = plan(gemma | {"rope_parameters": kinds, "sliding_window": 512}, 131072)
    assert {one.method.name for one in found.candidates if one.effect} == {"dual-chunk", "self-extend", "drope"}
    refused = {one.method.name: one.refused for one in found.candidates}
    assert "for a proportional rotation" in refused["yarn"]
    assert (found.unseen, found.recommended) == (0, None)
    assert "only declare the length" in found.reason


def test_hunyuans_alpha_belongs_to_the_base():
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    hunyuan = {"model_type": "hunyuan_v1_dense", "head_dim": 128, "num_hidden_layers": 2, "rope_theta": 1e4}
    found = plan(hunyuan | {"max_position_embeddings": 32768, "rope_scaling": scaling}, 131072)
    yarn = found.recommended
    assert yarn.method.name == "yarn"
    assert yarn.parameters["rope_theta"] == pytest.approx(1e4 * 1000 ** (128 / 126))
    assert (yarn.effect.unseen, yarn.effect.fastest) == (0, 1)


def test_what_the_file_ships_changes_nothing():
    _, by_name = planned("deepseek-v3", 163840)
    effect = by_name["yarn"].effect
    assert (effect.unseen, effect.closer, effect.fastest) == (0, 0, 1)
    assert (effect.logits, effect.short_logits) == pytest.approx((1, 1))
    assert set(effect.cos.values()) == {1.0}
    assert list(effect.cos) == [100, 1000, 4096, 163840]


def test_angles_that_a_shipped_scaling_was_trained_on_are_not_new():
    """Llama 3.1 divides slow pairs by 8 and reads 16 times as much, so they were trained at twice the plain angles."""
    _, by_name = planned("llama-3.1-8b", 131072, options={"low_freq_factor": 1})
    assert by_name["llama3"].effect.unseen == 0  # divided by 16
    _, plain = planned("llama-3-8b", 131072)
    assert plain["llama3"].effect.unseen == 0
    twice = planned("llama-3.1-8b", 131072, options={"rope_theta": 5e5})[1]["base"].effect.unseen
    slow = [w for w in frequencies(5e5) if 2 * 8192 * w < TURN]
    assert twice == len(slow)


@pytest.mark.parametrize(
    ("model", "target", "train", "first"),
    [
        ("qwen3-8b", 131072, False, "yarn"),
        ("llama-3-8b", 1048576, True, "yarn"),
        ("llama-3.1-8b", 1048576, False, "llama3"),
        ("gemma-3-27b", 262144, False, "linear"),
        ("deepseek-v3", 327680, False, "yarn"),
        ("gpt-oss-20b", 262144, False, "yarn"),
        ("pythia-1.4b", 8192, False, "yarn"),
    ],
)
def test_the_first(model, target, train, first):
    found, _ = planned(model, target, train=train)
    assert found.recommended.method.name == first
    assert "no pair reaches new angles" in found.reason


def test_new_angles_count_more_than_angles_that_change_with_the_length():
    found, _ = planned("qwen3-8b", 131072)
    order = [one.method.name for one in found.candidates]
    assert order.index("yarn") < order.index("dynamic") < order.index("ntk")  # all published for 4 times at least


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        ("deepseek-v3", 163840, "the model already handles 163,840 positions"),
        ("qwen3-8b", 32768, "the model already handles 32,768 positions"),
        ("command-r7b", 528384, "the layers that rotate have a window of 4,096 positions, so no distance grows"),
    ],
)
def test_nothing_needs_to_change(model, target, said):
    found, _ = planned(model, target)
    assert (found.recommended, found.reason, found.unseen) == (None, f"{said}.", 0)


def test_what_the_file_ships_counts_from_what_the_model_reads_now():
    found, _ = planned("llama-3.1-8b", 1048576)
    assert (found.trained_len, found.now_len, found.factor, found.step) == (8192, 131072, 128, 8)
    assert found.reason.startswith("the file already has it; ")
    plain, _ = planned("qwen3-8b", 131072)  # which declares 40,960 without a scaling
    assert (plain.now_len, plain.step) == (32768, 4)


def test_training_changes_the_order_and_no_number():
    without, with_ = planned("qwen3-8b", 131072), planned("qwen3-8b", 131072, train=True)
    order = [[one.method.name for one in found.candidates] for found, _ in (without, with_)]
    assert order[0] != order[1]
    assert {name: one.effect for name, one in without[1].items()} == {n: one.effect for n, one in with_[1].items()}
    assert order[0].index("dynamic") < order[0].index("llama3")  # about which nothing was published without training
    assert order[1].index("llama3") < order[1].index("dynamic")


def test_it_warns_where_nothing_published_goes_so_far():
    found, _ = planned("llama-3-8b", 1048576)
    assert found.reason.endswith("up to factor 4, but 128 is wanted: train the model, or choose a shorter length.")
    eight, _ = planned("qwen3-8b", 262144)
    assert "up to factor 4, but 8 is wanted (dual-chunk up to 24): train the model, or choose" in eight.reason
    assert planned("qwen3-8b", 131072)[0].reason.endswith("published without training up to factor 4.")


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        ("qwen3-8b", {"target_len": 1000}, "at least the trained length 32768; got 1000"),
        ("qwen3-8b", {"target_len": 10**10}, "the factor must be from 1 to 10000"),
        ("qwen3-8b", {"options": {"beta": 1}}, "no method has a parameter beta. Known: attention_factor"),
        ("qwen3-8b", {"options": {"beta_fast": -1}}, "beta_fast"),
        ("qwen3-8b", {"options": {"long_factor": [4.0], "short_factor": [1.0]}}, "64 entries"),
        ("qwen3-8b", {"options": {"chunk": 8, "local": 8}}, "local must be below chunk=8; got 8"),
        ("qwen3-8b", {"options": {"window": 32768}}, "window"),
        ("qwen3-8b", {"trained_len": 1}, "at least 2 positions; got 1"),
        ({"model_type": "bloom"}, {}, "does not rotate"),
        ({"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}, {"trained_len": None}, "gives no length"),
        ({"model_type": "llama", "head_dim": 64, "rope_theta": -1}, {}, "rope_theta must be above 1"),
    ],
)
def test_refusals(source, more, said):
    fields = known_models()[source]["config"] if isinstance(source, str) else source
    with pytest.raises((ValueError, TypeError), match=said):
        plan(fields, **{"target_len": 131072, "trained_len": 32768, **more})
