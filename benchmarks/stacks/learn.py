"""Compare the answers of a stack with its rules, and return where they depart: the tables of posenc.parity.measured."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import probes

from posenc import config
from posenc.config import kinds, reads
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.parity.compare import mean
from posenc.parity.measured import IGNORED, MEANT, SAME, UNKNOWN, Outcome
from posenc.parity.read import Reading, read
from posenc.parity.rules import Rules

Answer = dict[str, Any]
Outcomes = dict[str, Any]
TEXT = 2048  # positions, which the probes stay below
NOT_BUILT = ("runner:", "TooLong", "MemoryError", "not compiled with CUDA", "No Metal back-end", "KeyError: 'probe'")
REFUSALS = (
    "required positional argument",
    "nsupported",
    "nknown RoPE",
    "not supported",
    "only support",
    "per-layer-type",
)
ORDER = ("plain", "bare", "theta", "share", "published")


class Case:
    """One probe of one model type: the configuration with its meaning, and what the stack's code did.

    Raises ValueError or TypeError if posenc finds no meaning.
    """

    def __init__(self, probe: str, fields: Mapping[str, Any], answer: Answer) -> None:
        self.probe, self.answer = probe, answer
        self.source = Checked(config.read(fields))
        model = open_model(self.source)
        self.name, self.fields = model.name, model.fields
        self.meanings = {one.rotary.layer_type: one.rotary for one in mean(self.source)}
        self.layers = list(self._layers(kinds.layers(model, unknown=24)))

    def _layers(self, order: list[str]) -> Iterator[tuple[str, Answer]]:
        """Return the kind of each layer with attention, as the meanings name it, and what it did."""
        for i, number in enumerate(self.answer.get("layers", [])):
            layer, kind = self.answer["tables"][number], order[min(i, len(order) - 1)]
            if layer.get("attention"):
                alike = kind in self.meanings or not kinds.rotates(kind)
                yield (kind if alike else next(iter(self.meanings))), layer

    def read(self, rules: Rules, outcomes: Outcomes) -> dict[str, Reading]:
        """Return how the stack reads each kind of layer by its rules and some outcomes."""
        table = {"date": "", "models": {self.name: outcomes}}
        main = next(iter(self.meanings))
        return {
            kind: read(self.source, {}, rules, one, main=kind == main, length=None, found=table)
            for kind, one in self.meanings.items()
        }


def judge(case: Case, rules: Rules, outcomes: Outcomes) -> dict[str, str]:
    """Return by kind of layer in what the stack differs from what is predicted, "" where it does not."""
    readings = case.read(rules, outcomes)
    raises = "error" in {one.state for one in readings.values()}
    if "error" in case.answer or raises:
        agree = "error" in case.answer and raises
        seen = [kind for kind in readings if not case.layers or kind in dict(case.layers)]
        return dict.fromkeys(seen, "" if agree else "only one of them raises")
    wrong: dict[str, str] = {}
    for kind, layer in case.layers:
        if kind in readings:
            wrong[kind] = wrong.get(kind) or difference(layer, readings[kind])
        else:
            wrong[kind] = "rotates" if layer["rotates"] else ""
    return wrong


def difference(layer: Answer, reading: Reading) -> str:
    """Return in what a layer differs from a reading, "" if in nothing."""
    if reading.rotation is None:
        return reading.state
    if not layer.get("rotates") or "inv_freq" not in layer:
        return "no rotation"
    mine = np.trim_zeros(np.asarray(reading.rotation.inv_freq(TEXT)), "b")
    theirs = np.trim_zeros(np.asarray(layer["inv_freq"]), "b")
    if len(mine) != len(theirs):
        return f"{2 * len(theirs)} dimensions instead of {2 * len(mine)}"
    if not np.all(np.abs(theirs - mine) <= 1e-3 * np.abs(mine) + 3e-7):
        return "frequencies"
    for what, found, expected in (
        ("gain", layer.get("gain"), reading.rotation.gains(TEXT)),
        ("score", layer.get("score"), reading.score),
    ):
        if found is not None and expected is not None and abs(found - expected) > 1e-3 * abs(expected):
            return f"{what} {found:.4g} instead of {expected:.4g}"
    return ""


def learn(case: Case, rules: Rules, mine: Outcomes) -> tuple[str, Outcomes]:
    """Return a verdict (as the rules, learned, raised, unknown), and the outcomes with those of one probe."""
    if case.probe == "temperature.new":
        return _learn_temperature(case, mine)
    ids = identify(case)
    if "error" in case.answer:
        if not is_engines(case.answer):
            return "unknown", mine | {ids[-1]: UNKNOWN}
        if UNKNOWN in {one.state for one in case.read(rules, mine).values()}:
            return "unknown", mine
        agree = not any(judge(case, rules, mine).values())
        error = said(case.answer) if refuses(case) else UNKNOWN  # the probe may lack a key that files have
        acted = mine.get(ids[-1], error) != error  # in an earlier probe
        return "raised", mine if agree else mine | {ids[-1]: UNKNOWN if acted else error}
    wrong = judge(case, rules, mine)
    if not any(wrong.values()):
        return "as the rules", mine
    verdict = "learned"
    for kind in [kind for kind, why in wrong.items() if why]:
        if wrong[kind] == UNKNOWN:  # as an earlier probe says
            verdict = "unknown"
            continue
        for option in _options(case, ids, kind):
            trial = mine | {one: _put(mine.get(one), kind, value, list(wrong)) for one, value in option.items()}
            if not judge(case, rules, trial)[kind]:
                mine = trial
                break
        else:
            verdict, mine = "unknown", mine | {ids[-1]: _put(mine.get(ids[-1]), kind, UNKNOWN, list(wrong))}
    return verdict, mine | {one: _same(mine[one], list(wrong)) for one in ids if one in mine}


def _learn_temperature(case: Case, mine: Outcomes) -> tuple[str, Outcomes]:
    """Learn whether the query has the factor 1 + beta ln(1 + floor(position / original))."""
    if "error" in case.answer:
        return "raised", mine
    found = [layer["temperature"] for _, layer in case.layers]
    if not any(found):
        return "learned", mine | {case.probe: IGNORED}
    for factors in found:
        for at, factor in (factors or dict.fromkeys(probes.BEYOND, 1.0)).items():
            expected = 1 + probes.BETA * math.log(1 + int(at) // probes.TRAINED)
            if abs(factor - expected) > 1e-3:
                return "unknown", mine | {case.probe: UNKNOWN}
    return "as the rules", mine


def identify(case: Case) -> list[str]:
    """Return the outcomes that a probe may teach, as `measured.probes` names them; the last one stands for the rest."""
    name, _, spelling = case.probe.rpartition(".")
    fields, given = case.fields, case.fields.get("rope_parameters") or {}
    inner = any(key in given for key in reads.SHARES)
    share = "share.none"
    if inner or any(fields.get(key) is not None for key in reads.SHARES):
        share = "share.new" if inner else "share.old"
    if name == "plain":
        return [share, f"theta.{spelling}", f"default.{spelling}"]
    if case.probe == "bare.old":
        return ["share.none"]
    if case.probe == "published":
        if any(isinstance(one, Mapping) for one in given.values()):
            return ["kinds.new"]
        own = given or fields.get("rope_scaling") or {}
        word = str(own.get("rope_type") or own.get("type") or "default")
        return [share, f"{SAME.get(word, word)}.{'new' if given else 'old'}"]
    for several, keys in (
        ("yarn.mscales", ("mscale", "mscale_all_dim")),
        ("yarn.all_dim", ("mscale", "mscale_all_dim")),
        ("yarn.betas", ("beta_fast", "beta_slow")),
    ):
        if name == several:
            return [f"yarn.{key}.{spelling}" for key in keys]
    return [case.probe]


def _options(case: Case, ids: list[str], kind: str) -> Iterator[dict[str, Outcome]]:
    """Return outcomes that may explain what a kind of layer does, the likely ones first."""
    layer = next(layer for one, layer in case.layers if one == kind)
    width = layer["rotary_dim"] / layer["head_dim"] if layer.get("rotary_dim") and layer.get("head_dim") else math.nan
    values: dict[str, list[Outcome]] = {}
    for one in ids:
        feature, _, place = one.partition(".")
        values[one] = [] if place == "none" or case.probe == "published" else [MEANT]
        if feature in ("theta", "share"):
            number = width if feature == "share" else _base(layer)
            values[one] += [number] if math.isfinite(number) else []
        elif feature != "default" and case.probe != "published":
            values[one].insert(0, IGNORED)
    yield from ({one: value} for one, possible in values.items() for value in possible)
    last = {one: possible[-1] for one, possible in values.items() if possible and not one.startswith("default")}
    if len(last) > 1:
        yield last


def _base(layer: Answer) -> float:
    """Return the base of geometric frequencies, with the fewest digits that describe it; nan if there is none."""
    inv_freq = layer.get("inv_freq", [])
    k = max(1, len(inv_freq) // 2)
    if len(inv_freq) < 2 or inv_freq[k] <= 0:
        return math.nan
    base = inv_freq[k] ** (-len(inv_freq) / k)
    rounded = (float(f"{base:.{digits}g}") for digits in range(1, 6))
    return next((one for one in rounded if abs(one - base) < 3e-4 * base), math.nan)


def _put(old: Any, kind: str, value: Outcome, every: list[str]) -> Outcomes:
    """Return an outcome by kind of layer, with another value for one kind."""
    now = dict(old) if isinstance(old, dict) else {} if old is None else dict.fromkeys(every, old)
    return now | {kind: value}


def _same(outcome: Any, every: list[str]) -> Any:
    """Return one outcome for all kinds of layers if they do not differ."""
    if isinstance(outcome, dict) and set(outcome) >= set(every) and len(set(outcome.values())) == 1:
        return next(iter(outcome.values()))
    return outcome


def is_engines(answer: Answer) -> bool:
    """Return whether the stack's own code raised an error, not the program that asked it."""
    file = str(answer.get("file"))
    return bool(file) and "/ask/" not in file and not any(word in answer["error"] for word in NOT_BUILT)


