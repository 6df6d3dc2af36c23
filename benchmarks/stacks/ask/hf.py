"""Ask real transformers models what they rotate.

Each model gets one token at every position. The query is read where the attention function receives it, and where the
file's own function rotates it, before and after.
"""

import importlib
import inspect
import logging
import sys
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ask import common
from ask.common import STAGE, Answer, Job, positions, rows, score, text_of
from ask.decode import Table, decode, gain_of, see, still, temperature

ATTENDED: list[tuple[Any, ...]] = []  # layer, query, scale, window, rotations since the last one
ROTATED: list[tuple[Any, Any]] = []
OUTPUTS: list[Any] = []  # of rotary modules
N = [0]  # the number of positions
NO_ROTATION = ("gateddelta", "mamba", "mixer", "shortconv", "recurrentblock", "lightningattention", "kimidelta")
HOLDS_ATTENTION = ("decoder", "model", "rms", "norm", "forcausal", "layer", "cache")


def attend(module: Any, query: Any, key: Any, value: Any, mask: Any = None, **more: Any) -> tuple[Any, None]:
    """Note the query instead of attending."""
    if query.shape[-2] == N[0]:
        one = query[0, 0].detach().double().numpy()
        index = getattr(module, "layer_idx", None)
        ATTENDED.append((index, one, more.get("scaling"), more.get("sliding_window"), list(ROTATED)))
    ROTATED.clear()
    batch, heads, n, _ = query.shape
    return torch.zeros(batch, n, heads, value.shape[-1], dtype=query.dtype), None


def _watched(real: Any) -> Any:
    def rotate(*given: Any, **more: Any) -> Any:
        query = next((x for x in (*given, *more.values()) if torch.is_tensor(x)), None)
        before = rows(query, N[0])
        out = real(*given, **more)
        after = rows(out[0] if isinstance(out, tuple) else out, N[0])
        if before is not None and after is not None and before.shape == after.shape:
            ROTATED.append((before, after))
        return out

    rotate._watched = True
    return rotate


def watch(model: Any) -> None:
    """Wrap the functions that rotate in the files of a model's classes, and its rotary modules."""
    for file in {type(m).__module__ for m in model.modules() if type(m).__module__.startswith("transformers.models")}:
        for name, value in list(vars(sys.modules[file]).items()):
            rotates = name.lower().startswith("apply") and ("rotary" in name.lower() or "rope" in name.lower())
            if rotates and inspect.isfunction(value) and not hasattr(value, "_watched"):
                setattr(sys.modules[file], name, _watched(value))
    for module in model.modules():
        for name in ("rotary_fn", "apply_rotary_pos_emb"):
            value = vars(module).get(name)
            if inspect.isfunction(value) and not hasattr(value, "_watched"):
                setattr(module, name, _watched(value))
        low = type(module).__name__.lower()
        if "rotary" in low or "rope" in low:
            module.register_forward_hook(lambda module, given, out: see(out, OUTPUTS))
        elif any(w in low for w in NO_ROTATION) and not any(w in low for w in HOLDS_ATTENTION):
            module.forward = common.zeros  # needs kernels


def build(config: Answer) -> tuple[Any, Any]:
    """Return the settings of the text model, and the model."""
    given = {k: v for k, v in config.items() if k not in ("torch_dtype", "dtype")}
    kind = given.pop("model_type")
    settings = CONFIG_MAPPING["deepseek_v3" if kind == "kimi_k2" and kind not in CONFIG_MAPPING else kind].from_dict(
        given
    )
    inner = settings.get_text_config(decoder=True)
    STAGE[0] = "build"
    torch.manual_seed(0)
    refused: Exception | None = None
    for one in (inner, settings):
        for auto in ("AutoModelForCausalLM", "AutoModel", "AutoModelForImageTextToText"):
            maker = getattr(transformers, auto, None)
            if maker is None or type(one) not in maker._model_mapping:
                continue
            for how in ("probe", "eager"):
                one._attn_implementation = how
                try:
                    return one, maker.from_config(one, attn_implementation=how)
                except Exception as error:
                    refused = refused or error
                    if not any(word in str(error).lower() for word in ("attention", "attn_implementation", "probe")):
                        raise
    if refused is not None:
        raise refused
    return inner, _class(config, inner)._from_config(inner, attn_implementation="probe")


def _class(config: Answer, settings: Any) -> Any:
    """Return the model class of a configuration that no auto class knows."""
    stated = [(one.get("architectures") or [""])[0] for one in (config, text_of(config))]
    if named := [cls for name in stated if (cls := getattr(transformers, name, None))]:
        return named[0]
    module = importlib.import_module(type(settings).__module__.replace("configuration_", "modeling_"))
    classes = [cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__]
    fit = [cls for cls in classes if getattr(cls, "config_class", None) is type(settings)]
    fit = [cls for cls in fit if not cls.__name__.endswith("PreTrainedModel")]
    if not fit:
        raise LookupError(f"runner: no model class for {type(settings).__name__}")
    return min(fit, key=lambda cls: ("CausalLM" not in cls.__name__, not cls.__name__.endswith("Model")))


