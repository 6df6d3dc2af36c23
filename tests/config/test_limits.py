"""Values out of range are refused, in one line."""

import pytest

from config_sources import LLAMA, LLAMA3, LONG, YARN, llama, refused, with_rope
from posenc import frequencies

REFUSED = {
    "base 1": (llama({"rope_theta": 1.0}), ValueError, "rope_theta must be above 1"),
    "base 0": (llama({"rope_theta": 0}), ValueError, "rope_theta must be above 1"),
    "base negative": (llama({"rope_theta": -1e4}), ValueError, "rope_theta must be above 1"),
    "base large": (llama({"rope_theta": 1.1e12}), ValueError, "at most 1e+12"),
    "base true": (llama({"rope_theta": True}), TypeError, "must be a number; got True"),
    "base text": (llama({"rope_theta": "1e4"}), TypeError, "must be a number; got '1e4'"),
    "factor below 1": (with_rope(YARN, factor=0.5), ValueError, "factor must be at least 1"),
    "factor large": (with_rope(YARN, factor=10_001), ValueError, "at most 10000"),
    "factor missing": (llama({"rope_type": "linear", "rope_theta": 1e4}), ValueError, "factor is missing"),
    "gain zero": (with_rope(YARN, attention_factor=0.0), ValueError, "attention_factor must be above 0"),
    "beta zero": (with_rope(YARN, beta_slow=0), ValueError, "beta_slow must be above 0"),
    "beta negative": (with_rope(YARN, beta_fast=-1), ValueError, "beta_fast must be above 0"),
    "truncate": (with_rope(YARN, truncate=0), TypeError, "truncate must be true or false"),
    "turns missing": (with_rope(LLAMA3, low_freq_factor=None), ValueError, "low_freq_factor is missing"),
    "turns zero": (with_rope(LLAMA3, low_freq_factor=0), ValueError, "low_freq_factor must be above 0"),
    "trained float": (with_rope(YARN, original_max_position_embeddings=2048.0), TypeError, "must be an integer"),
    "trained true": (with_rope(YARN, original_max_position_embeddings=True), TypeError, "must be an integer"),
    "trained 1": (with_rope(LONG, original_max_position_embeddings=1), ValueError, "from 2 to"),
    "short list": (with_rope(LONG, short_factor=[1.0] * 31), ValueError, "short_factor must have 32 entries"),
    "long list": (with_rope(LONG, short_factor=[1.0] * 33), ValueError, "short_factor must have 32 entries"),
    "no list": (with_rope(LONG, short_factor=None), ValueError, "got 0"),
    "a zero in the list": (with_rope(LONG, short_factor=[0.0] * 32), ValueError, "at least 1e-06"),
    "a word in the list": (with_rope(LONG, long_factor=["2"] * 32), TypeError, "must be a number"),
    "no list at all": (with_rope(LONG, long_factor=2.0), TypeError, "must be a list"),
    "endless list": (with_rope(LONG, long_factor=[1.0] * 5000), ValueError, "at most 4096"),
    "head odd": (llama(head_dim=65), ValueError, "because they rotate in pairs; got 65 of 65"),
    "head wide": (llama(head_dim=8194), ValueError, "from 1 to 8192"),
    "head wide by division": (llama(hidden_size=1 << 20, num_attention_heads=1), ValueError, "at most 8192"),
    "head true": (llama(head_dim=True), TypeError, "must be an integer"),
    "no heads": (llama(num_attention_heads=0), ValueError, "num_attention_heads must be from 1"),
    "no width": ({"model_type": "blt", "num_hidden_layers": 1}, ValueError, "got neither head_dim nor both"),
    "part zero": ({**llama(), "model_type": "phi", "partial_rotary_factor": 0.0}, ValueError, "must be above 0"),
    "part above 1": ({**llama(), "model_type": "phi", "partial_rotary_factor": 1.5}, ValueError, "at most 1"),
    "part odd": ({**llama(), "model_type": "phi", "partial_rotary_factor": 0.3}, ValueError, "got 19 of 64"),
    "more than the head": ({"model_type": "gptj", "head_dim": 32, "rotary_dim": 64}, ValueError, "got 64 of 32"),
    "no object": (llama([1]), TypeError, "rope_parameters must be an object"),
    "type no string": (llama({"rope_type": 3}), TypeError, "rope_type must be a string"),
    "type unknown": (llama({"rope_type": "magic", "rope_theta": 1e4}), ValueError, "got 'magic'"),
    "model type": ({"model_type": ["llama"]}, TypeError, "model_type must be a string"),
    "max below trained": (with_rope(LONG, original_max_position_embeddings=10**5), ValueError, "over the trained"),
    "bases differ": (
        {**LLAMA, "model_type": "granite_swa", "layer_rope_theta": [1e4, 2e4], "layer_types": ["full_attention"] * 2}
        | {"num_hidden_layers": 2},
        ValueError,
        "got 2 bases",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_out_of_range(name):
    source, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        frequencies.from_config(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_list_is_needed_only_at_its_lengths():
    wrong = with_rope(LONG, long_factor=[1.0] * 31)
    assert frequencies.from_config(wrong, seq_len=1024).gain > 1
    refused(wrong, "long_factor must have 32 entries", "got 31", seq_len=1025)


def test_lengths_of_the_caller():
    refused(llama(), "seq_len must be from 1", seq_len=0)
    refused(llama(), "seq_len must be from 1", seq_len=10**400)
    refused(llama(), "seq_len must be an integer", seq_len=1.5, kind=TypeError)
    refused(llama(), "seq_len must be an integer", seq_len=True, kind=TypeError)
