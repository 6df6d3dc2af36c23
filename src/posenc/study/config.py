"""The configuration of a study."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from posenc import registry
from posenc.study import tasks

# some of each family, few enough that five minutes suffice to train each
DEFAULT_ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "transformer_xl")
TEXT = "text"
_MOST = {"d_model": 4096, "n_layers": 64, "n_heads": 256}


class Size(NamedTuple):
    """The size of a model, written 64x2x4."""

    d_model: int
    n_layers: int
    n_heads: int

    def __str__(self) -> str:
        return "x".join(map(str, self))


class Cell(NamedTuple):
    """One training run of one model."""

    encoding: str
    task: str
    size: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the cell's directory; package.module:Class becomes package.module_Class-1a2b3c4d."""
        # characters that a file system may refuse are replaced, and a hash keeps names distinct
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", self.encoding).lstrip(".")
        if plain != self.encoding:
            plain += "-" + hashlib.sha256(self.encoding.encode()).hexdigest()[:8]
        return f"{plain}-{self.task.replace(':', '.')}-{self.size}-s{self.seed}"


@dataclass(frozen=True)
class Config:
    """A study's encodings, tasks, sizes, lengths, seeds and budget.

    Args:
        encodings: Registered names or package.module:Class.
        tasks: "text", or the name of a task with its format and its position stream: addition:all_reversed@abacus.
        sizes: Sizes of models, such as 64x2x4: width, layers, heads.
        train_len: Bytes of a training sequence of text.
        test_lens: Bytes of context in the tests on text, rising; `train_len` is among them.
        lengths: Lengths of lines to train on and to test at, by the label of a task; the task's own by default.
        seeds: Seeds of data order and initial weights; shared by all encodings.
        budget_s: Seconds for the whole study, which set the number of steps; None if `fixed_steps` is given.
        fixed_steps: The number of steps per cell, or None.
        lines: How many lines of a task are tested at each length.
    """

    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    tasks: tuple[str, ...] = (TEXT,)
    sizes: tuple[str, ...] = ("64x2x4",)
    train_len: int = 64
    test_lens: tuple[int, ...] = (64, 128, 256, 512, 1024)
    lengths: Mapping[str, Mapping[str, Sequence[int]]] | None = None
    seeds: tuple[int, ...] = (0, 1)
    budget_s: float | None = 270.0
    fixed_steps: int | None = None
    lr: float = 6e-3  # at width 64; measured: at 3e-3, learned tables (T5, learned) train far too slowly
    tokens_per_step: int = 1024  # measured with RoPE in equal time: 640 steps reach 2.4 bits, 160 of 4096 reach 2.8
    windows: int = 64
    lines: int = 200

    @property
    def target_bytes(self) -> int:
        """How many bytes at the end of a window are tested; the same bytes at every length."""
        return max(1, self.test_lens[0] // 2)

    def lengths_of(self, label: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths of a task's lines to train on and to test at, both rising."""
        task, _ = tasks.split(label)
        own = (self.lengths or {}).get(label, {})
        return tuple(own.get("train", task.train_lengths)), tuple(own.get("test", task.test_lengths))

    def dims(self, size: str, max_len: int, original_max_len: int) -> registry.Dims:
        """Return the dimensions of a model for the encodings' constructors."""
        d_model, _, n_heads = read_size(size)
        return registry.Dims(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=d_model // n_heads,
            max_len=max_len,
            original_max_len=original_max_len,
        )

    def cells(self) -> list[Cell]:
        """Return every cell, ordered by seed."""
        return [
            Cell(encoding, task, size, seed)
            for seed in self.seeds
            for size in self.sizes
            for task in self.tasks
            for encoding in self.encodings
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        lengths = {label: dict(zip(("train", "test"), self.lengths_of(label), strict=True)) for label in self.puzzles}
        return plain | {"lengths": {k: {w: list(n) for w, n in v.items()} for k, v in lengths.items()}}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Config":
        """Return the configuration that `as_dict` described; ignore other keys."""
        known = {field.name for field in fields(cls)}
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k in known}
        return cls(**given)

    @property
    def puzzles(self) -> tuple[str, ...]:
        """The tasks other than text."""
        return tuple(label for label in self.tasks if label != TEXT)


def read_size(text: str) -> Size:
    """Read a size such as 64x2x4, or 64x2, with a head for each 16 of the width.

    Raises:
        ValueError: The text is no size, is too large, or the heads do not divide the width into even parts.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,2})(?:x([1-9]\d{0,2}))?", text.strip(), re.ASCII)
    size = Size(int(found[1]), int(found[2]), int(found[3] or max(1, int(found[1]) // 16))) if found else None
    if size is None or any(value > most for value, most in zip(size, _MOST.values(), strict=True)):
        raise ValueError(
            f"study: --size must be WIDTHxLAYERS or WIDTHxLAYERSxHEADS, such as 64x2x4, and at most "
            f"{'x'.join(map(str, _MOST.values()))}; got {text!r}."
        )
    if size.d_model % (2 * size.n_heads):
        raise ValueError(
            f"study: --size needs a width that is a multiple of twice the number of heads; got {text!r} with "
            f"{size.n_heads} heads."
        )
    return size


def make_config(
    encodings: Sequence[str] = (),
    train_len: int = 64,
    test_lens: Sequence[int] = (),
    seeds: int = 2,
    budget_s: float | None = 270.0,
    steps: int | None = None,
    task: Sequence[str] = (),
    sizes: Sequence[str] = (),
    lengths: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
) -> Config:
    """Check a user's options and return the configuration.

    Args:
        encodings: Names; none means the default ones.
        train_len: Bytes of a training sequence of text.
        test_lens: Bytes of context in addition to `train_len`; none means 2, 4, 8 and 16 times `train_len`.
        seeds: The number of seeds.
        budget_s: Seconds; None if steps are given.
        steps: Steps per cell; None if a budget is given.
        task: Labels of tasks; none means text.
        sizes: Sizes of models; none means 64x2x4.
        lengths: Lengths of lines under "train" and "test", by the label of a task.

    Raises:
        ValueError: A number out of range, a name twice, an unknown encoding or task, or a class that does
            not fit the study's model.
        TypeError: A class that is no encoding, or needs options.
    """
    if not 2 <= train_len <= 2**16 // (1 if test_lens else 16):
        raise ValueError(
            f"study: --train-len must lie in 2..65536, or in 2..4096 if --test-len is left out; got {train_len}."
        )
    of_text = tuple(sorted({train_len, *(test_lens or (train_len * 2**i for i in range(5)))}))
    if of_text[0] < 2 or of_text[-1] > 2**16:
        raise ValueError(f"study: --test-len must lie in 2..65536; got {', '.join(map(str, of_text))}.")
    if not 1 <= seeds <= 100:
        raise ValueError(f"study: --seeds must lie in 1..100; got {seeds}.")
    if budget_s is not None and not budget_s > 0:
        raise ValueError(f"study: --budget must be a positive time such as 240s; got {budget_s:g}s.")
    names = tuple(name if ":" in name else registry.card(name).name for name in encodings) or DEFAULT_ENCODINGS
    labels = tuple(label if label == TEXT else tasks.label(label) for label in task) or (TEXT,)
    written = tuple(str(read_size(size)) for size in sizes) or Config.sizes
    for option, given in (("--encodings", names), ("--task", labels), ("--size", written)):
        if twice := sorted({name for name in given if given.count(name) > 1}):
            raise ValueError(f"study: {option} lists {', '.join(twice)} more than once. List each once.")
    config = Config(
        names, labels, written, train_len, of_text, _lengths(lengths, labels), tuple(range(seeds)), budget_s, steps
    )
    for name in names:
        cls: Any = registry.find_class(name)  # a class for images may also need options that the study does not set
        n_axes = cls.n_axes if cls.n_axes != 1 else _construct(name, config).n_axes
        if n_axes != 1:
            raise ValueError(f"study: text has one position axis, but {name} needs {n_axes}. Leave it out.")
    return config


def _lengths(given: Mapping[str, Any] | None, labels: Sequence[str]) -> dict[str, dict[str, list[int]]] | None:
    """Check that lengths are for tasks of this study, and that the tasks have lines of these lengths."""
    checked: dict[str, dict[str, list[int]]] = {}
    for label, own in (given or {}).items():
        if label not in labels or label == TEXT or not isinstance(own, Mapping) or set(own) - {"train", "test"}:
            raise ValueError(
                f"study: lengths must be given as train and test of a task of this study ({', '.join(labels)}; for "
                f"text use --train-len and --test-len); got {label!r}: {own!r}."
            )
        task = tasks.split(label)[0]
        for word, values in own.items():
            whole = isinstance(values, (list, tuple)) and values and all(type(n) is int for n in values)
            if not whole or not all(n in task.lengths for n in values):
                raise ValueError(
                    f"study: lengths.{label}.{word} must list lengths of {task.name}, {task.lengths[0]} to "
                    f"{task.lengths[-1]} in steps of {task.lengths.step}; got {values!r}."
                )
        checked[label] = {word: sorted(set(values)) for word, values in own.items()}
        train, test = (checked[label].get(w, getattr(task, f"{w}_lengths")) for w in ("train", "test"))
        if max(train) > max(test):
            raise ValueError(
                f"study: {label} is trained up to {max(train)} but tested only up to {max(test)}. Test longer."
            )
    return checked or None


def _construct(name: str, config: Config) -> Any:
    try:
        return registry.create(name, dims=config.dims(config.sizes[0], max(config.test_lens), config.train_len))
    except TypeError as error:
        if "needs" not in str(error):
            raise
        raise TypeError(
            "study: it constructs encodings with only d_model, n_heads, n_kv_heads, head_dim, max_len and "
            f"original_max_len. {error} Give the other arguments defaults."
        ) from error
