"""Every code that a check can give has a rule, and every rule says something.

Codes are read from the source, without running a check: whole ones as they stand, those with gaps from a table here.
"""

import ast
import itertools
import re
from pathlib import Path

import pytest

from posenc import laws, verify
from posenc.verify import codes

SOURCE = Path(verify.__file__).parent
CORPUS = Path(__file__).parent / "corpus"
FAMILIES = (
    "rope", "xpos", "mrope", "rope2d", "alibi", "t5", "swin", "deberta", "relative_bias", "sinusoidal", "sinusoidal2d",
    "relative_sinusoid", "learned", "positions", "attention", "laws", "subject",
)  # fmt: skip
NOT_CODES = {"alibi.bidirectional"}  # the beginning of some
ADDED = ("sinusoidal", "learned")
HALVES = ("bf16", "fp16")
SCALINGS = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "ntk_alpha")
GAINED = ("yarn", "longrope")  # have a gain of their own; in others only one that nobody asked for can be told
GAINS = (
    "attention_factor", "gain_squared", "mscale_of_mscale", "gain_lost", "gain_inverted", "gain_root", "gain_is_factor",
)  # fmt: skip


def of(pattern, *words):
    """Return a pattern with each word in the place of its star."""
    return [pattern.replace("*", word) for word in words]


def product(pattern, *lists):
    """Return a pattern with each combination in the place of its stars."""
    return [pattern.replace("*", "{}").format(*words) for words in itertools.product(*lists)]


