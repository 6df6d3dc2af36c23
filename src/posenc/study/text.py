"""The text of a study: bytes, split into a training part and a test part."""

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
    """Bytes, their source, and the source's version."""

    name: str
    data: bytes
    source_version: str

    @property
    def alphabet(self) -> bytes:
        """The distinct bytes, sorted: the model's vocabulary."""
        return bytes(sorted(set(self.data)))

    @property
    def entropy(self) -> float:
        """Bits per byte of a model that predicts only by the frequency of each byte."""
        return -sum(n / len(self.data) * math.log2(n / len(self.data)) for n in Counter(self.data).values())

    @property
    def undertrained_above(self) -> float:
        """Bits per byte above which a cell has learned too little to be compared.

        3.2 on the built-in text, whose entropy is 4.70; the same share of the entropy on any other.
        """
        return 3.2 if self.name == BUILT_IN else round(self.entropy * 3.2 / 4.70, 2)

    def split(self, config: Config) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
        """Return token ids for training and, from the end, for tests: a tenth, or twice the longest window."""
        n_test = max(len(self.data) // 10, 2 * max(config.test_lens))
        number = {byte: i for i, byte in enumerate(self.alphabet)}
        tokens = torch.tensor([number[byte] for byte in self.data])
        return tokens[: len(tokens) - n_test], tokens[len(tokens) - n_test :]

    def facts(self, config: Config) -> dict[str, Any]:
        """Return the facts about the text for the results."""
        train, test = self.split(config)
        return {
            "name": self.name,
            "sha256": hashlib.sha256(self.data).hexdigest(),
            "bytes": len(self.data),
            "train_bytes": len(train),
            "test_bytes": len(test),
            "alphabet": len(self.alphabet),
            "symbols": self.alphabet.hex(),  # the bytes of the token ids, in order
            "entropy": round(self.entropy, 4),
            "undertrained_above": self.undertrained_above,
            "source_version": self.source_version,
        }


def load(files: Sequence[str], config: Config) -> Text:
    """Read the text: the given files joined, or the built-in text, which every Python installation contains.

    Raises:
        ValueError: A file that cannot be read, an empty text, or one too short for the test lengths.
    """
    text = _from_files(files) if files else _built_in()
    if not text.data:
        raise ValueError(f"study: the text is empty; got {text.name}. Give --text a file with prose.")
    needed = 4 * max(config.test_lens)
    if len(text.data) < needed:
        raise ValueError(
            f"study: the text is too short: {len(text.data)} bytes in {text.name}, but a longest window of "
            f"{max(config.test_lens)} bytes needs {needed} (twice for training, twice for tests). Give more text, "
            "or a smaller --test-len."
        )
    if len(text.alphabet) < 2:
        raise ValueError(
            f"study: the text repeats a single byte, so there is nothing to learn; got {text.name}. Give another text."
        )
    return text


def _built_in() -> Text:
    topics: dict[str, str] = import_module(BUILT_IN).topics
    # Some topics are repeated inside others, under a heading with another underline. Those are left out, or the
    # tests could contain training text.
    bodies = {_body(topics[key]): topics[key].strip() for key in sorted(topics)}
    whole = [topic for body, topic in bodies.items() if not any(body in o for b, o in bodies.items() if b != body)]
    prose = "\n\n".join(whole)
    return Text(BUILT_IN, prose.encode(), f"Python {platform.python_version()}")


def _body(topic: str) -> str:
    """Return a topic without its heading and the underline."""
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
