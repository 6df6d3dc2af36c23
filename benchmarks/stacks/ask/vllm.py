"""Ask real vLLM models what they rotate.

The environment has vLLM's Python files (the wheel unpacked without its libraries) and torch for CPU. Configuration,
model classes and rotary classes are vLLM's own; the kernels of attention, experts and state spaces are replaced.
"""

import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    **{"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    **{"VLLM_NO_USAGE_STATS": "1", "VLLM_USE_V1": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    **{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
}
from ask import stubs

stubs.install()
import torch
import transformers

from ask import common
from ask.common import STAGE, Answer, Job, positions, text_of
from ask.decode import see

EVENTS: list[tuple[Any, ...]] = []
OUTPUTS: list[Any] = []  # of rotary modules of transformers
NO_ROTATION = ("mlp", "moe", "mixer2", "mamba", "gateddelta", "feedforward")


def install() -> None:
    """Replace the kernels, and note what attention receives."""
    from vllm.model_executor.layers import linear, vocab_parallel_embedding
    from vllm.model_executor.layers.attention import attention, mla_attention
    from vllm.model_executor.layers.fused_moe.oracle import unquantized
    from vllm.model_executor.models import registry

    attention.Attention.forward = _attend
    mla_attention.MLAAttention.forward = _attend_latent
    for name in ("gelu_new", "gelu_fast", "gelu_quick"):
        setattr(torch.ops._C, name, lambda out, x: out.copy_(torch.nn.functional.gelu(x)))
    registry._run_in_subprocess = lambda function: function()
    for method in (linear.UnquantizedLinearMethod, vocab_parallel_embedding.UnquantizedEmbeddingMethod):
        method.apply = lambda self, layer, x, bias=None: torch.nn.functional.linear(x, layer.weight, bias)
    real = unquantized.backend_to_kernel_cls

    def any_kernel(backend: Any) -> Any:  # experts do not run
        found = list(real(backend))
        for kernel in found:
            kernel.is_supported_config = staticmethod(lambda *given, **more: (True, None))
        return found

    unquantized.backend_to_kernel_cls = any_kernel
    for auto in ("AutoImageProcessor", "AutoProcessor", "AutoTokenizer", "AutoFeatureExtractor", "AutoVideoProcessor"):
        if hasattr(transformers, auto):
            getattr(transformers, auto).from_pretrained = lambda *given, **more: stubs.Nothing()


def _attend(self: Any, query: Any, key: Any, value: Any, output_shape: Any = None, *given: Any, **more: Any) -> Any:
    n = query.shape[0]
    one = query.reshape(n, -1, self.head_size)[:, 0].detach().double().numpy().copy()
    scale = getattr(self.impl, "scale", None) or self.scale
    EVENTS.append(("attention", _index(self), one, float(scale), self.sliding_window))
    width = query.numel() // n // self.head_size * getattr(self, "head_size_v", self.head_size)
    return torch.zeros(output_shape or (n, width), dtype=query.dtype)


def _attend_latent(self: Any, query: Any, latent: Any, key: Any, output_shape: Any = None, **more: Any) -> Any:
    n = query.shape[0]
    one = query.reshape(n, -1, self.qk_nope_head_dim + self.qk_rope_head_dim)[:, 0].detach().double().numpy().copy()
    EVENTS.append(("attention", _index(self), one, float(self.scale), None))
    return torch.zeros(output_shape or (n, self.num_heads * self.v_head_dim), dtype=query.dtype)


def _index(attention: Any) -> int:
    return int(re.findall(r"\.(\d+)\.", f"{attention.layer_name}.")[0])


def watch(model: Any) -> None:
    """Note what goes into rotary modules and out of them, and leave out what needs kernels and does not rotate."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    for module in model.modules():
        low = type(module).__name__.lower()
        if "rotary" in low or "rope" in low:
            if type(module).__module__.startswith("transformers"):
                module.register_forward_hook(lambda module, given, out: see(out, OUTPUTS))
            elif not hasattr(module, "_watched"):
                module._watched, module.forward = True, _watched(module)
            continue
        whole = "decoderlayer" in low or low.endswith("model") or "forcausal" in low
        still = any(word in low for word in NO_ROTATION) and not whole
        if still and not any(isinstance(one, (Attention, MLAAttention)) for one in module.modules()):
            module.forward = common.zeros


def _watched(module: Any) -> Any:
    real = module.forward

    def rotate(*given: Any, **more: Any) -> Any:
        query = given[1] if len(given) > 1 else more.get("query")
        before = query.detach().clone()
        out = real(*given, **more)
        after = out[0] if isinstance(out, tuple) else out
        EVENTS.append(("rotation", module, before, after.detach().clone()))
        return out

    return rotate


def ask(job: Job) -> Answer:
    """Answer a job."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    rotary_embedding._ROPE_DICT.clear()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(job["config"]))
        made = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            load_format="dummy",
            compilation_config={"custom_ops": ["none"], "mode": 0},
            disable_log_stats=True,
            enable_prefix_caching=False,
            limit_mm_per_prompt={"image": 0, "video": 0} if "vision_config" in job["config"] else {},
        ).create_engine_config()
        STAGE[0] = "build"
        torch.manual_seed(0)
        with set_current_vllm_config(made), set_default_torch_dtype(torch.float32):
            model = initialize_model(made)
        model.eval()
        common.random_weights(model)
        return _run(job, made, model)


def _run(job: Job, made: Any, model: Any) -> Answer:
    """Run a model at all positions, its attentions by themselves if the whole stops before they ran."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    watch(model)
    EVENTS.clear(), OUTPUTS.clear()
    STAGE[0] = "forward"
    at = positions(job)
    flat = torch.tensor(at)
    place = flat[None].expand(3, -1).clone() if made.model_config.uses_mrope else flat
    n, ids = common.n_layers(job["config"]), torch.full((len(at),), 5)
    with torch.no_grad(), set_current_vllm_config(made), set_forward_context(None, made):
        try:
            model(input_ids=ids, positions=place, intermediate_tensors=None, inputs_embeds=None)
        except Exception:
            if sum(event[0] == "attention" for event in EVENTS) < n and not _parts(job, model, place):
                raise
    return common.digest(job, n, EVENTS, OUTPUTS) | {"model": type(model).__name__}


def _parts(job: Job, model: Any, place: Any) -> bool:
    """Call each attention by itself, and return whether one ran."""
    from vllm.model_executor.layers.attention import Attention

    EVENTS.clear()
    width = common.first(text_of(job["config"]), "hidden_size", "n_embd")
    hidden = torch.ones(place.shape[-1], width)
    for module in model.modules():
        if isinstance(module, Attention) or not any(isinstance(child, Attention) for child in module.children()):
            continue
        for name in ("positions", "position_ids"):
            try:
                module(**{name: place, "hidden_states": hidden})
                break
            except TypeError:
                continue
    return bool(EVENTS)


def main() -> None:
    """Answer jobs."""
    import vllm
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    stubs.register_hub()
    install()
    with set_current_vllm_config(VllmConfig()), tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, backend="gloo")
        initialize_model_parallel(1, 1)
        common.run(ask, vllm.__version__)


if __name__ == "__main__":
    main()
