"""Ask real SGLang models what they rotate.

The environment has SGLang's Python files (the wheel unpacked without its libraries) and torch for CPU. Configuration,
model classes and rotary classes are SGLang's own; kernels, experts and state spaces are replaced. A model file that
cannot be imported here is printed as NOT IMPORTED: that SGLang does not know its type is then not SGLang's word.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    **{"SGLANG_FORCE_FUSED_OP_BACKEND": "torch", "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"},
    **{"TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_LOGGING_LEVEL": "ERROR"},
}
from ask import stubs

stubs.install("triton", "ray")
import torch

from ask import common
from ask.common import STAGE, Answer, Job, positions, text_of
from ask.decode import see

EVENTS: list[tuple[Any, ...]] = []
OUTPUTS: list[Any] = []  # of rotary modules of transformers
STATE: dict[str, Any] = {}
NO_ROTATION = ("mlp", "moe", "mixer", "mamba", "gateddelta", "feedforward")
TORCH_NATIVE = (
    "lfm2",
    "falcon_h1",
    "granitemoehybrid",
    "qwen3_next",
    "qwen3_5",
)  # types that refuse Triton's attention


class Mode:
    """A forward mode: an ordinary extend."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **more: name == "is_extend"


class Batch:
    """A forward batch that knows only its positions."""

    def __init__(self, at: Any, axes: Any) -> None:
        self.positions, self.mrope_positions, self.forward_mode = at, axes, Mode()
        self.batch_size, self.seq_lens_sum = 1, int(at.max()) + 1
        self.seq_lens, self.extend_prefix_lens_cpu = torch.tensor([int(at.max()) + 1]), [0]
        self.attn_attend_prefix_cache = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class OnCPU(torch.overrides.TorchFunctionMode):
    """Tensors that are asked for on a GPU are made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        gpu = [isinstance(one, str | torch.device) and str(one).startswith("cuda") for one in args]
        return func(*("cpu" if asked else one for asked, one in zip(gpu, args, strict=True)), **kwargs)


class Loud:
    """A log that prints which files of models could not be imported here: the registry goes on without them."""

    def __getattr__(self, name: str) -> Any:
        def say(text: object, *given: object, **more: object) -> None:
            if "mport error" in str(text):
                print("NOT IMPORTED", str(text)[:300], file=sys.stderr)

        return say


def install() -> None:
    """Replace the kernels and the GPU, and note what attention receives."""
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.layers.rotary_embedding import factory
    from sglang.srt.models import registry

    class Kernels(type(torch.ops.sgl_kernel)):
        """Kernels that a file takes by name when it is imported."""

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.endswith("_cpu"):
                    return stubs.Nothing()
                raise

    torch.ops.sgl_kernel = Kernels("sgl_kernel")
    registry.logger = Loud()
    for name in ("current_stream", "Stream", "Event", "default_stream"):
        setattr(torch.cuda, name, lambda *given, **more: stubs.Nothing())
    torch.cuda.current_device, torch.cuda.get_device_capability = lambda: 0, lambda *given: (9, 0)
    torch.Tensor.cuda = lambda self, *given, **more: self
    RadixAttention.forward = _attend

    def as_on_a_gpu(*given: Any, device: Any = None, **more: Any) -> Any:
        return factory.get_rope(*given[:8], **more)  # the ninth is the device

    factory.get_rope_cpu = as_on_a_gpu


def _attend(
    self: Any, q: Any, k: Any, v: Any, forward_batch: Any = None, save_kv_cache: bool = True, **more: Any
) -> Any:
    n, rope = q.shape[0], more.get("q_rope")
    one = q.reshape(n, self.tp_q_head_num, -1)[:, 0]
    if rope is not None:
        one = torch.cat([one, rope.reshape(n, self.tp_q_head_num, -1)[:, 0]], -1)
    seen = one.detach().double().numpy().copy()
    EVENTS.append(("attention", self.layer_id, seen, float(self.scaling), self.sliding_window_size))
    return torch.zeros(n, self.tp_q_head_num * self.v_head_dim, dtype=q.dtype)


def watch(model: Any) -> None:
    """Note what goes into rotary modules and out of them, and leave out what needs kernels and does not rotate."""
    from sglang.srt.layers.radix_attention import RadixAttention

    for module in model.modules():
        low = type(module).__name__.lower()
        if hasattr(module, "qk_norm_impl"):
            module.qk_norm_impl.forward = lambda q, k, *given: (q, k)
        if type(module).__module__.startswith("transformers") or "gemma3rotary" in low:
            if "rotary" in low:
                module.register_forward_hook(lambda module, given, out: see(out, OUTPUTS))
        elif "rotary" in low or "rope" in low:
            if not hasattr(module, "_watched"):
                module._watched, module.forward = True, _watched(module)
        elif any(word in low for word in NO_ROTATION):
            whole = low.endswith("model") or "forcausal" in low or "decoderlayer" in low
            if not whole and not any(isinstance(one, RadixAttention) for one in module.modules()):
                module.forward = common.zeros


def _watched(module: Any) -> Any:
    real = getattr(module, "forward_native", module.forward)
    if hasattr(module, "forward_native"):
        module._forward_method = module.forward_native

    def rotate(*given: Any, **more: Any) -> Any:
        more = {key: value for key, value in more.items() if key not in ("fused_set_kv_buffer_arg", "backend")}
        query = given[1] if len(given) > 1 else more.get("query")
        before = query.detach().clone() if torch.is_tensor(query) else None
        out = real(*given, **more)
        after = out[0] if isinstance(out, tuple) else out
        if before is not None and after.shape == before.shape:
            EVENTS.append(("rotation", module, before, after.detach().clone()))
        return out

    return rotate


def ask(job: Job) -> Answer:
    """Answer a job."""
    from sglang.srt import runtime_context
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.configs.update_config import adjust_config_with_unaligned_cpu_tp
    from sglang.srt.distributed import bootstrap
    from sglang.srt.layers.rotary_embedding import factory
    from sglang.srt.model_loader.loader import _initialize_model
    from sglang.srt.server_args import ServerArgs

    factory._ROPE_DICT.clear()
    native = str(text_of(job["config"]).get("model_type")).startswith(TORCH_NATIVE)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(job["config"]))
        args = ServerArgs(
            model_path=folder,
            skip_tokenizer_init=True,
            device="cpu",
            dtype="float32",
            attention_backend="torch_native" if native else "triton",
            disable_cuda_graph=True,
            disable_radix_cache=True,
            load_format="dummy",
            mem_fraction_static=0.5,
        )
        runtime_context.publish(args, role="scheduler", ranks=STATE["ranks"])
        if "started" not in STATE:
            bootstrap.init_parallel_runtime(server_args=args, device="cpu", dist_port=29000 + os.getpid() % 2000)
            STATE["started"] = True
        made = ModelConfig.from_server_args(args)
        STAGE[0] = "build"
        bootstrap.init_layer_runtime(model_config=made)
        load = LoadConfig(load_format="dummy")
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        with OnCPU():
            model = _initialize_model(adjust_config_with_unaligned_cpu_tp(made, load, 1), load, None)
        model.eval()
        common.random_weights(model)
        return _run(job, model)


def _run(job: Job, model: Any) -> Answer:
    """Run a model at all positions, its attentions by themselves if the whole stops before they ran."""
    from sglang.srt.model_executor.forward_context import ForwardContext, set_forward_context

    watch(model)
    EVENTS.clear(), OUTPUTS.clear()
    STAGE[0] = "forward"
    flat, n = torch.tensor(positions(job)), common.n_layers(job["config"])
    axes = flat[None].expand(3, -1).clone()
    ids, batch = torch.full((len(flat),), 5), Batch(flat, axes)
    place = axes if "mrope_section" in str(text_of(job["config"]).get("rope_scaling") or "") else flat
    native = not type(model).__name__.startswith("Transformers")  # else the model is transformers' own
    core = getattr(model, "language_model", None) or model
    core = getattr(core, "model", getattr(core, "transformer", core)) if native else model
    set_forward_context(ForwardContext(attn_backend=stubs.Nothing()))
    failed: Exception | None = None
    with torch.no_grad():
        try:
            try:
                core(ids, place, batch)
            except TypeError:
                core(input_ids=ids, positions=place, forward_batch=batch)
        except Exception as error:
            failed = error
            if native and sum(event[0] == "attention" for event in EVENTS) < n:
                _parts(job, model, place, batch)
            if not any(event[0] == "attention" for event in EVENTS):
                _alone(model, place)
    if failed is not None and not EVENTS:
        raise failed
    return common.digest(job, n, EVENTS, OUTPUTS) | {"model": type(model).__name__}


def _parts(job: Job, model: Any, place: Any, batch: Batch) -> None:
    """Call each attention by itself."""
    from sglang.srt.layers.radix_attention import RadixAttention

    EVENTS.clear()
    hidden = torch.ones(place.shape[-1], common.first(text_of(job["config"]), "hidden_size", "n_embd"))
    for module in model.modules():
        if isinstance(module, RadixAttention) or not any(isinstance(one, RadixAttention) for one in module.children()):
            continue
        for name in ("positions", "position_ids"):
            try:
                module(**{name: place, "hidden_states": hidden, "forward_batch": batch})
                break
            except TypeError:
                continue
            except Exception:
                break


def _alone(model: Any, place: Any) -> None:
    """Where an attention cannot run on a CPU: call its rotary module with random vectors."""
    from sglang.srt.layers.radix_attention import RadixAttention

    EVENTS.clear()
    n = place.shape[-1]
    for module in model.modules():
        inner = [one for one in module.children() if isinstance(one, RadixAttention)]
        rotary = getattr(module, "rotary_emb", None)
        if not inner or rotary is None:
            continue
        width = getattr(rotary, "head_size", inner[0].head_dim)
        q = torch.randn(1, 1, width).expand(n, 1, width).contiguous()
        rotary.forward(place, q.clone(), torch.randn(n, 1, width))
        seen = q[:, 0].double().numpy()
        EVENTS.append(("attention", inner[0].layer_id, seen, float(inner[0].scaling), inner[0].sliding_window_size))


def main() -> None:
    """Answer jobs."""
    import sglang
    from sglang.srt import runtime_context

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    stubs.register_hub()
    known = runtime_context.SpawnRanks.__struct_fields__
    ranks = {"world_rank": 0, "gpu_id": 0, "dp_rank": None}
    STATE["ranks"] = runtime_context.SpawnRanks(**{key: value for key, value in ranks.items() if key in known})
    install()
    common.run(ask, sglang.__version__)


if __name__ == "__main__":
    main()
