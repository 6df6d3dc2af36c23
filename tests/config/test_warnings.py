"""What runs and is odd is warned of, and nothing else."""

import pytest

from config_sources import LLAMA, LLAMA3, LONG, SLIDING, YARN, llama, with_rope
from posenc import config
from posenc.config.values import short

WARNINGS = {
    "theta_missing": (LLAMA, "rope_theta is missing; 10000 is used."),
    "nested_truncate": (llama({"full_attention": {**YARN, "truncate": False}}), "no effect"),
    "attn_factor": (with_rope(YARN, attn_factor=1.5), "not read"),
    "original_missing": (with_rope(YARN, original_max_position_embeddings=None), "8192 is used"),
    "original_is_max": (with_rope(YARN, original_max_position_embeddings=8192), "equals"),
    "original_unread": (
        llama({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096}),
        "reads 8192",
    ),
    "list_length": (with_rope(LONG, long_factor=[1.0] * 31), "32 entries"),
    "list_missing": (with_rope(LONG, long_factor=None), "missing"),
    "long_unread": ({**with_rope(LONG), "model_type": "phimoe"}, "every length"),
    "dynamic_cache": (llama({"rope_type": "dynamic", "factor": 2.0}), "cache"),
    "window_scaled": (
        {**with_rope(YARN), "layer_types": ["sliding_attention"] * 4, "sliding_window": 512},
        "never sees beyond 512",
    ),
    "unscaled": (llama(original_max_position_embeddings=4096), "8192 is above the trained length 4096"),
    "betas_swapped": (with_rope(YARN, beta_fast=1.0, beta_slow=32.0), "reversed"),
    "betas_equal": (with_rope(YARN, beta_fast=4, beta_slow=4), "above"),
    "turns_equal": (with_rope(LLAMA3, low_freq_factor=4.0), "above"),
    "turns_swapped": (with_rope(LLAMA3, low_freq_factor=8.0), "above"),
    "unknown_type": (llama({"rope_type": "magic"}), "unknown"),
    "two_spellings": (llama(rope_scaling={"rope_type": "linear", "factor": 2.0}), "rope_scaling is used"),
    "factor_missing": (with_rope(YARN, factor=None), "over the trained length"),
    "factor_differs": (with_rope(YARN, factor=3.0), "factor 3 is used"),
    "share_unread": (llama(partial_rotary_factor=0.5), "the whole head rotates"),
    "sections_unread": (llama({"rope_theta": 1e4, "mrope_section": [8, 12, 12]}), "all pairs read one position"),
    "sections_misfit": (
        {**llama({"mrope_section": [8, 12, 12]}, head_dim=64), "model_type": "qwen3_vl_text"},
        "gives the axes [11, 11, 10] pairs",
    ),
    "assumed": ({"model_type": "llama"}, "4096 is used"),
    "clockwise": ({**LLAMA, "model_type": "nanochat"}, "clockwise"),
    "learned": ({**LLAMA, "model_type": "mistral_large4_text", "rope_parameters": YARN}, "learns"),
}


@pytest.mark.parametrize("code", WARNINGS)
def test_warnings(code):
    source, words = WARNINGS[code]
    kind = "full_attention" if code == "nested_truncate" else None
    found = [one for one in config.rotary(source, kind).warnings if one.code == code]
    assert len(found) >= 1
    assert words in found[0].message
    assert found[0].key
    assert "\n" not in found[0].message
    good = llama(LONG if "list" in code else LLAMA3 if "turns" in code else YARN)
    assert code not in [one.code for one in config.rotary(good).warnings]


def test_a_sound_file_has_no_warnings():
    for rope in (None, YARN, LONG):
        assert config.rotary(llama(rope)).warnings == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [("lama", "got 'lama', near llama"), ("zzz", r"got 'zzz'\. Pass pairing"), (None, r"got None\. Pass pairing")],
)
def test_an_unknown_type_is_refused_with_those_of_a_similar_name(name, said):
    with pytest.raises(ValueError, match=said) as caught:
        config.rotary({"model_type": name, "num_hidden_layers": 2})
    assert "posenc.config.MODEL_TYPES" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_sliding_layer_that_is_scaled_is_odd_whether_or_not_its_window_is_told():
    own = {
        "sliding_attention": YARN | {"rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 64, "rope_parameters": own}
    for window in ({}, {"sliding_window": 512}):
        found = config.rotary(gemma | window, "sliding_attention")
        assert "window_scaled" in [one.code for one in found.warnings]
        assert "window_scaled" not in [one.code for one in config.rotary(gemma | window, "full_attention").warnings]


def test_the_old_spelling_is_taken_where_both_stand():
    found = config.rotary(WARNINGS["two_spellings"][0])
    assert (found.rope_type, found.factor, found.spelling) == ("linear", 2.0, "rope_scaling")


def test_what_a_sliding_layer_does_not_say():
    sliding = {**with_rope(YARN), "layer_types": SLIDING, "sliding_window": 512}
    assert "window_scaled" not in [one.code for one in config.rotary(sliding).warnings]  # of full attention
    assert config.rotary(sliding).window is None
    assert config.rotary(sliding, "sliding_attention").window == 512


def test_short():
    assert short("a\nb") == "'a\\nb'"
    assert short(10**5000) == "an integer of 16610 bits"
    assert short([1] * 10**6) == "list of 1000000 entries"
    assert len(short("x" * 10**6)) < 60
