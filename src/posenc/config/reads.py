"""The keys about positions that each model type reads, and their places, as in transformers 5.24."""

from posenc.config.defaults import DEFAULTS
from posenc.config.models import FIXED_BASE, LATENT, LOCAL_BASE, ROTARY_DIM, TYPES

# spellings of the base, in any place of a file; those for layers with a window follow
BASES = (
    *("rope_theta", "rotary_emb_base", "rotary_embedding_base", "global_rope_theta", "rope_base", "rotary_base"),
    *("rope_global_base_freq", "rope_freq_base", "rope_embedding_base", "rope_freq_constant"),
)
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "local_rope_base", "rope_local_theta")
SHARES = (
    *("partial_rotary_factor", "rotary_pct", "rotary_percent", "rotary_percentage", "rope_pct", "rope_percentage"),
    *("partial_rotary_pct", "rotary_fraction", "rotary_emb_fraction"),
)
WIDTHS = ("rotary_dim", "rotary_ndims", "rotary_emb_dim", "rope_dim", "qk_rope_head_dim")
SCALINGS = ("rope_scaling", "rope_parameters")
LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
# the parameters that each rope_type reads; all read rope_theta and the share
PARAMETERS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "ntk_alpha": {"factor", "alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},  # Tencent writes all
    "proportional": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale"},
}
MSCALES = ("short_mscale", "long_mscale")  # of LongRoPE, in Phi's MoE and in files for other code
OF_SCALING = set().union(*PARAMETERS.values())
# parameters that do not depend on the length of texts: they stay when others are replaced
KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
# parameters of the rotation whose names are unique, so they are recognised in any place
INSIDE = (OF_SCALING - {"factor", "alpha", "mscale", "truncate"}) | {"rope_type", "mrope_section", "mrope_interleaved"}
# other keys about positions that are read in their own place
ELSEWHERE = {
    *("layer_rope_theta", "no_rope_layers", "no_rope_layer_interval", "rope_scaling_layers", "rope_interleave"),
    *("position_embedding_type", "compress_rope_theta", "swa_qk_rope_head_dim", "use_mem_rope", "qk_nope_head_dim"),
    *("alibi", "rotary_value", "swa_qk_nope_head_dim", "relative_attention_num_buckets"),
    *("partial_rotary_factors", "use_rope_layers", "yarn_only_types"),
    *("n_positions", "max_position_embeddings", "original_max_position_embeddings", "max_2d_position_embeddings"),
}
# all keys that are compared with what is read, and those that may stand among the parameters of a rotation
JUDGED = {*BASES, *LOCAL_BASES, *SHARES, *WIDTHS, *SCALINGS, *LENGTHS, *INSIDE, *ELSEWHERE}
PARTS = JUDGED | OF_SCALING | {"type", "finetuned", "attn_factor", "original_max_len", "llama_4_scaling_beta"}
# types that read an entry of rope_parameters for each kind of layer; all others read one object for all layers
BY_KIND = {
    *("beam", "cohere_compass_text", "deepseek_v4", "diffusion_gemma_text", "dory", "dots3_note_text"),
    *("embedding_gemma2_text", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "laguna"),
    *("lfm3", "mellum", "mimo_v2_flash"),
    *("modernbert", "modernbert-decoder", "neomme", "olmo3", "step3p5", "t5gemma2_decoder", "t5gemma2_text"),
    *("ultrabert", "zaya"),
}
# of these, types that also accept one object for all kinds, and types that do so if its key is rope_scaling
_SPREADS = {"deepseek_v4", "dots3_note_text"}
_SPREADS_OLD = {
    *("gemma3_text", "gemma3n_text", "modernbert", "modernbert-decoder", "olmo3", "step3p5", "t5gemma2_decoder"),
    *("t5gemma2_text", *_SPREADS),
}
# types that update their default parameters by rope_scaling, whose rope_type then is not that of the older key type
_UPDATES = _SPREADS_OLD - _SPREADS
# objects of parameters that types ignore
_UNREAD_OBJECTS = {**dict.fromkeys((*FIXED_BASE, "esm"), SCALINGS), "cohere2_moe": ("rope_scaling",)}
# types that read base and share only among the parameters, and types that do so if a file has no parameters
_INNER_ONLY = {
    *("beam", "cohere_compass_text", "diffusion_gemma_text", "embedding_gemma2_text", "gemma4_text"),
    *("gemma4_unified_text", "laguna", "mellum", "mimo_v2_flash", "zaya"),
}
_FILLED = {key: {name for name, own in DEFAULTS.items() if key in own} for key in ("rope_theta", SHARES[0])}
_OWN_BASE = {
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese"), ("rotary_emb_base",)),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), ("global_rope_theta",)),
    **dict.fromkeys((*FIXED_BASE, *_INNER_ONLY), ()),
}
_OWN_SHARE = {
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese"), ("rotary_pct",)),
    **dict.fromkeys(("codegen", "gptj"), ()),
    **dict.fromkeys(("bamba", "neomme", "dots3_note_text", "step3p5", *_INNER_ONLY), ()),
}


def objects(name: str) -> tuple[str, ...]:
    """Return the keys of the objects of parameters that a type reads, in order of precedence."""
    return tuple(key for key in SCALINGS if key not in _UNREAD_OBJECTS.get(name, ()))


def spreads(name: str, key: str) -> bool:
    """Return whether one object under a key applies to all kinds of layers of a type."""
    return name not in BY_KIND or name in (_SPREADS_OLD if key == "rope_scaling" else _SPREADS)


def reads_mscales(name: str) -> bool:
    """Return whether a type reads the gains of LongRoPE's two lists."""
    return name == "phimoe" or name not in TYPES


def reads_type(name: str, key: str) -> bool:
    """Return whether one object under a key may name its type by the older key type."""
    return key != "rope_scaling" or name not in _UPDATES


def has_one_base(name: str, flat: bool) -> bool:
    """Return whether layers with a window have the base of all others, as one object for all kinds has in Dots 3."""
    return name == "dots3_note_text" and flat


def base_keys(name: str, local: bool, filled: bool) -> tuple[str, ...]:
    """Return the keys next to the parameters under which a type reads a base; an unknown type reads all.

    Args:
        name: The type.
        local: Whether the base is for layers with a window.
        filled: Whether the file has parameters.
    """
    if name not in TYPES:
        return BASES
    if name in _INNER_ONLY or (name in _FILLED["rope_theta"] and not filled):
        return ()
    if local and name in LOCAL_BASE:
        return tuple(filter(None, LOCAL_BASE[name][:1]))
    return _OWN_BASE.get(name, ("rope_theta",))


def share_keys(name: str, filled: bool) -> tuple[str, ...]:
    """Return the keys next to the parameters under which a type reads the share of a head that rotates."""
    if name not in TYPES:
        return SHARES
    if name in _FILLED[SHARES[0]] and not filled:
        return ()
    return _OWN_SHARE.get(name, SHARES[:1])


def reads_width(name: str, key: str) -> bool:
    """Return whether a type reads the number of dimensions that rotate under a key."""
    if key == "qk_rope_head_dim":
        return name in LATENT or name == "deepseek_v4" or name not in TYPES
    return key == "rotary_dim" and (name in ROTARY_DIM or name not in TYPES)