def call(core: Any, config: Answer, at: list[int]) -> None:
    """Run a model until its attentions have run: what comes after them may raise."""
    ids, flat = torch.full((1, len(at)), 5), torch.tensor([at])
    stacked = flat[None].expand(3, -1, -1).clone()
    orders = [stacked, flat] if "mrope_section" in str(config) else [flat, stacked]
    calls = [{"input_ids": ids, "position_ids": p, **more} for p in orders for more in ({"use_cache": False}, {})]
    calls.append({"input_ids": ids, "decoder_input_ids": ids, "decoder_position_ids": flat})
    first: Exception | None = None
    for given in calls:
        ATTENDED.clear(), ROTATED.clear(), OUTPUTS.clear()
        try:
            core(**given)
            return
        except Exception as error:
            first = first or error
            if not isinstance(error, TypeError) and (ATTENDED or ROTATED):
                return
    assert first is not None
    raise first


def ask(job: Job) -> Answer:
    """Answer a job."""
    config = job["config"]
    settings, model = build(config)
    model.eval()
    common.random_weights(model)
    watch(model)
    at = wanted = positions(job)
    if transformers.__version__ < "5" and config["model_type"] == "phimoe":  # its table has a row for each token
        at = list(range(at[-1] + 1))
    N[0] = len(at)
    core = model
    if hasattr(core, "get_decoder"):
        try:
            core = core.get_decoder()
        except Exception:  # a wrapper without one
            core = model
    STAGE[0] = "forward"
    with torch.no_grad():
        call(core, config, at)
    STAGE[0] = "measure"
    n = getattr(settings, "num_hidden_layers", None) or common.n_layers(config)
    pick = slice(None) if len(wanted) == len(at) else wanted
    layers, table = _by_layer(n), Table()
    for i in range(n):
        table.add(_layer(job, *layers[i], pick) if i in layers else {"attention": False})
    return table.answer() | {"model": type(model).__name__}


def _by_layer(n: int) -> dict[int, list[Any]]:
    """Return query, scale, window and rotations by layer."""
    found: dict[int, list[Any]] = {}
    for index, *rest in ATTENDED:
        found.setdefault(len(found) if index is None else index, rest)
    if not found and ROTATED:  # attention classes of their own: the rotations in order, of q and k apart or together
        each = max(1, len(ROTATED) // n)
        found = {i: [None, None, None, [ROTATED[i * each]]] for i in range(n) if i * each < len(ROTATED)}
    return found


def _layer(job: Job, q: Any, scale: Any, window: Any, rotations: list[Any], pick: Any) -> Answer:
    """Return what one layer does: from before and after its rotation, else from the query at all positions."""
    at, text = positions(job), text_of(job["config"])
    q = None if q is None else q[pick]
    warm = None if q is None else temperature(q, at)
    layer = {"attention": True, "window": window, "temperature": warm, "score": score(scale, job["config"])}
    layer["head_dim"] = rotations[0][0].shape[-1] if q is None else q.shape[-1]
    found = _permuted(rotations[0][0][pick], rotations[0][1][pick], at) if rotations else None
    if (not found or "error" in found) and q is not None:
        again = still(q[:, -text["qk_rope_head_dim"] :] if "qk_rope_head_dim" in text else q, at, warm)
        if found is None or (again and "error" not in again):
            found = again
            if found and "inv_freq" in found:
                found["gain"] = gain_of(OUTPUTS, found["inv_freq"])
    return layer | {"rotates": found is not None} | (found or {})


def _permuted(before: Any, after: Any, at: list[int]) -> Answer | None:
    """Decode, also where the file moves x0 x2 ... x1 x3 ... together before it rotates halves."""
    found = decode(before, after, at)
    if found and "error" in found:
        again = decode(np.concatenate([before[:, 0::2], before[:, 1::2]], 1), after, at)
        if again and "error" not in again:
            return again | {"pairing": "interleaved"}
    return found


def main() -> None:
    """Answer jobs."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    transformers.AttentionInterface.register("probe", attend)
    if hasattr(transformers, "AttentionMaskInterface"):
        transformers.AttentionMaskInterface.register("probe", lambda *given, **more: None)
    base = transformers.modeling_utils.PreTrainedModel
    for name in ("_sdpa_can_dispatch", "_flash_attn_can_dispatch"):
        if hasattr(base, name):
            setattr(base, name, lambda self, *given, **more: True)
    base.init_weights = lambda self, *given, **more: None  # the parameters are set by hand
    common.run(ask, transformers.__version__)


if __name__ == "__main__":
    main()
