"""Read the trained models of a study's directory, which is untrusted: only JSON and safetensors, no pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from posenc import registry
from posenc.config.values import short
from posenc.explorer import shelf
from posenc.languages import tr
from posenc.nn import LanguageModel
from posenc.study.config import TEXT, Cell, Config, read_size
from posenc.study.store import SCHEMA
from posenc.study.text import BUILT_IN, load

_WHO = "explore"
_MOST_BYTES = 2**28  # of one cell's weights, and of run.json
_LISTS = {"encodings": str, "tasks": str, "sizes": str, "seeds": int, "test_lens": int}
_MOST = 256  # entries of each list


@dataclass(frozen=True)
class Study:
    """A study's directory.

    Args:
        path: The directory.
        config: The study's configuration.
        symbols: The bytes that token ids stand for, in order.
        cells: Finished cells of the text task, by name.
    """

    path: Path
    config: Config
    symbols: bytes
    cells: Mapping[str, Cell]

    def model(self, cell: str) -> LanguageModel:
        """Return the trained model of a cell, in evaluation mode.

        Raises:
            ValueError: There is no such cell, or its weights do not fit its encoding.
        """
        if cell not in self.cells:
            raise ValueError(
                tr(
                    "explore: the study has no finished cell {name:s}. Known: {known:s}.",
                    name=short(cell),
                    known=", ".join(self.cells),
                )
            )
        return _load(self, cell, (self.path / "cells" / cell / "model.safetensors").stat().st_mtime_ns)

    def __hash__(self) -> int:
        return hash((self.path, self.symbols))

    def tokens(self, text: str) -> tuple[list[int], str]:
        """Return the ids of a text's known characters, and the unknown characters."""
        number = {byte: i for i, byte in enumerate(self.symbols)}
        known, unknown = list[int](), dict[str, None]()
        for character in text:
            ids = [number.get(byte) for byte in character.encode()]
            if None in ids:
                unknown[character] = None
            known += [i for i in ids if i is not None and None not in ids]
        return known, "".join(unknown)


def open_study() -> Study:
    """Return the study that the explorer was started with.

    Raises:
        ValueError: It was started without one, or the directory cannot be read.
    """
    path = shelf.study()
    if path is None:
        raise ValueError(tr("explore: no study is open. Run posenc explore with a directory that posenc study wrote."))
    run = _read_run(path)
    config = _config(run)
    symbols = _symbols(run, config)
    every = {cell.name: cell for cell in config.cells() if cell.task == TEXT}
    cells = {name: cell for name, cell in every.items() if (path / "cells" / name / "model.safetensors").is_file()}
    if not cells:
        raise ValueError(
            tr("explore: the study has no finished cell of the task text. Run posenc study again to continue it.")
        )
    return Study(path, config, symbols, cells)


def _read_run(path: Path) -> dict[str, Any]:
    try:
        if (path / "run.json").stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        run = json.loads((path / "run.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{_WHO}: the study's run.json cannot be read: {error}.") from error
    if not isinstance(run, dict) or run.get("schema") != SCHEMA or not isinstance(run.get("config"), dict):
        raise ValueError(f"{_WHO}: run.json is not the record of a study that this version can read (schema {SCHEMA}).")
    return run


def _config(run: Mapping[str, Any]) -> Config:
    """Return the configuration; every value that a model depends on is checked."""
    config = Config.from_dict(run["config"])
    if type(config.train_len) is not int or not 1 <= config.train_len <= 2**16:
        raise ValueError(f"{_WHO}: train_len in run.json must be from 1 to 65536; got {short(config.train_len)}.")
    for key, kind in _LISTS.items():
        value = getattr(config, key)
        if not isinstance(value, tuple) or not 0 < len(value) <= _MOST or not all(type(v) is kind for v in value):
            raise ValueError(f"{_WHO}: run.json must list {key}; got {short(value)}.")
    if max(config.test_lens) > 2**16:
        raise ValueError(f"{_WHO}: test_lens in run.json must be at most 65,536; got {max(config.test_lens):,}.")
    for size in config.sizes:
        read_size(size)
    return config


def _symbols(run: Mapping[str, Any], config: Config) -> bytes:
    """Return the bytes that token ids stand for: from the record, or from the text that comes with Python."""
    record = run.get("text") if isinstance(run.get("text"), dict) else {}
    assert isinstance(record, dict)
    if isinstance(hexadecimal := record.get("symbols"), str) and len(hexadecimal) <= 512:
        try:
            return bytes.fromhex(hexadecimal)
        except ValueError as error:
            raise ValueError(f"{_WHO}: symbols in run.json must be hexadecimal; got {short(hexadecimal)}.") from error
    if record.get("name") == BUILT_IN:
        text = load((), config)
        if text.facts(config)["sha256"] == record.get("sha256"):
            return text.alphabet
    raise ValueError(
        f"{_WHO}: run.json has no symbols, the bytes that token ids stand for: an older version wrote it. "
        "Run the study again."
    )


@lru_cache(maxsize=16)
def _load(study: Study, cell: str, changed: int) -> LanguageModel:
    """Build a cell's model as the study does, and load its trained weights."""
    name, _, size, seed = study.cells[cell]
    path = study.path / "cells" / cell / "model.safetensors"
    if ":" in name:
        raise ValueError(
            tr("explore: {cell:s} uses a user class, which a directory may not name. Choose another cell.", cell=cell)
        )
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{_WHO}: the weights of {cell} have over {_MOST_BYTES:,} bytes, too many to read.")
    config, (d_model, n_layers, n_heads) = study.config, read_size(size)
    try:
        with safe_open(str(path), "pt") as file:
            vocab_size = file.get_slice("embedding.tokens.weight").get_shape()[0]
        if vocab_size != len(study.symbols):
            raise ValueError(f"they have {vocab_size} tokens, and the text has {len(study.symbols)}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LanguageModel(
                vocab_size=vocab_size,
                d_model=d_model,
                n_layers=n_layers,
                n_heads=n_heads,
                encoding=registry.create(name, dims=config.dims(size, max(config.test_lens), config.train_len)),
            )
        model.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{_WHO}: the weights of {cell} do not fit the study: {reason}.") from error
    return model.eval()
