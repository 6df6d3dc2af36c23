"""Small random models with position biases, and what they are asked in the tests of posenc.hf."""

import inspect
from unittest import mock

import torch
import transformers

from posenc.interop.hf import interface

transformers.logging.set_verbosity_error()

VOCAB, BATCH, LENGTH = 50, 3, 23  # longer than the buckets that T5 has for single distances
BETWEEN = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCAB}


def t5(cls="T5ForConditionalGeneration", dropout=0.0, family="T5", **fields):
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    config = getattr(transformers, f"{family}Config")(
        **BETWEEN | sizes | buckets | {"decoder_start_token_id": 0, "dropout_rate": 0.0} | fields
    )
    model = getattr(transformers, cls)(config)
    for module in model.modules():
        if hasattr(module, "relative_attention_num_buckets"):
            module.dropout = dropout  # of attention weights alone
    return model


def bloom(cls="BloomForCausalLM", dropout=0.0, n_head=6, **fields):
    sizes = {"hidden_size": 24, "n_layer": 3, "n_head": n_head}  # 6 heads: slopes of no power of two
    drops = {"hidden_dropout": 0.0, "attention_dropout": dropout}
    return getattr(transformers, cls)(transformers.BloomConfig(**BETWEEN | sizes | drops | fields))


def mpt(cls="MptForCausalLM", dropout=0.0, attn_config=None, **fields):
    sizes = {"d_model": 24, "n_layers": 3, "n_heads": 6, "max_seq_len": 4096}
    attention = {"clip_qkv": 0.5} | (attn_config or {})
    model = getattr(transformers, cls)(transformers.MptConfig(**BETWEEN | sizes | {"attn_config": attention} | fields))
    for module in model.modules():  # the configuration wants a whole number
        if hasattr(module, "attn_dropout_p"):
            module.attn_dropout_p = dropout
    return model


def umt5(dropout=0.0, **fields):
    return t5("UMT5ForConditionalGeneration", dropout, family="UMT5", **fields)


def switch(dropout=0.0, **fields):
    sizes = {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 64}
    sizes |= {"num_decoder_layers": 2, "router_jitter_noise": 0.0}
    return t5("SwitchTransformersForConditionalGeneration", dropout, family="SwitchTransformers", **sizes | fields)


def falcon(cls="FalconForCausalLM", dropout=0.0, **fields):
    """Return a model as falcon-rw is: ALiBi, whose slopes and products are rounded to bfloat16."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    kind = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
    drops = {"hidden_dropout": 0.0, "attention_dropout": dropout}
    return getattr(transformers, cls)(transformers.FalconConfig(**BETWEEN | sizes | kind | drops | fields))


def deberta(cls="DebertaV2ForMaskedLM", dropout=0.0, **fields):
    """Return a model made as DeBERTa-v3 is; head_dim is no power of two, and far tokens share buckets."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    relative = {"relative_attention": True, "position_buckets": 6, "max_relative_positions": 16}
    kind = {"pos_att_type": "p2c|c2p", "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    other = {"position_biased_input": False, "type_vocab_size": 0, "max_position_embeddings": 64}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": dropout}
    config = transformers.DebertaV2Config(**BETWEEN | sizes | relative | kind | other | drops | fields)
    return getattr(transformers, cls)(config)


MODELS = {
    "t5": t5,
    "gated t5": lambda **kw: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **kw),
    "mt5": lambda **kw: t5("MT5ForConditionalGeneration", family="MT5", **kw),
    "umt5": umt5,
    "switch": switch,
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
    "falcon, 18 lanes": lambda **kw: falcon(hidden_size=72, **kw),  # whose root is no power of two
    "deberta": deberta,
}
ATTENTIONS = dict.fromkeys(MODELS, 6) | dict.fromkeys(("bloom", "mpt", "falcon", "falcon, 18 lanes", "deberta"), 3)
DECODERS = [name for name in MODELS if name != "deberta"]


def cached(called, cache):
    """Return the argument by which a model or a function takes a cache: its name changed in transformers 5.24."""
    names = inspect.signature(getattr(called, "forward", called)).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def shaken(model, seed=1, dtype=torch.float64):
    """Return the model with weights large enough for positions to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = model.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = 0.4 * torch.randn(parameter.shape, generator=generator).to(dtype)
            large = 3.0 if "relative_attention_bias" in name else 1.0
            parameter.copy_(drawn + 1 if parameter.dim() == 1 else large * drawn)
    return model


def built(name, dtype=torch.float64, **fields):
    return shaken(MODELS[name](**fields), dtype=dtype)


def padded(side, batch=BATCH, length=LENGTH):
    """Return a mask of ones with zeros on one side, another number for each text, or none."""
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        if side == "left":
            mask[row, : 4 * row] = 0
        elif side == "right":
            mask[row, length - 4 * row :] = 0
        elif side == "holes":
            mask[row, 3 + row : 5 + 2 * row] = 0
    return None if side == "none" else mask


def asked(model, mask, length=LENGTH, seed=2):
    """Return the arguments of a forward: a text and its mask, and a second text for a decoder."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(3, VOCAB, (BATCH if mask is None else len(mask), length), generator=generator)
    inputs = {"input_ids": text, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        short = length - 4
        inputs["decoder_input_ids"] = torch.randint(3, VOCAB, (len(text), short), generator=generator)
        if mask is not None:  # padded as the encoder's, by other amounts
            inputs["decoder_attention_mask"] = mask[:, 2:-2]
    return inputs


def real(model, inputs):
    """Return which of the tokens that have logits are no padding; the others say nothing."""
    mask = inputs["decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"] \
        if inputs["attention_mask"] is not None else None  # fmt: skip
    length = inputs["decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"].shape[1]
    return torch.ones(BATCH, length, dtype=torch.bool) if mask is None else mask.bool()


def logits(model, inputs, run=None):
    """Return the logits of the tokens that are no padding; `run` may be a compiled model."""
    with torch.no_grad():
        return (model if run is None else run)(**inputs).logits[real(model, inputs)]


def gradients(model, inputs):
    """Return the gradient of each parameter, of a loss over the tokens that are no padding."""
    model.zero_grad()
    out = model(**inputs).logits
    targets = torch.randint(3, VOCAB, out.shape[:2], generator=torch.Generator().manual_seed(3))
    keep = real(model, inputs)
    torch.nn.functional.cross_entropy(out[keep], targets[keep]).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def attended(model, inputs):
    """Return how often a forward calls posenc.attend."""
    with mock.patch.object(interface, "attend", wraps=interface.attend) as attend:
        logits(model, inputs)
    return attend.call_count
