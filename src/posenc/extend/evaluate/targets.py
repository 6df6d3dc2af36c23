"""Causal models on disk: a directory of transformers, or a study's cell that was trained on text."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from posenc import RoPE, config
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.extend.stretch import Stretched, stretch, trained_length
from posenc.nn import LanguageModel
from posenc.parity.compare import mean
from posenc.study import cell, subjects
from posenc.study.config import TEXT, Cell, read_size
from posenc.study.queue import read_json
from posenc.study.worker import Directory
from posenc.verify.models.loading import apart

TOGETHER = 4096  # tokens per forward pass; a longer text has its own pass
WHO = "evaluate"


class Scores(NamedTuple):
    """For each scored token: its loss in bits, and whether greedy decoding would predict it."""

    bits: Float[Tensor, "n last"]
    right: Bool[Tensor, "n last"]


@dataclass(frozen=True)
class Model:
    """A loaded model whose frequencies can be exchanged.

    Args:
        logits: Returns the logits of the last n tokens of each row.
        use: Sets a scaling; None restores the unscaled model.
        device: The model's device.
    """

    logits: Callable[[Int64[Tensor, "n seq"], int], Float[Tensor, "n last vocab"]]
    use: Callable[[Stretched | None], None]
    device: torch.device

    @torch.inference_mode()
    def score(self, windows: Int64[Tensor, "n seq"], last: int) -> Scores:
        """Return the scores of the `last` tokens of each window, each given all tokens before it."""
        bits, right = [], []
        for part in windows.split(max(1, TOGETHER // windows.shape[1])):
            part = part.to(self.device)
            logits, targets = self.logits(part[:, :-1], last).float(), part[:, -last:]
            bits.append(F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").cpu() / math.log(2))
            right.append((logits.argmax(-1) == targets).cpu())
        return Scores(torch.cat(bits), torch.cat(right))


@dataclass(frozen=True)
class Target:
    """A directory with a model, before its weights are read.

    Args:
        name: The directory, as the user gave it.
        fields: Its configuration; a study's RoPE has that of a Llama.
        fingerprint: Changes if the configuration or a file of weights changes.
        trained_len: The trained length, in tokens.
        unit: "token", or "byte" without a tokenizer.
        start: Tokens before every text.
        encode: Converts text to tokens, without the start tokens.
        load: Loads the weights onto a device.
    """

    name: str
    fields: Mapping[str, Any]
    fingerprint: str
    trained_len: int
    unit: str
    start: list[int]
    encode: Callable[[bytes], list[int]]
    load: Callable[[torch.device], Model]

    def stretch(self, method: str, factor: float) -> Stretched:
        """Return the configuration with a longer context.

        Raises:
            ValueError: The method is unknown, the factor is out of range, or the model does not use RoPE.
        """
        if not self.fields:
            raise ValueError(
                f"{WHO}: {self.name} was not trained with rope, so {method} has nothing to scale. Leave it out."
            )
        return stretch(self.fields, method, factor=factor, trained_len=self.trained_len)


def find(path: str, trained_len: int | None) -> Target:
    """Read everything in a model's directory except the weights.

    Args:
        path: A directory with config.json and safetensors, or the directory of a study's cell.
        trained_len: The trained length; None takes that of the configuration.

    Raises:
        ValueError: The directory holds no readable causal model, or gives no trained length.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{WHO}: {path} is not a directory. Give one with config.json and *.safetensors.")
    weights = sorted(folder.glob("*.safetensors"))
    result = read_json(folder / "result.json")
    if not weights:
        raise ValueError(
            f"{WHO}: {path} holds no safetensors. Other formats may contain pickled code and are not opened. "
            "Save the model with save_pretrained."
        )
    if result is not None:
        return _study_cell(folder, path, result, trained_len)
    try:
        fields = Checked(config.read(folder))
    except FileNotFoundError:
        raise ValueError(f"{WHO}: {path} holds no config.json. Give a model's directory.") from None
    return _checkpoint(folder, path, fields, trained_len)


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        seen = file.stat()
        digest.update(repr((file.name, seen.st_size, seen.st_mtime_ns)).encode())
    return digest.hexdigest()


