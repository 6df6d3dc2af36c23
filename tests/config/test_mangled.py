"""Configurations that were changed at random are valid, or refused in one line."""

import copy
import math
import random
import tracemalloc

import numpy as np
import pytest

import sampling
from config_sources import LLAMA, LLAMA3, LONG, SLIDING, YARN, llama
from posenc import config, frequencies
from published_sources import HUNYUAN, PARAMS, STEP, V4

SEEDS = [
    LLAMA,
    llama(YARN),
    llama(LLAMA3),
    llama(LONG),
    llama({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    llama({"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    llama({"full_attention": YARN, "sliding_attention": {"rope_theta": 1e4}}, layer_types=SLIDING, sliding_window=64),
    {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000},
    {"model_type": "gptj", "n_embd": 256, "n_head": 4, "n_layer": 2, "rotary_dim": 32, "n_positions": 64},
    {"model_type": "deepseek_v3", "rope_scaling": {**YARN, "mscale": 1, "mscale_all_dim": 1}, "num_hidden_layers": 2},
    {"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 8},
    {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window_pattern": 6, "sliding_window": 32},
    {"model_type": "exaone4", "num_hidden_layers": 6, "sliding_window_pattern": "LLLG", "sliding_window": 32},
    {"model_type": "qwen2_vl", "text_config": llama({"type": "mrope", "mrope_section": [8, 12, 12]})},
    {**LLAMA, "model_type": "phi3", "rope_scaling": {**LONG, "rope_type": "su"}},
    {**LLAMA, "model_type": "granite_swa", "layer_rope_theta": [0, 1e4, 1e4, 1e4]},
    {**LLAMA, "model_type": "gemma4_text", "per_layer_config": {"3": {"head_dim": 32}}, "global_head_dim": 64},
    {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    {**LLAMA, "model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    {**LLAMA, "model_type": "bamba", "attn_layer_indices": [1, 3]},
    *(V4, {**V4, "model_type": "v9"}, STEP, {**STEP, "model_type": "step9"}, HUNYUAN, PARAMS),
    {**PARAMS, "sliding_window": [None, 8]},
]  # fmt: skip
NASTY = [
    *(None, True, False, 0, 1, 2, -1, 3, 7, 64, 8192, 10_000, 10_001, 2**31, 2**63, 10**18, 10**300, 10**400, 10**5000),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e-320, 1e-5, 1e12, 1.0000000000000002, 1e308, math.inf, math.nan, "", "x"),
    *("yarn", "longrope", "su", "mrope", "default", "llama", "a\nb", "\0", "é" * 300, "x" * 70_000, [], {}, [1], [[]]),
    *([1.0] * 32, [0] * 4, ["full_attention"] * 4, [None] * 10_001, {"full_attention": {}}, {"a": None}, object()),
    *({"full_attention": {"rope_theta": 5.0}}, {"rope_type": "yarn", "factor": 2}, {"": {}}, (1, 2), b"x", 1j),
]


def places(value, path=()):
    """Every place in nested values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield (*path, key)
        yield from places(inner, (*path, key))


KEYS = [key for seed in SEEDS for path in places(seed) if isinstance(key := path[-1], str)]


def mangle(source, rng):
    """Change, drop, move or add a few values anywhere."""
    out = copy.deepcopy(source)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        spots = list(places(out))
        if not spots:
            break
        *path, last = rng.choice(spots)
        inner = out
        for key in path:
            inner = inner[key]
        way = rng.random()
        if way < 0.6:
            inner[last] = copy.deepcopy(rng.choice(NASTY))
        elif way < 0.75:
            del inner[last]
        elif isinstance(inner, dict):
            inner[rng.choice(KEYS)] = inner[last] if way < 0.85 else copy.deepcopy(rng.choice(NASTY))
    return out


def outcome(source, rng):
    """Whether a configuration is valid; an error must be clean."""
    kind = rng.choice([None] * 7 + ["full_attention"] * 7 + ["sliding_attention", "x" * 500])
    pairing, seq_len = rng.choice([None, None, "half"]), rng.choice([None, 1, 5000, 10**12])
    try:
        config.layer_types(source)
    except (ValueError, TypeError) as error:
        clean(error)
    try:
        rotary = config.rotary(source, kind, pairing=pairing)
        found = frequencies.from_config(source, kind, pairing=pairing, seq_len=seq_len)
    except (ValueError, TypeError) as error:
        clean(error)
        return False
    assert found.inv_freq.shape == (rotary.rotary_dim // 2,)
    assert np.isfinite(found.inv_freq).all()
    assert (found.inv_freq >= 0).all()
    assert 0 < found.gain < math.inf
    assert 0 < found.score_factor < math.inf
    assert 2 <= rotary.rotary_dim <= rotary.head_dim <= 8192
    return True


def clean(error):
    assert type(error) in (ValueError, TypeError), repr(error)
    message = str(error)
    assert "\n" not in message
    assert 20 < len(message) < 600, message
    assert message.endswith("."), message


def test_mangled_configurations_are_valid_or_cleanly_refused():
    rng = random.Random(0)
    tries = round(10_000 * sampling.property_share)
    valid = sum(outcome(mangle(rng.choice(SEEDS), rng), rng) for _ in range(tries))
    assert 0.15 * tries < valid < 0.8 * tries


@pytest.mark.slow
def test_mangled_configurations_take_little_memory():
    rng = random.Random(1)
    sources = [mangle(rng.choice(SEEDS), rng) for _ in range(1000)]
    tracemalloc.start()
    try:
        for source in sources:
            outcome(source, rng)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_the_seeds_are_valid():
    for source in SEEDS:
        kinds = [kind for kind in config.layer_types({"num_hidden_layers": 4, **source}) if kind != "nope"]
        assert kinds
        rng = random.Random(0)
        for kind in kinds:
            if kind != "linear_attention" and source.get("model_type") != "gemma4_text":
                frequencies.from_config(source, kind, pairing="half")
        outcome(source, rng)
