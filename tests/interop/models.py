"""Small random models from transformers' own classes, and their rotation written out for either pairing."""

import importlib
from contextlib import contextmanager
from copy import deepcopy

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.logging.set_verbosity_error()

LENGTH = 11  # of the text: no number of heads, so that tables and lanes are distinguished by it
# Sizes, of which a type takes those that it has: grouped heads, and heads wider than their share of the model.
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 40, "max_position_embeddings": 64, "intermediate_size": 32, "sliding_window": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 64, "d_model": 32, "n_heads": 4, "n_layers": 3,
    "max_seq_len": 64, "num_layers": 3,
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "mlp_hidden_dim": 32, "ffn_hidden_size": 32,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 4, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40,
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip

OWN = "as the class has it"


def configuration(model_type, **fields):
    """Return a small configuration; a field that is OWN is left to its class."""
    cls = CONFIG_MAPPING[model_type]
    has = cls().to_dict()
    sizes = {key: size for key, size in SIZES.items() if key in has} | deepcopy(fields)
    return cls(**{key: size for key, size in sizes.items() if size != OWN})


def build(config, cls=None):
    """Return a model with weights large enough for lanes to matter."""
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM, transformers.AutoModel):
        if cls is None and type(config) in auto._model_mapping:
            cls = auto._model_mapping[type(config)]
    model = cls(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + 1 if parameter.dim() == 1 else drawn)
    return model


def read(model):
    """Return what a model makes of a fixed text."""
    text = torch.randint(3, 40, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(input_ids=text)[0]


def weights(model):
    """Return copies of a model's weights by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def apart(a, b):
    """Return the largest difference in units of the largest value."""
    return ((a - b).abs().max() / b.abs().max()).item()


def turned(lanes, cos, sin, pairing):
    """Turn the first lanes pair by pair: lanes are (..., seq, n), the tables have one column a pair."""
    out, n_pairs = lanes.clone(), cos.shape[-1]
    for k in range(n_pairs):
        a, b = (k, k + n_pairs) if pairing == "half" else (2 * k, 2 * k + 1)
        out[..., a] = lanes[..., a] * cos[..., k] - lanes[..., b] * sin[..., k]
        out[..., b] = lanes[..., b] * cos[..., k] + lanes[..., a] * sin[..., k]
    return out


@contextmanager
def paired_as(model, pairing, clockwise=False):
    """Let a model turn lanes in pairs of one's choice, by the angles that its own code computes."""

    def turn(*given, **named):
        given = [one for one in (*given, *named.values()) if torch.is_tensor(one) and one.dtype != torch.long]
        tables = [one for one in given if one.dim() < 4 or one.shape[:2] == (1, 1)]
        if len(tables) == 1:  # a complex number for each pair, or RoFormer's sines and after them its cosines
            sin, cos = (tables[0].imag, tables[0].real) if tables[0].is_complex() else tables[0].chunk(2, -1)
        else:
            cos, sin = sorted(tables, key=_starts_at_zero)
        cos, sin = _one_a_pair(cos), _one_a_pair(sin) * (-1 if clockwise else 1)
        out = []
        for lanes in (one for one in given if not any(one is table for table in tables)):
            heads = 1 if lanes.shape[2] == LENGTH else 2  # (batch, heads, seq, lanes) or (batch, seq, heads, lanes)
            out.append(turned(lanes, cos.unsqueeze(heads), sin.unsqueeze(heads), pairing))
        return tuple(out) if len(out) > 1 else out[0]

    holders = _functions(model)
    try:
        for holder, name, own in holders:
            setattr(holder, name, staticmethod(turn) if isinstance(own, staticmethod) else turn)
        yield
    finally:
        for holder, name, own in holders:
            setattr(holder, name, own)


def _starts_at_zero(table):
    return bool(table.reshape(-1, *table.shape[-2:])[0, 0].abs().max() < 1e-6)


def _one_a_pair(table):
    """Return (batch, seq, n_pairs) of a table that may have each column twice: in halves, or side by side."""
    table = table.reshape(-1, *table.shape[-2:])
    if table.shape[-1] % 2 == 0:
        first, second = table.chunk(2, -1)
        if torch.equal(first, second):
            return first
        if torch.equal(table[..., ::2], table[..., 1::2]):
            return table[..., ::2]
    return table


def _functions(model):
    """Return what turns queries and keys in the code of a model: (where it is, its name, what stands there)."""
    module = importlib.import_module(type(model).__module__)
    holders = [module, *(one for name, one in vars(module).items() if name.endswith("SelfAttention"))]
    names = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave")
    names += ("apply_rotary_position_embeddings",)
    found = [(holder, name, vars(holder)[name]) for holder in holders for name in names if name in vars(holder)]
    assert found, module
    return found
