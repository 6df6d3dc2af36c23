"""Codes are data: every fault of every family has a rule, whose slots the fault fills."""

import re

import pytest

from posenc.verify import FAMILIES, family_of, rules, sentences
from posenc.verify.engine import Fault, Verdict
from posenc.verify.sentences import message_of

ROPE = {"head_dim": 16, "base": 10000.0, "layout": "half"}
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "rope_theta": 10000.0}
SCALINGS = (
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.5},
    {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}
    | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    | {"original_max_position_embeddings": 512},
)
ROTARY = [
    ROPE,
    ROPE | {"rotary_dim": 8},
    *(ROPE | {"config": SIZES | {"rope_scaling": s, "max_position_embeddings": 2048}} for s in SCALINGS),
]
SPECS = {  # by convention; together they reach every fault
    **dict.fromkeys(["hf_rope", "meta_complex", "rope_fn", "rope_offset_fn", "lucidrains", "bshd_module"], ROTARY),
    "xpos_fn": [ROPE | {"encoding": "xpos", "gamma": 0.4, "scale_base": 512}],
    "mrope_fn": [ROPE | {"section": [2, 3, 3]}, ROPE | {"section": [4, 2, 2], "interleaved": True}],
    "rope2d_table_fn": [ROPE, ROPE | {"interleaved": True}],
    "rope_axes_fn": [ROPE],
    "mrope_positions_fn": [{}, {"next_after": "sides"}],
    "additive_module": [{"encoding": "sinusoidal", "dim": 16}, {"encoding": "learned", "dim": 16, "table_rows": 64}],
    "additive_2d_module": [{"encoding": "sinusoidal2d", "dim": 16}, {"encoding": "learned2d", "dim": 16}],
    "relative_table_fn": [{"encoding": "relative_sinusoid", "dim": 16}],
    "relative_index_fn": [{"window": [3, 5]}],
    **{key: [{"encoding": "alibi", "heads": 12}] for key in ["slopes_fn", "bias_fn", "score_mod"]},
    "bucket_fn": [{"encoding": "t5"}, {"encoding": "t5", "causal": True, "num_buckets": 64, "max_distance": 256}],
    "position_fn": [{"kind": "positions", "padding": "left"}, {"kind": "positions", "padding": "right"}],
    "packed_position_fn": [{"kind": "positions"}],
    "learned_rows_fn": [{"offset": 2, "table_rows": 130, "max_positions": 128}],
    "cached_model": [{"encoding": "rope", "dim": 16, "heads": 2, "head_dim": 8, "causal": True}],
    "attention": [{"encoding": "rope", "head_dim": 16, "causal": True}],
    "scores_fn": [
        {"encoding": "shaw", "max_distance": 9},
        {"encoding": "transformer_xl"},
        {"encoding": "swin_v2"},
        {"encoding": "deberta", "max_distance": 30},
        {"encoding": "deberta", "num_buckets": 16, "max_distance": 40},
    ],
    "shift_fn": [{}, {"causal": False}],
    "learned_bias_fn": [{"encoding": "fire"}, {"encoding": "swin_v2", "pretrained_window": 7}, {"encoding": "beit"}],
}
OLD = re.compile(r"\b(mend|mended|told|beside|nobody|somebody)\b")


def engine(convention):
    return convention in FAMILIES and FAMILIES[convention].startswith("families.")


@pytest.mark.parametrize("convention", [name for name in SPECS if engine(name)])
def test_every_fault_has_a_rule_and_fills_its_slots(convention):
    known, faults = rules.known(), 0
    for spec in SPECS[convention]:
        family = family_of(convention, spec)
        assert family.mismatch in known
        assert {kind.code for kind in family.kinds} <= set(known)
        for fault in family.faults():
            faults += 1
            assert fault.code in known, fault.code
            message = message_of(known[fault.code], fault)
            assert message, fault.code
            assert "{" not in message, (fault.code, fault.values)
    assert faults


def test_every_convention_has_a_specification_here():
    assert {name for name in FAMILIES if engine(name)} <= set(SPECS)


def test_rules_are_in_the_field_s_words():
    found = {}
    for code, rule in rules.known().items():
        for text in (rule.title, rule.why, rule.fix, rule.says):
            if match := OLD.search(text):
                found[code] = match[0]
    assert found == {}


def test_a_rule_takes_what_it_leaves_out_from_the_rule_that_it_is_like():
    like, rule = rules.find("mrope.precision.positions_bf16"), rules.find("rope2d.precision.positions_fp16")
    assert (rule.why, rule.fix) == (like.why, like.fix)
    assert rule.reports == ()


ALIKE = [
    ("sinusoidal.frequency.base", {"base": 10000.000001, "asked": 10000.0}, "is 10000, but 10000"),
    ("sinusoidal.start", {"start": 1.0, "asked": 1.0}, "should have 1"),
    ("t5.bucket.max_distance_hardwired", {"used": 128, "asked": 128, "same": ""}, "not 128"),
]


@pytest.mark.parametrize(("code", "values", "absurd"), ALIKE)
def test_no_message_asks_for_the_value_that_was_found(code, values, absurd):
    said = message_of(rules.find(code), Fault(code, {}, values))
    assert absurd not in said
    other = values | {next(iter(values)): 7}
    assert absurd.split()[-1] in message_of(rules.find(code), Fault(code, {}, other))


@pytest.mark.parametrize(("found", "is_shown"), [(1.0000000001, False), (1.5, True)])
def test_found_and_expected_are_shown_only_if_they_look_different(found, is_shown):
    verdict = Verdict("fail", [Fault("alibi.mismatch")], 1.0, {"found": found, "expected": 1.0})
    (cause,) = sentences.report(verdict, "bias_fn", "alibi").causes
    assert ("expected 1" in cause.message) == is_shown
