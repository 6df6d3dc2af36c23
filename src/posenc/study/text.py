"""The text of a study: bytes, split into a part to train on and a part to test on."""

import hashlib
import math
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from posenc.study.config import Config

BUILT_IN = "pydoc_data.topics"


@dataclass(frozen=True)
class Text:
    """Bytes and where they came from; `source_version` says which edition."""

    name: str
    data: bytes
    source_version: str

    @property
    def alphabet(self) -> bytes:
        """The bytes that occur, in order: the model's vocabulary."""
        return bytes(sorted(set(self.data)))

    @property
    def entropy(self) -> float:
        """Bits per byte of a model that knows how often each byte occurs, and nothing else."""
        return -sum(n / len(self.data) * math.log2(n / len(self.data)) for n in Counter(self.data).values())

    @property
    def undertrained_above(self) -> float:
        """Bits per byte above which a cell has not learned enough to be compared.

        3.2 on the built-in text, whose bytes alone give 4.70; the same share on any other.
        """
        return 3.2 if self.name == BUILT_IN else round(self.entropy * 3.2 / 4.70, 2)

    def split(self, config: Config) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
        """Return token ids to train on and, from the end, to test on: a tenth, or two longest windows."""
        n_test = max(len(self.data) // 10, 2 * max(config.test_lens))
        number = {byte: i for i, byte in enumerate(self.alphabet)}
        tokens = torch.tensor([number[byte] for byte in self.data])
        return tokens[: len(tokens) - n_test], tokens[len(tokens) - n_test :]

    def facts(self, config: Config) -> dict[str, Any]:
        """Return what the results say of the text."""
        train, test = self.split(config)
        return {
            "name": self.name,
            "sha256": hashlib.sha256(self.data).hexdigest(),
            "bytes": len(self.data),
            "train_bytes": len(train),
            "test_bytes": len(test),
            "alphabet": len(self.alphabet),
            "symbols": self.alphabet.hex(),  # what token ids stand for, in order
            "entropy": round(self.entropy, 4),
            "undertrained_above": self.undertrained_above,
            "source_version": self.source_version,
        }


def load(files: Sequence[str], config: Config) -> Text:
    """Read the text: the given files one after another, or what every Python installation carries.

    Raises:
        ValueError: A file that cannot be read, an empty text, or one too short for the test lengths.
    """
    text = _from_files(files) if files else _built_in()
    if not text.data:
        raise ValueError(f"study: the text is empty; got {text.name}. Give --text a file with prose in it.")
    needed = 4 * max(config.test_lens)
    if len(text.data) < needed:
        raise ValueError(
            f"study: the text is too short: {len(text.data)} bytes in {text.name}, and a longest window of "
            f"{max(config.test_lens)} bytes needs {needed} (twice for training, twice for tests). Give more text, "
            "or a smaller --test-len."
        )
    if len(text.alphabet) < 2:
        raise ValueError(f"study: the text repeats a single byte, so nothing can be learned; got {text.name}.")
    return text


def _built_in() -> Text:
    topics: dict[str, str] = import_module(BUILT_IN).topics
    # Some topics stand word for word inside others, below a heading that is underlined with another sign;
    # a test must not be a passage that was trained on.
    bodies = {_body(topics[key]): topics[key].strip() for key in sorted(topics)}
    whole = [topic for body, topic in bodies.items() if not any(body in o for b, o in bodies.items() if b != body)]
    prose = "\n\n".join(whole)
    return Text(BUILT_IN, prose.encode(), f"Python {platform.python_version()}")


def _body(topic: str) -> str:
    """Return a topic without its heading and the line of signs below it."""
    lines = topic.strip().split("\n")
    underlined = len(lines) > 2 and len(set(lines[1])) == 1
    return "\n".join(lines[2:] if underlined else lines).strip()


def _from_files(files: Sequence[str]) -> Text:
    parts = []
    for file in files:
        try:
            parts.append(Path(file).read_bytes())
        except OSError as error:
            raise ValueError(f"study: cannot read --text {file}: {error.strerror}. Give the path of a file.") from error
    return Text(", ".join(files), b"\n".join(parts), f"{len(files)} file{'s' * (len(files) > 1)}")