EXPANDED = {
    # rotary
    "rope.{asked.scaling}.{name}": [
        *product("rope.*.*", GAINED, GAINS),
        *product("rope.*.*", [s for s in SCALINGS if s not in GAINED], ("attention_factor", "gain_is_factor")),
        *of("rope.*.gain", *(s for s in SCALINGS if s not in ("yarn", "default"))),
    ],
    "rope.{name}": ["rope.gain"],
    "mrope.precision.positions_{name}": of("mrope.precision.positions_*", *HALVES),
    "rope.{asked.scaling}.attention_factor": of("rope.*.attention_factor", *GAINED),
    "rope.{asked.scaling}.by_tokens": of("rope.*.by_tokens", "dynamic", "longrope"),
    "rope.{kind}.mismatch": of("rope.*.mismatch", *SCALINGS),
    "rope.{bench.asked.scaling}.by_offset": of("rope.*.by_offset", "dynamic", "longrope"),
    "xpos.dtype.{name}_float32": of("xpos.dtype.*_float32", "keys", "queries"),
    "{self.family}.bias.state_kept": of("*.bias.state_kept", "t5", "relative_bias"),
    "rope.{kind}.state_kept": of("rope.*.state_kept", "dynamic", "longrope"),
    "rope.{asked.scaling}.as_linear": of("rope.*.as_linear", *SCALINGS[1:]),
    # in Llama 3's scaling as_dynamic goes before, and by alpha it is right
    "rope.{asked.scaling}.as_ntk": of("rope.*.as_ntk", "linear", "yarn", "longrope", "proportional"),
    "rope.{asked.scaling}.factor_inverted": of("rope.*.factor_inverted", *SCALINGS),
    "rope.{asked.scaling}.factor_twice": of("rope.*.factor_twice", *SCALINGS),
    "rope.precision.table_{name}": of("rope.precision.table_*", *HALVES),
    "rope.precision.positions_{name}": of("rope.precision.positions_*", *HALVES),
    "rope.precision.frequencies_{name}": of("rope.precision.frequencies_*", *HALVES),
    "rope.precision.angle_{name}": of("rope.precision.angle_*", *HALVES),
    "rope.precision.{what}_{name}": product("rope.precision.*_*", ("positions", "frequencies", "product"), HALVES),
    "xpos.scale_base.{'too_small' if other < base else 'too_large'}": of("xpos.scale_base.*", "too_small", "too_large"),
    "{family}.frequency.exponent_halved": of("*.frequency.exponent_halved", "mrope", "rope2d"),
    "{family}.frequency.exponent_doubled": of("*.frequency.exponent_doubled", "mrope", "rope2d"),
    "{family}.frequency.inverted": of("*.frequency.inverted", "mrope", "rope2d"),
    "{family}.frequency.mismatch": of("*.frequency.mismatch", "mrope", "rope2d"),
    "{family}.config.theta_not_read": of("*.config.theta_not_read", "mrope", "rope2d"),
    # biases
    "{family}.bucket.not_by_distance": of("*.bucket.not_by_distance", "t5", "deberta"),
    "{family}.bucket.not_integer": of("*.bucket.not_integer", "t5", "deberta"),
    "{self.family}.bias.not_by_distance": of("*.bias.not_by_distance", "t5", "relative_bias"),
    "{self.family}.mismatch": of("*.mismatch", "t5", "relative_bias"),
    "{self.family}.kv_cache.query_from_zero": of("*.kv_cache.query_from_zero", "t5", "relative_bias"),
    "{self.family}.decode.bias_dropped": of("*.decode.bias_dropped", "t5", "relative_bias"),
    # what is added to tokens
    "{asked.family}.{code}": of("relative_sinusoid.*", "absolute_used", "off_by_one"),
    "{asked.family}.grid_shape_square": ["sinusoidal2d.grid_shape_square"],
    "{asked.family}.mismatch": of("*.mismatch", "sinusoidal", "sinusoidal2d", "relative_sinusoid"),
    "{family}.{code}": product("*.*", ADDED, ("input.lost", "input.scaled", "random", "dropout_in_eval")),
    "{family}.input.changed": of("*.input.changed", *ADDED),
    "{family}.grad.severed": of("*.grad.severed", *ADDED),
    "{family}.state_kept": of("*.state_kept", *ADDED),
    "{family}.trainable": ["sinusoidal.trainable"],
    "{F}.{name}": of("learned.*", "start", "offset_missing", "offset_hardwired", "padding_idx_as_offset"),
    "{F}.{'added_twice' if abs(gain - 2) < 0.001 else 'scaled'}": of("learned.*", "added_twice", "scaled"),
    **{f"{{F}}.{name}": [f"learned.{name}"] for name in (
        "axis.batch", "cells_collide", "frozen", "not_used", "padding_row_zeroed", "state_kept", "table_too_short",
    )},
    "precision.{name}": product("sinusoidal.precision.*_*", ("frequencies", "positions", "product", "table"), HALVES),
    "precision.{told[0]}": [],  # as above
    "precision.{coarse[0]}": [],
    "{'sinusoidal' if shared else family}.{code}": [  # those without a dot; the others are read where they stand
        *of("sinusoidal.*", "temperature_hardwired", "added_twice", "scaled", "not_used", "sign", "start"),
        *product("*.constant_added", ("sinusoidal", "sinusoidal2d", "relative_sinusoid")),
        *of("sinusoidal2d.*", "start", "axes_summed", "axes_swapped", "axis_repeated", "grid_flattened_wrong"),
        *of("sinusoidal2d.normalise_*", "divisor", "misplaced_half", "missing", "swapped", "unasked"),
        "sinusoidal2d.scale_missing",
        *of("relative_sinusoid.*", "direction", "side_reversed", "sign_lost", "slice_of_reversed_table"),
        *of("relative_sinusoid.*_clamped", "future", "past"),
    ],
    # laws
    "laws.{name.replace(' ', '_')}": [f"laws.{name.replace(' ', '_')}" for name in (*laws.LAWS, "ways")],
}  # fmt: skip
NO_CODES = {  # names of modules and keys, and ends of sentences
    "posenc.verify.{FAMILIES[convention]}", "{module}.{name}", "{path}.{key}", "{key}.{name}", "{by}.", "{error.name}.",
    "{stack}.{found.key}", "{target.module}.", "{trace.tb_frame.f_globals.get('__name__', '')}.", "{lanes[:8]}...",
}  # fmt: skip


def parsed():
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(SOURCE.rglob("*.py"))]


