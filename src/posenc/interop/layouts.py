"""The layout of queries and keys in the weights of each model type: their tensors and the order of rows.

A row of a projection belongs to a head and to one of its dimensions. Most types have one projection for queries and
one for keys, with heads in order. Others have one tensor for queries, keys and values, described here by the order of
parts within a group of heads. A type that is not listed is refused, since a wrong guess would give a model that runs
with wrong results. Each entry was checked with the logits of a small model (tests/interop), except for types whose code
is not in transformers.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from posenc.config.model import Model
from posenc.config.models import TYPES

# The order of parts within a group of heads, and the number of groups in a projection. q are query heads, k key heads,
# v value heads, g a gate as wide as the query head before it, c the latent of multi-head latent attention.
Parts = tuple[str, Literal["one", "n_heads", "n_kv_heads", "four"]]
_Q: Parts = ("q", "one")
_K: Parts = ("k", "one")
_ALL: Parts = ("qkv", "one")
_PER_HEAD: Parts = ("qkv", "n_heads")
_PER_KEY: Parts = ("qkv", "n_kv_heads")


class Layout(NamedTuple):
    """The names of the tensors with queries and keys in a model type."""

    projections: Mapping[str, Parts] = {"q_proj": _Q, "k_proj": _K}  # the projections, and the order of their rows
    layers: str = "layers"  # the name of the list of layers
    attention: str = "self_attn"  # a pattern for the name of the attention of a layer
    still: str = ""  # its other children, which a permutation does not affect
    stacks: str = ""  # further names that may come before the list of layers
    left: str | None = None  # another module with queries and keys, which have no position


# Norms of queries or keys: over each head, over all heads, or with weights for each head; before or after the rotation.
NORMS = "q_norm k_norm q_layernorm k_layernorm q_layer_norm k_layer_norm query_layernorm key_layernorm"
# Other children of attention in any type; inv_freq has one number for each pair in both pairings.
STILL = "v_proj o_proj out_proj dense gate_proj g_proj gate_bias sinks v_norm rotary_emb attn_sub_norm"
# Layers for multi-token prediction, with their own numbers.
EXTRA = "mtp"
# Names that may come before the list of layers of a language model.
STACKS = f"base_model model language_model text_model transformer module _orig_mod {EXTRA}"

_PLAIN = """\
afmoe apertus arcee aria_text bamba beam bitnet cohere cohere2 cohere2_moe cwm dots1 ernie4_5 ernie4_5_moe eurobert
exaone4 exaone_moe falcon_h1 flex_olmo flint gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm
glm4 glm4_moe glm4v_moe_text glm4v_text glm_image_text glm_ocr_text gpt_oss granite granite_docling_text granite_swa
granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text
hy_v3 hyperclovax internlm3 iquestcoder jais2 kolibri1 laguna lfm2 lfm2_moe lfm3 llama llama4_text mellum
mimo_v2_flash minimax minimax_m2 ministral ministral3 mistral mixtral nanochat nemotron olmo olmo2 olmo3 olmo_hybrid
olmoe phi phimoe qwen2 qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe qwen3_vl_moe_text qwen3_vl_text
seed_oss smollm3 solar_open stablelm starcoder2 ultrabert vaultgemma
"""
_COMPRESSED = "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 mistral4 youtu"
_GATED = "qwen3_next qwen3_5_text qwen3_5_moe_text"

_LATENT = Layout(
    {"q_proj": _Q, "q_b_proj": _Q, "kv_a_proj_with_mqa": ("ck", "one")},
    still="q_a_proj q_a_layernorm kv_a_layernorm kv_b_proj",
)
_NEOX = Layout(
    {"query_key_value": _PER_HEAD}, "layers", "attention", "bias masked_bias dense_bias", "gpt_neox gpt_neox_japanese"
)
_GPTJ = Layout(layers="h", attention="attn", still="bias masked_bias causal_mask embed_positions")
_BERT_STILL = "self.value self.rotary_embeddings output LayerNorm"
_BERT = Layout({"self.query": _Q, "self.key": _K}, "layer", "attention", _BERT_STILL, "encoder roformer esm")

LAYOUTS: dict[str, Layout] = {
    **dict.fromkeys(_PLAIN.split(), Layout()),
    **dict.fromkeys(_COMPRESSED.split(), _LATENT),
    **dict.fromkeys(_GATED.split(), Layout({"q_proj": ("qg", "n_heads"), "k_proj": _K})),
    "chatglm": Layout({"query_key_value": _ALL}, attention="self_attention", stacks="encoder"),
    "codegen": _GPTJ._replace(projections={"qkv_proj": ("qvk", "four")}),
    "dbrx": Layout({"Wqkv": _ALL}, "blocks", r"norm_attn_norm\.attn"),
    "diffllama": Layout(still="lambda_q1 lambda_k1 lambda_q2 lambda_k2 groupnorm"),
    "doge": Layout(still="A dt_proj"),
    "esm": _BERT,
    "falcon": Layout({"query_key_value": _ALL}, "h", "self_attention"),
    "gpt_neox": _NEOX,
    "gpt_neox_japanese": _NEOX,
    "gptj": _GPTJ,
    "internlm2": Layout({"wqkv": _PER_KEY}, attention="attention", still="wo"),
    "longcat_flash": _LATENT._replace(attention=r"self_attn\.\d+"),
    "mllama_text_model": Layout(left="cross_attn"),
    "modernbert": Layout({"Wqkv": _ALL}, attention="attn", still="Wo"),
    "modernbert-decoder": Layout(attention="attn", still="Wo"),
    "persimmon": Layout({"query_key_value": _PER_HEAD}),
    "phi3": Layout({"qkv_proj": _ALL}),
    "phi4_multimodal": Layout({"qkv_proj": _ALL}),
    "qwen": Layout({"c_attn": _ALL}, "h", "attn", "c_proj bias masked_bias"),
    "roformer": _BERT,
}

# Types whose code is not in transformers, with settings that are only in that code: (pairing, further fields).
REMOTE: dict[str, tuple[Literal["half", "interleaved"], dict[str, float]]] = {
    "chatglm": ("interleaved", {"partial_rotary_factor": 0.5}),
    "internlm2": ("half", {}),
    "qwen": ("half", {}),
}
_INDEXED = (
    "axk2 deepseek_v32 dots3_note_text glm_moe_dsa hy_v4 minimax_m3_vl_text mistral_large4 mistral_large4_text "
    "qwen4_exp_text"
)
REFUSED = {
    **dict.fromkeys(_INDEXED.split(), "its indexer rotates further queries and keys, with another pairing"),
    "deepseek_v4": "its values are its keys, and its outputs are rotated back",
    "jetmoe": "its queries come from experts",
    "timesfm2_5": "each dimension of its queries has a scale",
    "zamba2": "its layers share projections and adapt them",
    "zaya": "a convolution mixes the dimensions of its queries and keys",
}


def layout(model: Model) -> Layout:
    """Return the layout of a model.

    A type that `config` does not know is assumed to have plain projections, or compressed ones if the file has their
    widths. This is safe, because the caller must pass its pairing and other names than theirs are refused.

    Raises:
        ValueError: The type cannot be converted, or its layout is unknown.
    """
    name = model.name
    why = REFUSED.get(name)
    if name == "roformer" and model.fields.get("rotary_value"):
        why = "with rotary_value its values rotate too"
    if why is not None:
        raise ValueError(f"convert_pairing: {name} cannot be converted, because {why}. Use another model type.")
    if name not in LAYOUTS and name in TYPES:
        raise ValueError(
            f"convert_pairing: the layout of queries and keys in {name} is not known, only that of the {len(LAYOUTS)} "
            f"types in interop.MODEL_TYPES. Add its layout to posenc.interop.layouts."
        )
    found = LAYOUTS.get(name, _LATENT if model.fields.get("qk_rope_head_dim") else Layout())
    get = model.fields.get
    flagged = {  # types with one projection, whose order depends on a flag in the file
        "chatglm": _ALL if get("multi_query_attention") else _PER_HEAD,
        "falcon": _PER_KEY if get("new_decoder_architecture") else _ALL if get("multi_query", True) else _PER_HEAD,
    }
    return found._replace(projections={"query_key_value": flagged[name]}) if name in flagged else found
