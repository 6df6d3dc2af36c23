"""A model of a local directory: refused by name where it is unsafe, loaded, or built small from its configuration.

Nothing is fetched and no code of a directory runs: transformers' own class of the model type is constructed here,
from a configuration that was read within limits, and filled from safetensors alone.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc import config
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.config.values import short
from posenc.interop.checkpoint import PICKLES, open_checkpoint

WHO = "verify-model"
LARGE = 1 << 30  # bytes of weights on disk; beyond it the model is built small
MOST = 200_000_000  # parameters of a model that is built small
_CODE = ("auto_map", "trust_remote_code")
# what would make transformers open other files or ask the hub, and has no place in the truth about positions
_DROPPED = (
    *("quantization_config", "_name_or_path", "name_or_path", "transformers_weights", "torch_dtype", "dtype"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation"),
)
_SMALL = {
    512: ("vocab_size", "vocab_size_per_layer_input"),
    64: ("intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    32: (
        *("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp"),
        *("q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input"),
    ),
    4: ("num_experts", "num_local_experts", "n_routed_experts"),
    2: ("num_experts_per_tok", "moe_topk", "top_k_experts"),
    1: ("n_group", "topk_group", "n_shared_experts"),
}
_HEADS = 4
_UNEVEN = 3  # heads where they were no power of two, which slopes of a bias for distance depend on


class CannotBuildError(Exception):
    """transformers cannot make the model; the sentence says why."""


def load(target: Path, fields: dict[str, Any], size: int | None, *, small: bool = False) -> tuple[nn.Module, str]:
    """Return the bare model of a directory in eval mode, and why it was built small with random weights, if it was.

    Args:
        target: The directory.
        fields: Its configuration.
        size: The bytes of its weights, None for none.
        small: Build it small even where there are weights.

    Raises:
        CannotBuildError: transformers cannot make it.
    """
    why = "as asked for" if small else "there are no weights" if size is None else ""
    if size is not None and size > LARGE and not small:
        why = f"the weights are {size / 2**30:.1f} GiB, over {LARGE / 2**30:g} GiB"
    if not why and "quantization_config" in fields:
        why = "the weights are quantised"
    return _small(fields) if why else _whole(target, fields), why


def inspect_directory(target: Path) -> tuple[dict[str, Any], int | None]:
    """Read the configuration of a directory, and the bytes of its weights, None without any.

    Raises:
        ValueError: It is no directory, holds no readable config.json, wants code of its own, or holds pickles alone.
    """
    if not target.is_dir():
        raise ValueError(f"{WHO}: {short(str(target))} is no directory. Name a local one that holds config.json.")
    try:
        fields = config.read(target)
    except FileNotFoundError:
        raise ValueError(f"{WHO}: {short(str(target))} holds no config.json. Name a model's directory.") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{WHO}: {str(error).removeprefix('config.read: ')}") from None
    for where, key in _keys(fields, ""):
        if key in _CODE:
            raise ValueError(
                f"{WHO}: config.json has {where}, which makes transformers import code that comes with the model, and "
                f"such code never runs here. Remove {key} to check transformers' own code, or run `posenc verify` on "
                f"the file."
            )
    names = sorted(entry.name for entry in target.iterdir())
    if "adapter_config.json" in names:
        raise ValueError(
            f"{WHO}: adapter_config.json names another model, which is not opened. Merge the adapter, save the model "
            f"with save_pretrained, and name that directory."
        )
    if not any(name.endswith(".safetensors") for name in names):
        pickled = next((name for name in names if name.endswith(PICKLES)), None)
        if pickled is not None:
            raise ValueError(
                f"{WHO}: {short(pickled)} may be pickled code and is not opened; weights must be in safetensors. Save "
                f"the model with save_pretrained where you trust it, or remove the file to build it from config.json."
            )
        return fields, None
    try:
        return fields, sum(shard.path.stat().st_size for shard in open_checkpoint(target).shards)
    except ValueError as error:
        raise ValueError(f"{WHO}: {str(error).removeprefix('convert: ')}") from None


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep transformers from asking the hub, also where it was imported before."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    constants = sys.modules.get("huggingface_hub.constants")
    was = getattr(constants, "HF_HUB_OFFLINE", None)
    if constants is not None:
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        if was is not None:
            constants.HF_HUB_OFFLINE = was  # type: ignore[union-attr]


def _keys(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Give every key of a configuration with where it stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        where = f"{path}.{key}" if path else str(key)
        yield where, str(key)
        yield from _keys(one, where)


def _whole(target: Path, fields: dict[str, Any]) -> nn.Module:
    """Load the weights of a directory."""
    from transformers import AutoModel

    theirs, given = _configuration(fields), {"local_files_only": True, "trust_remote_code": False}
    with _quiet("load it"):
        model: nn.Module = AutoModel.from_pretrained(
            str(target.resolve()), config=theirs, dtype=torch.float32, use_safetensors=True, **given
        )
    return model.eval()


def _small(fields: dict[str, Any]) -> nn.Module:
    """Build the language model with random weights: all layers, few of everything else, the rotation as it is."""
    from transformers import AutoModel

    opened = open_model(Checked(fields))
    theirs = _configuration({**opened.fields, "model_type": opened.model_type}, opened.name)
    _shrink(theirs)
    with _quiet("build it small"):
        with torch.device("meta"):
            count = sum(p.numel() for p in AutoModel.from_config(theirs).parameters())
        if count > MOST:
            raise CannotBuildError(f"it cannot be built small: {count:,} parameters are left")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model: nn.Module = AutoModel.from_config(theirs, dtype=torch.float32)
            for p in model.parameters():
                if p.dim() > 1 and not p.any():  # weights that start at 0 would hide what rotates
                    nn.init.normal_(p, std=0.5)
    return model.eval()


def _configuration(fields: dict[str, Any], also: str = "") -> Any:
    """Return transformers' configuration of a model, of a class of its own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = next((n for n in (fields.get("model_type"), also) if n in CONFIG_MAPPING), None)
    if name is None:
        raise CannotBuildError(f"transformers has no model of type {short(str(fields.get('model_type')))}")
    try:
        return CONFIG_MAPPING[name].from_dict(_without(fields))
    except Exception as error:
        raise CannotBuildError(f"transformers refuses config.json: {_first_line(error)}") from error


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner) for key, inner in value.items() if key not in _DROPPED}
    return value


