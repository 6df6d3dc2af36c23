"""The parameters of a rotation that transformers 5.24 fills in for a type whose file has none."""

from typing import Any

from posenc.config.patterns import FULL, SLIDING

_MISTRAL = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}


def _plain(base: float, share: float | None = None, **more: Any) -> dict[str, Any]:
    own = {"rope_type": "default", "rope_theta": base, **more}
    return own if share is None else own | {"partial_rotary_factor": share}


def _llama3(base: float, factor: float, length: int, low: float = 1.0, high: float = 4.0) -> dict[str, Any]:
    own = {"rope_type": "llama3", "rope_theta": base, "factor": factor, "original_max_position_embeddings": length}
    return own | {"low_freq_factor": low, "high_freq_factor": high}


def _yarn(factor: float, length: int, **more: Any) -> dict[str, Any]:
    own = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    return own | {"beta_fast": 32.0, "beta_slow": 1.0, **more}


def _proportional(share: float) -> dict[str, Any]:
    return _plain(1e6, share) | {"rope_type": "proportional"}


def _kinds(full: dict[str, Any] | None, sliding: dict[str, Any]) -> dict[str, Any]:
    return {SLIDING: sliding, FULL: full}


DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("apertus", "apertus1p5_text"), _llama3(1.2e7, 8.0, 8192)),
    "beam": _kinds(None, _plain(1e4)),
    "cosmos3_edge_text": _plain(1e8),
    "cwm": _llama3(1e6, 16.0, 8192),
    "dory": _kinds(_plain(1e7), _plain(1e4)),
    "embedding_gemma2_text": _kinds(_plain(1e6), _plain(1e4)),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"), _kinds(_proportional(0.25), _plain(1e4))
    ),
    **dict.fromkeys(("gpt_oss", "openai_privacy_filter"), _yarn(32.0, 4096, truncate=False)),
    "higgs_audio_v2": _llama3(5e5, 32.0, 1024, 0.125, 0.5),
    "laguna": _kinds(_plain(5e5, 0.5), _plain(1e4, 1.0)),
    "lfm3": _kinds(_proportional(0.5), _plain(1e4)),
    "mellum": _kinds(_plain(5e5), _plain(1e4)),
    "mimo_v2_flash": _kinds(_plain(5e6, 0.334), _plain(1e4, 0.334)),
    "ministral3": _yarn(16.0, 16384, rope_theta=1e6, **_MISTRAL),
    "mistral4": _yarn(128.0, 8192, rope_theta=1e4, **_MISTRAL),
    "mistral_large4_text": _yarn(2048.0, 512, rope_theta=1e4, attention_factor=1.0),
    "moonshine_streaming": _plain(1e4, 0.8),
    "muse_spark_text": _plain(5e5),
    **dict.fromkeys(
        ("nemotron3_5_transcribe_asr_audio", "nemotron3_5_transcribe_word_timestamp"), _plain(1e4, 0.5)
    ),
    "neomme": _kinds({"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 1.0}),
    "ultrabert": _kinds(_plain(2.56e6), _plain(1e4)),
    "zaya": {"hybrid": _plain(5e6, 0.5), "hybrid_sliding": _plain(1e4, 0.5)},
}  # fmt: skip

# types that also fill in single keys that an entry of a file leaves out
COMPLETED = {"neomme"}


def parameters(fields: dict[str, Any], name: str) -> Any:
    """Return the parameters of a file, in either spelling, or else those of its type."""
    return fields.get("rope_scaling") or fields.get("rope_parameters") or DEFAULTS.get(name)
