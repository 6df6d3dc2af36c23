"""The rotary modules of transformers by model type, as their default configurations construct them."""

import importlib
import inspect

import numpy as np
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from posenc import config
from small_models import finite

transformers.logging.set_verbosity_error()

# no module of its own, or one that takes other axes; sizes that no released model has; kinds under other names
WITHOUT = {"blt", "codegen", "cohere_compass_text", "deepseek_v4", "dots3_note_audio_encoder", "evolla", "gptj"}
WITHOUT |= {"granite4_vision_text", "hunyuan_vl_text", "internlm3", "iquestcoder", "roformer", "qwen2_5_omni_dit"}
WITHOUT |= {"glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_image_text", "qwen3_omni_moe_text"}
STILL = {"bamba", "esm", "granitemoehybrid", "zamba2"}  # whose default configurations rotate nothing
TYPES = [name for name in config.MODEL_TYPES if name in CONFIG_MAPPING_NAMES and name not in WITHOUT | STILL]


def configuration(name):
    """Their default configuration, and what its file holds."""
    theirs = CONFIG_MAPPING[name]()
    return theirs, finite(theirs.to_dict())


def module_of(theirs):
    return importlib.import_module(type(theirs).__module__.replace("configuration_", "modeling_"))


def tables(theirs, kind, positions):
    """Their cos and sin at positions (seq,) or (seq, n_axes), as their module returns them."""
    module = module_of(theirs)
    cls = next(
        cls
        for key, cls in vars(module).items()
        if inspect.isclass(cls) and key.endswith("RotaryEmbedding") and cls.__module__ == module.__name__
        and "Vision" not in key
    )  # fmt: skip
    rotary = cls(theirs)
    named = {"layer_type": kind} if "layer_type" in inspect.signature(rotary.forward).parameters else {}
    pos = torch.from_numpy(np.ascontiguousarray(positions.T))
    out = rotary(torch.zeros(1, 1, 1), pos[None] if pos.ndim == 1 else pos[:, None], **named)
    return out if isinstance(out, tuple) else (out.real, out.imag)


def per_pair(table, n_pairs):
    """A table with one column a pair, of one that may have each twice."""
    t = table.squeeze(0).double().numpy()
    if t.shape[-1] == n_pairs:
        return t
    return t[:, ::2] if np.array_equal(t[:, ::2], t[:, 1::2]) else t[:, :n_pairs]


def rotated(theirs, cos, sin, q, k):
    """Queries and keys (1, heads, seq, head_dim) by their own function; None where none has this call."""
    module = module_of(theirs)
    for name in ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb"):
        function = getattr(module, name, None)
        if function is not None and [*inspect.signature(function).parameters][:4] == ["q", "k", "cos", "sin"]:
            return function(q, k, cos, sin)
    return None
