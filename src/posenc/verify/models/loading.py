"""Load a model from a local directory, refuse an unsafe one, or build it small from its configuration.

Nothing is downloaded and no code of a directory runs: the model is transformers' own class of the model type, made
from a configuration that was read within limits, and filled only from safetensors.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from posenc import config
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.config.values import short
from posenc.interop.checkpoint import PICKLES, Shard, open_checkpoint
from posenc.verify.engine import CannotTellError

WHO = "verify-model"
LARGE = 1 << 30  # bytes of weights on disk; beyond it the model is built small
MOST = 200_000_000  # parameters of a model that is built small
_CODE = {"auto_map", "trust_remote_code"}
# keys that would make transformers open other files or ask the hub, and do not affect positions
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
_OF_POSITIONS = re.compile(r"(?:^|[._])(?:pos(?!t)|rel(?:ative)?[._]|wpe\b|rotary|alibi|inv_freq|r_[rw]_bias)")
_HEADS = 4
_UNEVEN = 3  # heads if their number is not a power of two, which ALiBi's slopes depend on


@dataclass(frozen=True)
class Loaded:
    """The bare model of a directory, in eval mode.

    Args:
        model: The model.
        because: Why it was built small with random weights; empty if it was not.
        drawn: Its tensors of positions that the files lack, so that transformers drew them.
        lacking: Its other tensors that the files lack.
        unread: Tensors of positions in the files that it does not have.
    """

    model: nn.Module
    because: str = ""
    drawn: Sequence[str] = ()
    lacking: Sequence[str] = ()
    unread: Sequence[str] = ()


def load(target: Path, fields: dict[str, Any], shards: Sequence[Shard], *, small: bool = False) -> Loaded:
    """Load the model of a directory, or build it small with random weights.

    Raises:
        CannotTellError: transformers cannot build it.
    """
    size, why = sum(shard.path.stat().st_size for shard in shards), ""
    if small or not shards:
        why = "on request" if small else "there are no weights"
    elif size > LARGE:
        why = f"the weights are {size / 2**30:.1f} GiB, over {LARGE / 2**30:g} GiB"
    elif (target / "adapter_config.json").exists():
        why = "an adapter refers to other weights, which are not opened"
    elif "quantization_config" in fields:
        why = "the weights are quantised"
    try:
        return Loaded(_small(fields).eval(), why) if why else _whole(target, fields)
    except CannotTellError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise CannotTellError(f"transformers cannot make it: {type(error).__name__}: {said[:200]}") from error


def inspect_directory(target: Path) -> tuple[dict[str, Any], Sequence[Shard]]:
    """Read the configuration of a directory, and the headers of its weight files, if there are any.

    Raises:
        ValueError: It is not a directory, has no readable config.json, requires its own code, or has only pickles.
    """
    if not target.is_dir():
        raise ValueError(f"{WHO}: {short(str(target))} is not a directory. Name a local one that contains config.json.")
    try:
        fields = config.read(target)
        has_weights = any(entry.name.endswith((".safetensors", *PICKLES)) for entry in target.iterdir())
        shards = open_checkpoint(target).shards if has_weights else ()
    except FileNotFoundError:
        raise ValueError(f"{WHO}: {short(str(target))} contains no config.json. Name a model's directory.") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{WHO}: {str(error).removeprefix('config.read: ').removeprefix('convert: ')}") from None
    for key in _CODE & set(_keys(fields)):
        raise ValueError(
            f"{WHO}: config.json has {key}, which makes transformers import code that comes with the model; posenc "
            f"never runs it. Remove {key} to check transformers' own code, or run `posenc verify` on the file."
        )
    return fields, shards


def _keys(value: object) -> Iterator[str]:
    """Yield all keys of a configuration, including nested ones."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(one)