def refuses(case: Case) -> bool:
    """Return whether an error is about the probed type or a required field, not about a key that the probe lacks."""
    error = said(case.answer)
    return f"'{case.probe.partition('.')[0]}'" in error or any(word in error for word in REFUSALS)


def said(answer: Answer) -> str:
    """Return the first line of an error."""
    return str(answer["error"]).split("\n")[0][:120]


def unbuilt(answers: Mapping[str, Answer]) -> str:
    """Return why a type cannot be built, from its answers by probe; "" if it can."""
    errors = [answers[probe] for probe in ("published", "plain.old", "plain.new") if probe in answers]
    if errors and all("error" in one for one in errors):
        return said(errors[0])
    return f"{min(one['seconds'] for one in errors):.0f} s for a probe" if len(answers) <= len(errors) else ""


def tables(
    configs: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Answer], rules: Rules
) -> tuple[Outcomes, dict[str, str], dict[str, str]]:
    """Return outcomes by model type, why types could not be built, and a verdict for each probe.

    Args:
        configs: The configuration of each probe, by "type/probe".
        answers: The answers by the same keys.
        rules: The rules of the stack.
    """
    by: dict[str, dict[str, Answer]] = {}
    for key in configs:
        if key in answers:
            name, _, probe = key.partition("/")
            by.setdefault(name, {})[probe] = answers[key]
    models: Outcomes = {}
    left: dict[str, str] = {}
    verdicts: dict[str, str] = {}
    for name, found in by.items():
        target = open_model(Checked(config.read(configs[f"{name}/published"]))).name
        if target in models:
            continue
        if why := unbuilt(found):
            left.setdefault(target, why)
            continue
        given = {probe: configs[f"{name}/{probe}"] for probe in found}
        models[target], own = one_type(given, found, rules)
        verdicts |= {f"{target}/{probe}": verdict for probe, verdict in own.items()}
    return models, {name: why for name, why in left.items() if name not in models}, verdicts


