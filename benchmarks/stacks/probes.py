"""Probes: small changes of a model type's configuration, each of which shows whether one key acts.

"old" spells the parameters as files of transformers 4 do (rope_scaling, the base at the top), "new" as those of
transformers 5 do (rope_parameters). `posenc.parity.measured` says which probe answers for which keys of a file.
"""

from collections.abc import Iterator
from typing import Any

from small import Config, text_key, text_of

from posenc.config import reads

BASE, LOCAL_BASE, SHARE, TRAINED, BETA = 54321.0, 4321.0, 0.5, 4096, 0.1
LONGER = {"max_position_embeddings": 4 * TRAINED}
KEYS = ("rope_theta", "rope_scaling", "rope_parameters", *reads.SHARES, "rotary_emb_base", reads.LENGTHS[1])
AT = [1, 2, 4, 8, 16, 64, 256, 1024, 2047]
BEYOND = [TRAINED, 2 * TRAINED - 1, 4 * TRAINED - 1]  # where the query temperature acts
ORIGINAL = {reads.LENGTHS[1]: TRAINED}
YARN = {"factor": 4.0, **ORIGINAL}
TYPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "yarn": YARN,
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "longrope": {"factor": 4.0, **ORIGINAL},
    "proportional": {"partial_rotary_factor": SHARE},
}
YARNS: dict[str, dict[str, Any]] = {
    "attention_factor": {"attention_factor": 1.5},
    "mscale": {"mscale": 0.7},
    "mscales": {"mscale": 1.0, "mscale_all_dim": 0.5},
    "all_dim": {"mscale_all_dim": 1.0, "mscale": 1.0},
    "truncate": {"truncate": False},
    "betas": {"beta_fast": 16, "beta_slow": 2},
}


def jobs(configs: dict[str, Config]) -> Iterator[dict[str, Any]]:
    """Return a job for each probe of each type: its key is "type/probe"; the first of a type shows whether it runs.

    A wrapper's jobs name its text type: they are left out where that type ran by itself.
    """
    for name, whole in configs.items():
        text = text_of(whole)
        for probe, changed in variants(text).items():
            at = [*AT, *BEYOND] if probe == "temperature.new" else AT
            job = {"key": f"{name}/{probe}", "config": _put(whole, changed), "at": at}
            yield job if text is whole else job | {"unless": text["model_type"]}


def _put(whole: Config, text: Config) -> Config:
    """Return a configuration with other fields of the text model."""
    part = text_key(whole)
    return {**whole, part: _put(whole[part], text)} if part else text


def variants(text: Config) -> dict[str, Config]:
    """Return the changed fields of a text model by probe."""
    rest = {k: v for k, v in text.items() if k not in KEYS}
    flat = _parameters(text)
    theta = text.get("rope_theta") or flat.get("rope_theta") or text.get("rotary_emb_base") or 10000.0
    stated = [key for key in ("rotary_pct", "partial_rotary_factor") if text.get(key) is not None]
    share = {key: text[key] for key in stated[:1]}
    if not share and flat.get("partial_rotary_factor") is not None:
        share = {"partial_rotary_factor": flat["partial_rotary_factor"]}
    base, inner = "rotary_emb_base" if "rotary_emb_base" in text else "rope_theta", {}
    if share:
        inner = {"partial_rotary_factor": next(iter(share.values()))}
    beta = {key: flat[key] for key in ("llama_4_scaling_beta",) if key in flat}  # a type with it raises without it

    def old(scaling: Config | None, **more: Any) -> Config:
        return {**rest, **share, base: theta, "rope_scaling": scaling and {**beta, **scaling}, **more}

    def new(parameters: Config, **more: Any) -> Config:
        return {**rest, "rope_parameters": {"rope_theta": theta, **inner, **beta, **parameters}, **more}

    out = {
        "published": text,
        "plain.old": old(None),
        "plain.new": new({"rope_type": "default"}),
        "theta.old": old(None) | {base: BASE},
        "theta.new": new({"rope_type": "default", "rope_theta": BASE}),
        "theta.none": {**rest, **share, "rope_scaling": None},
        "share.old": old(None) | {next(iter(share), "partial_rotary_factor"): SHARE},
        "share.new": new({"rope_type": "default", "partial_rotary_factor": SHARE}),
    }
    if share:
        out["bare.old"] = {**rest, base: theta, "rope_scaling": None}
    lists = _lists({**text, **share})
    for name, parameters in _scalings(lists).items():
        word, _, place = name.partition(".")
        longer = LONGER if reads.LENGTHS[1] in parameters else {}
        top = ORIGINAL if place == "top" else {}
        given = {k: v for k, v in parameters.items() if k not in top}
        out[f"{name}.old"] = old({"rope_type": word, "type": word, **given}, **top, **longer)
        out[f"{name}.new"] = new({"rope_type": word, **given}, **top, **longer)
    out["yarn.none.old"] = old({"rope_type": "yarn", "type": "yarn", "factor": 4.0})
    out["temperature.new"] = new({"rope_type": "yarn", **YARN, "llama_4_scaling_beta": BETA}, **LONGER)
    if {"full_attention", "sliding_attention"} <= set(text.get("layer_types") or []):
        both = {
            "full_attention": {"rope_type": "yarn", "rope_theta": BASE, **inner, **YARN},
            "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_BASE, **inner},
        }
        out["kinds.new"] = {**rest, "rope_parameters": both, **LONGER}
    return out


def _scalings(lists: Config) -> dict[str, Config]:
    """Return the parameters of each scaling by probe, also with the original length to be put at the top."""
    out = {name: {**given, **(lists if name == "longrope" else {})} for name, given in TYPES.items()}
    out |= {f"{name}.top": given for name, given in out.items() if reads.LENGTHS[1] in given}
    return out | {f"yarn.{name}": {**YARN, **more} for name, more in YARNS.items()}


def _parameters(text: Config) -> Config:
    """Return the stated parameters, those of full attention where kinds differ."""
    found = text.get("rope_parameters") or {}
    return found.get("full_attention", found) or {}


def _lists(text: Config) -> Config:
    """Return LongRoPE's lists, one number for each pair."""
    head = text.get("qk_rope_head_dim") or text.get("head_dim") or text.get("kv_channels")
    if not head:
        width = text.get("hidden_size") or text.get("n_embd") or text.get("d_model") or 256
        head = width // (text.get("num_attention_heads") or text.get("n_head") or 2)
    n = int(head * (text.get("partial_rotary_factor") or text.get("rotary_pct") or 1.0)) // 2
    return {"short_factor": [1.0 + 0.02 * k for k in range(n)], "long_factor": [1.0 + 0.3 * k for k in range(n)]}
