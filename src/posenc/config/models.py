"""Properties of model types that are not in their configurations."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from posenc.config.table import ROWS
from posenc.config.values import short

Pairing = Literal["half", "interleaved"]
Layout = Literal["blocks", "interleaved", "time_last", "doubled"]

# types that also read `rope_interleave`, and use pairing "half" if it is false
READS_INTERLEAVE = {"axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "sarvam_mla", "youtu"}
# types whose layers of full attention have heads of 512 if the file has neither global_head_dim nor per_layer_config
GLOBAL_HEAD_DIM = {"gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text"}
# types that do not read head_dim, but divide hidden_size by the number of heads
DERIVES_HEAD = {"deepseek_ocr2_text", "dots3_note_audio_encoder", "unlimited_ocr_text"}
# multi-head latent attention: the default numbers of dimensions that do not rotate and that rotate
LATENT = {
    "axk1": (128, 64),
    "axk2": (64, 32),
    "bailing_hybrid": (128, 64),
    "deepseek_v2": (128, 64),
    "deepseek_v3": (128, 64),
    "deepseek_v32": (128, 64),
    "dots3_note_text": (128, 64),
    "glm4_moe_lite": (192, 64),
    "glm_moe_dsa": (192, 64),
    "hy_v4": (192, 64),
    "hy_v4_vl_text": (192, 64),
    "longcat_flash": (128, 64),
    "minicpm3": (64, 32),
    "mistral4": (64, 64),
    "mistral_large4": (64, 64),
    "mistral_large4_text": (64, 64),
    "sarvam_mla": (128, 64),
    "youtu": (128, 64),
}
# types whose layers of full attention have no position, and the layers that rotate if sliding_window is null
ROTATES_IN_WINDOWS_ONLY: dict[str, Literal["sliding", "none", "all"]] = {
    "afmoe": "sliding",
    "cohere2": "none",
    "cohere2_moe": "none",
    "exaone4": "all",
    "exaone_moe": "all",
    "flint": "none",
    "kolibri1": "all",
    "lara_mini": "sliding",
}
# the default of num_hidden_layers of types that are text parts of other models, whose files leave out what is usual
N_LAYERS = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "olmo", "phi3", "qwen2", "qwen3", "stablelm"), 32),
    **{"gemma": 28, "gemma2": 26, "phi": 24},
}
# types that rotate only if a key has this value
ROTATES_IF = {
    "esm": ("position_embedding_type", "rotary"),
    "falcon": ("alibi", False),
    "granitemoehybrid": ("position_embedding_type", "rope"),
    "zamba2": ("use_mem_rope", True),
}
# bases of layers with a window, for types in which they differ: (key of the old spelling, "" for none; default)
LOCAL_BASE = {
    "dots3_note_text": ("swa_rope_theta", 5e4),
    "embedding_gemma2_text": ("rope_local_base_freq", 1e4),
    "gemma3_text": ("rope_local_base_freq", 1e4),
    "gemma3n_text": ("rope_local_base_freq", 1e4),
    "gemma4_text": ("rope_local_base_freq", 1e4),
    "modernbert": ("local_rope_theta", 1e4),
    "modernbert-decoder": ("local_rope_theta", 1e4),
    "neomme": ("rope_theta", 1e4),
    "olmo3": ("", 5e5),
    "t5gemma2_decoder": ("rope_local_base_freq", 1e4),
    "t5gemma2_text": ("rope_local_base_freq", 1e4),
}
# types in which a kind of layer with missing or null parameters has the plain rotation
FILLS_IN = set(LOCAL_BASE)
# types whose code rotates clockwise
CLOCKWISE = {"nanochat"}
# the default of `rotary_dim`; other types do not read it
ROTARY_DIM = {"codegen": 64, "gptj": 64, "minimax_m2": None}
# types whose pairs are divided among axes: the layout, and the default of `mrope_section` (`axes`). Ernie's sections
# are row, column and time; NeoMME's two axes alternate to the end; HunYuan counts entries of a doubled table
SECTIONS: dict[str, tuple[Layout, tuple[int, ...] | None]] = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "paddleocr_vl_text"), ("blocks", (16, 24, 24))),
    **dict.fromkeys(("qwen2_5_omni_text", "qwen2_5_omni_talker"), ("blocks", (16, 24, 24))),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text"), ("blocks", (8, 12, 12))),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), ("interleaved", (24, 20, 20))),
    **dict.fromkeys(("cohere_compass_text", "cosmos3_edge_text"), ("interleaved", (24, 20, 20))),
    "qwen3_omni_moe_talker_text": ("interleaved", (24, 20, 20)),
    "hy_v4_vl_text": ("interleaved", (12, 10, 10)),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), ("interleaved", (11, 11, 10))),
    "neomme": ("interleaved", (4096, 4096)),
    "ernie4_5_vl_moe_text": ("time_last", (22, 22, 20)),
    "hunyuan_vl_text": ("doubled", None),
}
# types whose own base belongs to their default parameters: a file with parameters and no base has 10,000
BASE_OF_DEFAULTS = {"higgs_audio_v2", "ministral3", "muse_spark_text", "ultrabert"}
# types whose base is in their code
FIXED_BASE = {"codegen", "gptj", "roformer"}
# types whose nested parameters have other names than the kinds of layers
LABELS = {
    "deepseek_v4": {
        "sliding_attention": "main",
        "compressed_sparse_attention": "compress",
        "heavily_compressed_attention": "compress",
    }
}
# types in which the old spelling scales only layers of full attention
SCALES_FULL_ONLY = {"gemma3_text", "gemma3n_text", "olmo3", "t5gemma2_decoder", "t5gemma2_text"}
# types that read both objects of a file: the kinds of layers whose entries in rope_parameters the old spelling changes
MERGES = {
    **dict.fromkeys(SCALES_FULL_ONLY, ("full_attention",)),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), ("full_attention", "sliding_attention")),
}


@dataclass(frozen=True)
class Facts:
    """The properties of a model type, and its defaults for missing keys."""

    pairing: Pairing
    base: float = 1e4
    share: float = 1.0
    reads_share: bool = True
    hidden_size: int | None = None
    n_heads: int | None = None
    head_dim: int | None = None
    max_len: int | None = None


def facts(model_type: str | None, pairing: Pairing | None, native: str = "") -> Facts:
    """Return the facts of a type; the caller's pairing replaces the type's and allows unknown types.

    `native` is the name of the publisher's own format, if the file has one.

    Raises:
        ValueError: The type is unknown and no pairing is given, or the pairing is neither of the two.
    """
    if pairing not in (None, "half", "interleaved"):
        raise ValueError(f"config.rotary: pairing must be 'half' or 'interleaved'; got {short(pairing)}. Pass one.")
    name = model_type if model_type in TYPES else f"{model_type}_text"
    if name in TYPES:
        known = TYPES[name]
        return known if pairing is None else replace(known, pairing=pairing)
    if pairing is not None:
        return Facts(pairing=pairing)
    if native:
        raise ValueError(
            f"config.rotary: pairing must be given for {native}, the format of Mistral's and Meta's own code, "
            "because it belongs to the weights; got None. Pass pairing='interleaved' (--pairing interleaved) for the "
            "weights next to it (consolidated), or 'half' for weights converted for transformers."
        )
    near = ", ".join(get_close_matches(model_type[:64], TYPES, n=3)) if model_type else ""
    raise ValueError(
        f"config.rotary: model_type must be one of the {len(TYPES)} in `posenc.config.MODEL_TYPES`, because no file "
        f"states the pairing of dimensions; got {short(model_type)}{near and f', near {near}'}. Pass pairing='half' or "
        "'interleaved' for another type."
    )


def _facts(row: str) -> tuple[str, Facts]:
    name, pairing, base, share, *sizes = row.split()
    widths = [None if size == "-" else int(size) for size in sizes]
    plain = 1.0 if share == "-" else float(share)
    return name, Facts("half" if pairing == "h" else "interleaved", float(base), plain, share != "-", *widths)


TYPES = dict(_facts(row) for row in ROWS.splitlines())
