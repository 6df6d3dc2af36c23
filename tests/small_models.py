"""Small models of transformers, and the queries and keys that each of their attentions gets to see."""

import importlib
import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

N = 9  # tokens
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
# under all the names that configurations have for them
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 7),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(
        ("intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size", "n_inner", "global_head_dim"), 32
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "index_topk", "index_n_heads"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_key_value_heads", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 64),
    **{f"{token}_token_id": i for i, token in enumerate(("pad", "bos", "eos", "cls", "sep"))},
    "n_routed_experts": 8,
    "num_kv_shared_layers": 0,
}


class Seen(NamedTuple):
    """What reaches one attention; `layer` is None where a model does not number them."""

    layer: int | None
    q: Tensor
    k: Tensor


KEPT: list[Seen] = []


def keep(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Stand in for attention: what reaches the next layer does not depend on positions."""
    KEPT.append(Seen(getattr(module, "layer_idx", None), q.clone(), k.clone()))
    return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None


ALL_ATTENTION_FUNCTIONS.register("keep_in_order", keep)
ALL_MASK_ATTENTION_FUNCTIONS.register("keep_in_order", eager_mask)


def finite(value: Any) -> Any:
    """What a file holds: `to_dict` may hold an infinity."""
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def small(name: str, **options: Any) -> Any:
    """A configuration of a type: small, where it has a key for the size, and with the options."""
    cls = CONFIG_MAPPING[name]
    own = getattr(cls, "__dataclass_fields__", None) or inspect.signature(cls).parameters  # before transformers 5.7
    known = {*own, *cls.attribute_map}
    return cls(**{key: value for key, value in SIZES.items() if key in known} | options)


def build(config: Any) -> Any:
    """The type's bare model, with random weights where it would start at 0 (which would hide what is turned)."""
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    names = MODEL_MAPPING_NAMES.get(config.model_type, ())
    found = [getattr(module, name, None) for name in ((names,) if isinstance(names, str) else names)]
    found += [cls for cls in vars(module).values() if inspect.isclass(cls) and issubclass(cls, PreTrainedModel)
              and cls.config_class is type(config) and cls.__name__.endswith("Model")
              and "PreTrained" not in cls.__name__]  # fmt: skip
    torch.manual_seed(0)
    model = next(cls for cls in found if cls is not None)(config).eval()
    for tensor in model.parameters():
        if not tensor.any():
            torch.nn.init.normal_(tensor, std=0.5)
    model.set_attn_implementation("keep_in_order")
    return model


def seen(model: Any, pos: Tensor, **inputs: Any) -> list[Seen]:
    """Run a model on tokens at the given positions."""
    KEPT.clear()
    with torch.no_grad():
        model(input_ids=torch.arange(7, 7 + N).expand(2, -1), position_ids=pos, use_cache=False, **inputs)
    return [one if one.layer is not None else one._replace(layer=i) for i, one in enumerate(KEPT)]


def scores(q: Tensor, k: Tensor) -> Tensor:
    """The products of queries and keys, which do not change where a model sorts the lanes of both."""
    return q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
