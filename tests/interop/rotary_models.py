"""Small random rotary models of transformers, for the tests of posenc.hf."""

import contextlib
from typing import Any

import torch
import transformers

from small_models import SIZES, small

transformers.logging.set_verbosity_error()

LENGTH, BATCH = 12, 3
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
LAYERS = {"num_hidden_layers": 4}
BOTH = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5}
LATENT = {"num_key_value_heads": 4}
PHI3 = {"original_max_position_embeddings": 16, "max_position_embeddings": 64}
BASES = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": PLAIN}

# a model for language, and options beside small sizes
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama4": ("llama4_text", {"floor_scale": 3, "attn_scale": 0.4}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", BOTH),
    "gemma3": ("gemma3_text", BOTH | {"rope_parameters": BASES}),
    "gemma3n": ("gemma3n_text", BOTH | {"intermediate_size": 32}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3 longrope": ("phi3", PHI3 | {"rope_parameters": LONGROPE}),
    "llama dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}),
    "gptj": ("gptj", {"rotary_dim": 8}),
    "codegen": ("codegen", {"rotary_dim": 8}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", BOTH),
    "glm4": ("glm4", {"partial_rotary_factor": 0.5}),
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v3": ("deepseek_v3", LATENT | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    "gpt_oss": ("gpt_oss", BOTH | {"rope_parameters": YARN}),
    "smollm3": ("smollm3", {}),
    "ernie4_5": ("ernie4_5", {}),
    "granite_swa": ("granite_swa", {"layer_rope_theta": [0, 1e4, 5e5, 100.0]}),
    "nanochat": ("nanochat", {}),
    "olmo2": ("olmo2", {}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5}),
}
SWITCHING = ("phi3 longrope", "llama dynamic")  # whose frequencies depend on the length: cached, theirs mix two


def built(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Return a model whose weights are large enough for positions to matter."""
    kind, own = FAMILIES[name]
    return shaken(transformers.AutoModelForCausalLM.from_config(small(kind, **LAYERS | own | options)), dtype)


def shaken(model: Any, dtype: torch.dtype = torch.float32, std: float = 0.3) -> Any:
    generator = torch.Generator().manual_seed(1)
    model = model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = std * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + 1 if parameter.dim() == 1 else drawn)
    return model.to(dtype)


def text(length: int = LENGTH, batch: int = BATCH, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(7, SIZES["vocab_size"], (batch, length), generator=generator)


def padding(side: str, length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        if side == "left":
            mask[row, : 2 * row] = 0
        elif side == "right":
            mask[row, length - 2 * row :] = 0
    return mask


def counted(mask: torch.Tensor) -> torch.Tensor:
    """Return positions that count the tokens of a mask, as generate() does."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def contents(model: Any) -> dict[Any, Any]:
    """Return the attributes of all modules by name, of hooks their number, and the buffers."""
    hooks = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
    own = {
        (name, key): len(value) if key in hooks else value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
    }
    return own | {("buffer", name): buffer for name, buffer in model.named_buffers()}


@contextlib.contextmanager
def counting(calls: list[str]) -> Any:
    """Note each turn of queries and keys by posenc."""
    from posenc.interop.hf import rotation

    before = rotation.Rotation.both

    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return before(self, *args, **kwargs)

    rotation.Rotation.both = both  # type: ignore[method-assign]
    try:
        yield
    finally:
        rotation.Rotation.both = before  # type: ignore[method-assign]