def _shrink(theirs: Any) -> None:
    """Make a configuration small, and leave its layers, the width of its heads and all that turns them."""
    for most, keys in _SMALL.items():
        for key in keys:
            now = getattr(theirs, key, None)
            if isinstance(now, int) and not isinstance(now, bool) and now > most:
                setattr(theirs, key, most)
    if getattr(theirs, "n_inner", 0) is None:  # four times the width
        theirs.n_inner = 64
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        now = getattr(theirs, key, None)
        if now is not None and not (isinstance(now, int) and 0 <= now < getattr(theirs, "vocab_size", 512)):
            setattr(theirs, key, None)
    heads = getattr(theirs, "num_attention_heads", None)
    hidden = getattr(theirs, "hidden_size", None)
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads <= _HEADS:
        return
    own = getattr(theirs, "head_dim", None)
    width = own if isinstance(own, int) else hidden // heads
    few = _UNEVEN if heads & (heads - 1) else _HEADS
    for key in ("num_key_value_heads", "num_kv_heads"):
        if isinstance(own_keys := getattr(theirs, key, None), int):
            setattr(theirs, key, few if own_keys == heads else min(own_keys, 2))
    theirs.num_attention_heads = few
    theirs.hidden_size = few * width  # where head_dim is no key of its own it follows from both


@contextlib.contextmanager
def _quiet(what: str) -> Iterator[None]:
    """Silence transformers' words about unused weights; raise where it cannot do what it should."""
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except CannotBuildError:
        raise
    except Exception as error:
        raise CannotBuildError(f"transformers cannot {what}: {_first_line(error)}") from error
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {said[:200]}"