def _checkpoint(folder: Path, path: str, fields: Checked, trained_len: int | None) -> Target:
    inner = open_model(fields)
    try:
        meanings = mean(fields)
    except ValueError:  # the model does not use RoPE, or a variant that is unknown to posenc
        meanings = []
    trained = trained_length(meanings[0], trained_len) if meanings else trained_len or inner.size("max_len")
    if trained is None:
        raise ValueError(f"{WHO}: config.json of {path} gives no length. Give --trained-len.")
    tokenizer = _tokenizer(folder, path)
    if tokenizer is None:
        vocab = inner.fields.get("vocab_size") or 0

        def encode(text: bytes) -> list[int]:
            if max(text, default=0) >= vocab:
                raise ValueError(
                    f"{WHO}: {path} has no tokenizer, so its tokens would be bytes, but its vocabulary of {vocab} "
                    f"lacks byte {max(text)}. Add the tokenizer's files."
                )
            return list(text)

        unit, start = "byte", []
    else:

        def encode(text: bytes) -> list[int]:
            ids: list[int] = tokenizer(text.decode("utf-8", "replace"), add_special_tokens=False)["input_ids"]
            return ids

        unit, start = "token", [i for i in tokenizer("")["input_ids"] if i == tokenizer.bos_token_id]

    def load(device: torch.device) -> Model:
        return _load_checkpoint(folder, path, trained, device)

    return Target(path, fields if meanings else {}, _fingerprint(folder), trained, unit, start, encode, load)


def _tokenizer(folder: Path, path: str) -> Any:
    """Return the directory's tokenizer, or None if it has none."""
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if not any((folder / name).exists() for name in names):
        return None
    with _transformers(path):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _load_checkpoint(folder: Path, path: str, trained: int, device: torch.device) -> Model:
    from posenc.interop import hf

    with _transformers(path):
        from transformers import AutoModelForCausalLM

        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        auto: Any = AutoModelForCausalLM  # its annotations omit the second result
        model, info = auto.from_pretrained(folder, dtype="auto", output_loading_info=True, **given)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"{WHO}: the weights of {path} lack {missing[0]} and {len(missing) - 1} others, which would be random. "
            "Add the missing files."
        )
    model = model.to(device).eval()
    inner = model.config.get_text_config()
    if hasattr(inner, "max_position_embeddings"):  # dynamic NTK reads this as the trained length
        inner.max_position_embeddings = trained
    sliced = "logits_to_keep" in inspect.signature(model.forward).parameters

    def logits(tokens: Tensor, last: int) -> Tensor:
        out = model(input_ids=tokens, use_cache=False, **({"logits_to_keep": last} if sliced else {}))
        return out.logits[:, -last:]  # type: ignore[no-any-return]

    def use(longer: Stretched | None) -> None:
        if longer is None:
            hf.restore(model)
        else:
            hf.use(model, rope_parameters=longer.override["rope_parameters"])

    return Model(logits, use, device)


@contextmanager
def _transformers(path: str) -> Iterator[None]:
    """Keep transformers offline and quiet, and report its errors in one line."""
    try:
        with apart():
            yield
    except Exception as error:  # a broken file may raise anything
        line = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"{WHO}: transformers cannot load {path}: {type(error).__name__}: {line[:300]}") from error


def _study_cell(folder: Path, path: str, result: dict[str, Any], trained_len: int | None) -> Target:
    directory = Directory(folder.resolve().parent.parent)
    this = Cell(*(result.get(part) for part in Cell._fields))  # type: ignore[arg-type]
    if this.task != TEXT:
        raise ValueError(f"{WHO}: {path} was trained on the task {this.task}. Give a cell that was trained on text.")
    settings, size = directory.config, read_size(this.size)
    symbols = {byte: i for i, byte in enumerate(bytes.fromhex(directory.run["text"]["symbols"]))}
    fields: dict[str, Any] = {}
    if this.encoding == "rope":
        fields = {"model_type": "llama", "hidden_size": size.d_model, "num_attention_heads": size.n_heads,
                  "num_hidden_layers": size.n_layers, "max_position_embeddings": settings.train_len,
                  "rope_theta": 10000.0}  # fmt: skip

    def encode(text: bytes) -> list[int]:
        return [symbols[byte] for byte in text if byte in symbols]  # its vocabulary has no others

    def load(device: torch.device) -> Model:
        model = cell.build(settings, subjects.find(settings, TEXT, directory.text), this)
        model.load_state_dict(load_file(folder / "model.safetensors"))
        return _study_model(model.to(device).eval(), device)

    trained = trained_len or settings.train_len
    return Target(path, fields, _fingerprint(folder), trained, "byte", [], encode, load)


def _study_model(model: LanguageModel, device: torch.device) -> Model:
    own = model.encoding

    def logits(tokens: Tensor, last: int) -> Tensor:
        return model(tokens, last=last)  # type: ignore[no-any-return]

    def use(longer: Stretched | None) -> None:
        model.encoding = own if longer is None else RoPE.from_config(longer.fields)

    return Model(logits, use, device)