def apart() -> contextlib.ExitStack:
    """Keep transformers from asking the hub, even if it was imported before, and from messages about weights."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, dict.fromkeys(names, "1")))
        if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
            stack.enter_context(mock.patch.object(constants, "HF_HUB_OFFLINE", True))
        from transformers.utils import logging  # this reads the environment

        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity_error()
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()
        return stack.pop_all()


def _whole(target: Path, fields: dict[str, Any]) -> Loaded:
    """Load the weights of a directory, twice if tensors of positions are missing: equal ones follow from a formula."""
    model, info = _filled(target, fields, 0)
    missing, other = (sorted(info[key]) for key in ("missing_keys", "unexpected_keys"))
    lacking = [name for name in missing if not _OF_POSITIONS.search(name)]
    drawn: list[str] = []
    if len(lacking) < len(missing):
        one, two = (made.state_dict() for made in (model, _filled(target, fields, 1)[0]))
        absent = [name for name in missing if _OF_POSITIONS.search(name) and name in one]
        drawn = [n for n in absent if not torch.equal(one[n], two[n]) or one[n].unique().numel() < 2]
    return Loaded(model.eval(), "", drawn, lacking, [name for name in other if _OF_POSITIONS.search(name)])


def _filled(target: Path, fields: dict[str, Any], seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with the weights of a directory, those that are missing drawn, and which ones these are."""
    from transformers import AutoModel

    theirs, given = _configuration(fields), {"local_files_only": True, "trust_remote_code": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found: tuple[nn.Module, dict[str, Any]] = AutoModel.from_pretrained(
            str(target.resolve()),
            config=theirs,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            **given,
        )
    return found


def _small(fields: dict[str, Any]) -> nn.Module:
    """Build the language model with random weights: all layers, few of everything else, the rotation unchanged."""
    from transformers import AutoModel

    opened = open_model(Checked(fields))
    theirs = _configuration({**opened.fields, "model_type": opened.model_type}, opened.name)
    _shrink(theirs)
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModel.from_config(theirs).parameters())
    if count > MOST:
        raise CannotTellError(f"it cannot be built small: it would still have {count:,} parameters")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: nn.Module = AutoModel.from_config(theirs, dtype=torch.float32)
        for p in model.parameters():
            if p.dim() > 1 and not p.any():  # weights of 0 would hide the rotation
                nn.init.normal_(p, std=0.5)
    return model


def _configuration(fields: dict[str, Any], also: str = "") -> Any:
    """Return a model's configuration as an object of transformers' own class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = next((n for n in (fields.get("model_type"), also) if n in CONFIG_MAPPING), None)
    if name is None:
        raise CannotTellError(f"transformers has no model of type {short(str(fields.get('model_type')))}")
    return CONFIG_MAPPING[name].from_dict(_without(fields))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner) for key, inner in value.items() if key not in _DROPPED}
    return value


def _shrink(theirs: Any) -> None:
    """Make a configuration small, but keep its layers, the width of its heads and everything about the rotation."""

    def size(key: str) -> int:
        now = getattr(theirs, key, None)
        return now if isinstance(now, int) and not isinstance(now, bool) else 0

    for most, keys in _SMALL.items():
        for key in keys:
            if size(key) > most:
                setattr(theirs, key, most)
    if getattr(theirs, "n_inner", 0) is None:  # four times the width
        theirs.n_inner = 64
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        now = getattr(theirs, key, None)
        if now is not None and not (isinstance(now, int) and 0 <= now < (size("vocab_size") or 512)):
            setattr(theirs, key, None)
    heads, hidden = size("num_attention_heads"), size("hidden_size")
    if heads > _HEADS and hidden:
        width = size("head_dim") or hidden // heads
        few = _UNEVEN if heads & (heads - 1) else _HEADS
        for key in ("num_key_value_heads", "num_kv_heads"):
            if own := size(key):
                setattr(theirs, key, few if own == heads else min(own, 2))
        theirs.num_attention_heads = few
        theirs.hidden_size = few * width  # without its own key, head_dim follows from both
