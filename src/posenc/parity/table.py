"""The table of differences: what each stack reads, in words that are built from the rules."""

from collections.abc import Callable, Sequence

from posenc.parity.rules import LATENT, Lookup, Rules, TypeRule

_PLACES = {
    "own": "parameters",
    "around": "next to the kinds of layers",
    "top": "top level",
    "parameters": "rope_parameters",
    "ratio": "max_position_embeddings over the original",
    "flags": "flags",
}
_WORDS = {
    "max_len": "max_position_embeddings",
    "max_len/original": "max_position_embeddings over the original",
    "class": "the model type's own",
    "unknown": "unknown",
}
_GAINS = {
    "attention_factor": "attention_factor",
    "ratio_if_truthy": "g(s, mscale) / g(s, mscale_all_dim) if both are truthy",
    "ratio_if_given": "g(s, mscale) / g(s, mscale_all_dim) if both are given",
    "ratio": "g(s, mscale) / g(s, mscale_all_dim)",
    "all_dim_ratio": "g(s, 1) / g(s, mscale_all_dim)",
    "mscale": "g(s, 1)",
    "list_mscale": "short_mscale, long_mscale",
    "longrope_factor": "from factor, else from X / o",
    "longrope_stated": "from factor (X / o with a top-level original)",
    "longrope_ratio": "from X / o",
    "one": "1",
}
_TYPES = ("linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "proportional")
_LISTS = {
    "text>original": "at each call: long if the longest text of the batch is above o",
    "text>original+1": "at each call: long if any position of the batch is above o",
    "served>original": "once: long if the length served is above o",
    "long": "always the long one",
}
_LENGTHS = {"text": "of the text, at each call", "max_len": "X, once", "max_len*factor": "X s, once"}


def rows(stacks: Sequence[Rules]) -> list[tuple[str, ...]]:
    """Return the table: a row of titles, then one row for each subject with a cell for each stack.

    o is original_max_position_embeddings, X max_position_embeddings, s the factor, g(s, m) 1 + 0.1 m ln s.

    >>> from posenc.parity.loading import choose
    >>> [row for row in rows(choose("hf5,mlx-lm")) if row[0] == "truncate"]
    [('truncate', 'next to the kinds of layers; missing: True', 'not read: True')]
    """
    subjects: list[tuple[str, Callable[[Rules], str]]] = [
        ("parameters are in", _objects),
        ("the type's word", lambda rules: ", then ".join(rules.words.order) + _conflict(rules)),
        *((f"type {name}", _formula(name)) for name in _TYPES),
        ("rope_theta", lambda rules: _lookup(rules.types["default"].parameters.get("theta"))),
        *((f"original ({name})", _parameter(name, "original")) for name in ("yarn", "longrope", "llama3")),
        *((f"factor ({name})", _parameter(name, "factor")) for name in ("linear", "yarn", "longrope", "llama3")),
        *((key, _parameter("yarn", key)) for key in ("attention_factor", "attn_factor", "beta_fast", "beta_slow")),
        *((key, _parameter("yarn", key)) for key in ("truncate", "mscale", "mscale_all_dim")),
        ("gain of YaRN", lambda rules: _gain(rules.types.get("yarn"))),
        ("scores in latent attention", _scores),
        ("dynamic NTK computes its base at the length", _dynamic),
        ("LongRoPE's list", lambda rules: _of(rules.types.get("longrope"), lambda one: _LISTS[one.lists])),
        ("gain of LongRoPE", lambda rules: _gain(rules.types.get("longrope"))),
        ("kinds of layers", lambda rules: {"own": "each its own", "main": "one; others unknown"}[rules.kinds]),
        ("the longest text", _length),
        ("an override", lambda rules: f"{rules.override.join}, {rules.override.when}"),
    ]
    titles = ("", *(f"{rules.project} {rules.version}" for rules in stacks))
    return [titles, *((subject, *(cell(rules) for rules in stacks)) for subject, cell in subjects)]


def _formula(name: str) -> Callable[[Rules], str]:
    """Return the formula of a type; if a stack does not know it, its treatment of unknown types."""

    def cell(rules: Rules) -> str:
        formula = rules.types[name].formula if name in rules.types else rules.other_type
        return {"error": "refused", "plain": "plain: nothing is scaled"}.get(formula, formula)

    return cell


def _of(rule: TypeRule | None, cell: Callable[[TypeRule], str]) -> str:
    """Return a cell about a type that a stack may refuse."""
    if rule is None or rule.formula in ("error", "unknown"):
        return "refused" if rule is None or rule.formula == "error" else "unknown"
    return cell(rule)


def _parameter(name: str, key: str) -> Callable[[Rules], str]:
    return lambda rules: _of(rules.types.get(name), lambda rule: _lookup(rule.parameters.get(key)))


def _lookup(rule: Lookup | None) -> str:
    """Return in words where a parameter is looked up, and the value if it is missing."""
    if rule is None:
        return "not read"
    if rule.otherwise == "error":
        missing = rule.said or "an error"
    else:
        missing = _WORDS.get(rule.otherwise, str(rule.otherwise)) if isinstance(rule.otherwise, str) else rule.otherwise
    if not rule.at:
        return f"not read: {missing}"
    said = [", then ".join(_PLACES[place] for place in rule.at)]
    said += [f"missing{' or 0' if rule.skip == 'falsy' else ''}: {missing}"] if rule.otherwise is not None else []
    said += [f"null: {_WORDS[rule.null]}"] if rule.null is not None and rule.null != "error" else []
    said += ["without a decimal point: TypeError"] if rule.whole_fails else []
    return "; ".join(said)


def _gain(rule: TypeRule | None) -> str:
    def cell(one: TypeRule) -> str:
        return "; else ".join(_GAINS[step] for step in one.gain) + "".join(f"; times {key}" for key in one.times)

    return _of(rule, cell)


def _dynamic(rules: Rules) -> str:
    def cell(one: TypeRule) -> str:
        if one.formula != "dynamic":
            return "nothing is scaled"
        trained = "" if one.trained == "max_len" else f"; trained: {one.trained}, else X"
        return _LENGTHS[one.length] + trained

    return _of(rules.types.get("dynamic"), cell)


def _conflict(rules: Rules) -> str:
    first = f"; type first in {len(rules.words.first_by_model)} model types" if rules.words.first_by_model else ""
    return first + ("; an error where they differ" if rules.words.conflict else "")


def _objects(rules: Rules) -> str:
    return ", else ".join(rules.objects.order)


def _scores(rules: Rules) -> str:
    """Return the factor of the scores of models with latent attention."""
    rule = next((one for one in rules.scores if one.models == LATENT or "deepseek_v3" in one.models), None)
    if rule is None:
        return "1"
    if rule.unknown:
        return "unknown"
    unless = "".join(f"; not if {key} is {value}" for key, value in rule.unless.items())
    return f"g(s, {rule.weight}) squared{unless}"


def _length(rules: Rules) -> str:
    rule = rules.length
    if rule.take != "max_len":
        return {"none": "none", "unknown": "unknown"}[rule.take]
    said = "X" + (f"; X s for {', '.join(sorted(rule.times_factor))}" if rule.times_factor else "")
    return said + (f" unless {rule.unless_given} is given" if rule.unless_given else "") + f"; {_GATES[rule.gate]}"


_GATES = {"refuses": "more is refused", "none": "nothing is refused", "unknown": "unknown beyond"}