def whole():
    """Return codes that stand in the source as they are, and those of sinusoids, which stand without the family."""
    named = re.compile(rf"(?:{'|'.join(FAMILIES)})(?:\.[a-z0-9_]+)+")
    shared = re.compile(r"(?:frequency|layout|axis|slice|width|position|table|precision|input|grad)\.[a-z0-9_]+")
    distance = re.compile(r"distance\.[a-z_]+")
    found = {}
    for path, tree in parsed():
        parts = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
        for node in ast.walk(tree):
            if id(node) in parts or not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            text, here = node.value, path.relative_to(SOURCE)
            if named.fullmatch(text) and text not in NOT_CODES:
                found.setdefault(text, here)
            elif here.parts[0] == "additive":
                family = "learned" if here.name == "learned.py" else "sinusoidal"
                if shared.fullmatch(text):
                    found.setdefault(f"{family}.{text}", here)
                elif distance.fullmatch(text):
                    found.setdefault(f"relative_sinusoid.{text}", here)
    return found


def patterns():
    """Return f-strings that can be codes: dots and small letters around what is filled in."""
    found = {}
    for path, tree in parsed():
        specs = {id(n.format_spec) for n in ast.walk(tree) if isinstance(n, ast.FormattedValue) and n.format_spec}
        for node in ast.walk(tree):
            if not isinstance(node, ast.JoinedStr) or id(node) in specs:
                continue
            parts = [part.value if isinstance(part, ast.Constant) else part for part in node.values]
            fixed = "".join(part for part in parts if isinstance(part, str))
            plain = all(isinstance(part, str) or not (part.format_spec or part.conversion > 0) for part in parts)
            if plain and "." in fixed and re.fullmatch(r"[a-z0-9_.]*", fixed):
                text = "".join(p if isinstance(p, str) else f"{{{ast.unparse(p.value)}}}" for p in parts)
                found.setdefault(text, path.relative_to(SOURCE))
    return found


def test_every_code_in_the_source_has_a_rule():
    found = whole()
    assert len(found) > 250  # else they are no longer found
    assert {code: str(path) for code, path in found.items() if code not in codes.rules()} == {}


def test_every_code_with_a_gap_is_in_the_table_here():
    found = {text: str(path) for text, path in patterns().items() if text not in NO_CODES}
    assert {text: path for text, path in found.items() if text not in EXPANDED} == {}
    assert sorted(set(EXPANDED) - set(found)) == []


@pytest.mark.parametrize("pattern", EXPANDED)
def test_every_code_with_a_gap_has_its_rules(pattern):
    assert sorted(set(EXPANDED[pattern]) - set(codes.rules())) == []


def test_every_rule_of_rotations_can_be_given():
    """A rule that no check gives is read by nobody; what the corpus expects is to be given one day."""
    given = {*whole(), *itertools.chain(*EXPANDED.values()), *expected().values()}
    mine = {code for code, rule in codes.rules().items() if rule.family in ("rope", "xpos", "mrope", "rope2d")}
    assert sorted(mine - given) == []


@pytest.mark.parametrize("code", codes.rules())
def test_every_rule_says_what_it_is(code):
    rule = codes.rules()[code]
    for text in (rule.title, rule.why, rule.fix):
        assert text.strip() == text
        assert len(text) > 5
    assert not rule.title.endswith(".")
    assert rule.why.endswith((".", ")", "?"))
    assert all(re.fullmatch(r"https://[^\s/]+\.[a-z]+/\S+[^\s.,;)]", link) for link in rule.reports)
    assert len(set(rule.reports)) == len(rule.reports)


def expected():
    """Return what each file of the corpus expects."""
    found = {}
    for path in sorted(CORPUS.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["EXPECT"]:
                found[path.stem] = ast.literal_eval(node.value)
    return found


def test_every_expected_code_has_a_rule():
    found = expected()
    assert len(found) > 100
    known = {*codes.rules(), "pass", "equivalent"}
    assert {name: code for name, code in found.items() if code not in known} == {}


def test_rules_of_trained_grids_have_a_report_or_say_that_none_is_known():
    grids = [rule for code, rule in codes.rules().items() if code.startswith("learned.grid.")]
    assert len(grids) == 5
    for rule in grids:
        assert bool(rule.reports) != ("No public report of it is known." in rule.why)