def one_type(
    given: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Answer], rules: Rules
) -> tuple[Outcomes, dict[str, str]]:
    """Return the outcomes of one model type, and a verdict for each probe."""
    verdicts, cases, mine = dict[str, str](), dict[str, Case](), Outcomes()
    for probe in sorted(given, key=_rank):
        try:
            cases[probe] = Case(probe, given[probe], answers[probe])
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            verdicts[probe] = f"without meaning: {type(error).__name__}: {error}"[:160]
    for spelling in ("old", "new"):
        asked = [probe for probe in answers if probe.endswith(f".{spelling}")]
        errors = {said(answers[probe]) if "error" in answers[probe] else "" for probe in asked}
        if len(errors) == 1 and (error := errors.pop()):
            mine[f"{spelling}.only"] = error
            verdicts |= dict.fromkeys(asked, "raised")
            cases = {probe: case for probe, case in cases.items() if probe not in asked}
    for probe in ("plain.old", "theta.none"):  # these act in the others
        if probe in cases:
            verdicts[probe], mine = learn(cases.pop(probe), rules, mine)
    if _ignores_new(cases, rules, mine):
        mine["new"] = IGNORED
    for probe, case in cases.items():
        verdicts[probe], mine = learn(case, rules, mine)
    return pardoned(cases.get("published"), rules, mine), verdicts


def pardoned(published: Case | None, rules: Rules, mine: Outcomes) -> Outcomes:
    """Drop outcomes that the published file contradicts by doing what the rules say: their probes lack other keys."""

    def fits(outcomes: Outcomes) -> bool:
        return published is not None and not any(judge(published, rules, outcomes).values())

    if published is None or "error" in published.answer or fits(mine):
        return mine
    for doubts in ([one for one, outcome in mine.items() if outcome == UNKNOWN], list(mine)):
        kept = {one: outcome for one, outcome in mine.items() if one not in doubts}
        if fits(kept):
            return kept | {one: mine[one] for one in doubts if fits(kept | {one: mine[one]})}
    return mine


def _ignores_new(cases: Mapping[str, Case], rules: Rules, mine: Outcomes) -> bool:
    """Return whether all probes in rope_parameters act as if it was not there."""
    new = [case for probe, case in cases.items() if probe.endswith(".new") and probe != "kinds.new"]
    if not new or any("error" in case.answer for case in new):
        return False
    asked = (case for case in new if case.probe != "temperature.new")
    return not any(any(judge(case, rules, mine | {"new": IGNORED}).values()) for case in asked)


def _rank(probe: str) -> tuple[int, int, str]:
    """Sort the probes: those first whose outcomes act in others."""
    found = next((i for i, start in enumerate(ORDER) if probe.startswith(start)), len(ORDER))
    return found, probe.count("."), probe
