"""What a study is asked to do, and everything that makes two studies the same."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from posenc import registry
from posenc.study import tasks

# of each family, so few that five minutes train each of them enough
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
    """One training of one model."""

    encoding: str
    task: str
    size: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its directory; package.module:Class becomes package.module_Class-1a2b3c4d."""
        # letters that a file system may not take are replaced, and a hash keeps two names apart
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", self.encoding).lstrip(".")
        if plain != self.encoding:
            plain += "-" + hashlib.sha256(self.encoding.encode()).hexdigest()[:8]
        return f"{plain}-{self.task.replace(':', '.')}-{self.size}-s{self.seed}"


@dataclass(frozen=True)
class Config:
    """A study: which encodings, on what, how long.

    Args:
        encodings: Registered names or package.module:Class.
        tasks: "text", or the name of a task with its format and its position stream: addition:all_reversed@abacus.
        sizes: Of models, such as 64x2x4: width, layers, heads.
        train_len: Bytes of a training sequence of text.
        test_lens: Bytes of context in the tests on text, rising; `train_len` is among them.
        lengths: Lengths of lines to train on and to test at, by the label of a task; its own where there are none.
        seeds: Of data order and initial weights; shared by all encodings.
        budget_s: Seconds for everything, from which the number of steps follows; None where that is given.
        fixed_steps: The number of steps of a cell, or None.
        lines: Of a task, tested at each length.
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
    lr: float = 6e-3  # at width 64; measured: 3e-3 leaves what is learned (T5, learned) far behind
    tokens_per_step: int = 1024  # measured: in the same time, 640 such steps reach 2.4 bits with RoPE, 160 of 4096 2.8
    windows: int = 64
    lines: int = 200

    @property
    def target_bytes(self) -> int:
        """The last so many bytes of a window are what is tested, at every length the same ones."""
        return max(1, self.test_lens[0] // 2)

    def lengths_of(self, label: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths of a task's lines to train on and to test at, both rising."""
        task, _ = tasks.split(label)
        own = (self.lengths or {}).get(label, {})
        return tuple(own.get("train", task.train_lengths)), tuple(own.get("test", task.test_lengths))

    def dims(self, size: str, max_len: int, original_max_len: int) -> registry.Dims:
        """Return what a model tells encodings of itself."""
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
        """Every cell, the first seed of all of them first."""
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
        """Return the configuration that `as_dict` described; other keys are passed over."""
        known = {field.name for field in fields(cls)}
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k in known}
        return cls(**given)

    @property
    def puzzles(self) -> tuple[str, ...]:
        """The tasks other than text."""
        return tuple(label for label in self.tasks if label != TEXT)


def read_size(text: str) -> Size:
    """Read a size such as 64x2x4, or 64x2 with a head for each 16 of the width.

    Raises:
        ValueError: It is no size, is too large, or the heads do not divide the width into even parts.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,2})(?:x([1-9]\d{0,2}))?", text.strip(), re.ASCII)
    size = Size(int(found[1]), int(found[2]), int(found[3] or max(1, int(found[1]) // 16))) if found else None
    if size is None or any(value > most for value, most in zip(size, _MOST.values(), strict=True)):
        raise ValueError(
            f"study: --size must be WIDTHxLAYERS or WIDTHxLAYERSxHEADS, such as 64x2x4, and at most "
            f"{'x'.join(map(str, _MOST.values()))}; got {text!r}."
        )
    if size.d_model % (2 * size.n_heads):
        raise ValueError(f"study: --size needs heads of even width; got {text!r}, which has {size.n_heads} heads.")
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
    """Check what a user asks for.

    Args:
        encodings: Names; none means the default ones.
        train_len: Bytes of a training sequence of text.
        test_lens: Bytes of context in addition to `train_len`; none means 2, 4, 8 and 16 times as many.
        seeds: How many.
        budget_s: Seconds; None if steps are given.
        steps: Of a cell; None if a budget is given.
        task: Labels of tasks; none means text.
        sizes: Of models; none means 64x2x4.
        lengths: For labels of tasks, "train" and "test": lengths of lines.

    Raises:
        ValueError: A number out of range, a name twice, an unknown encoding or task, or a class that does
            not fit the study's model.
        TypeError: A class that is no encoding, or needs options.
    """
    if not 2 <= train_len <= 2**16 // (1 if test_lens else 16):
        raise ValueError(
            f"study: --train-len must lie in 2..65536, and in 2..4096 where tests go to 16 times it; got {train_len}."
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
            raise ValueError(f"study: {option} names {', '.join(twice)} more than once; name each one once.")
    config = Config(
        names, labels, written, train_len, of_text, _lengths(lengths, labels), tuple(range(seeds)), budget_s, steps
    )
    for name in names:
        cls: Any = registry.find_class(name)  # a class for images may also ask for what the study does not know
        n_axes = cls.n_axes if cls.n_axes != 1 else _construct(name, config).n_axes
        if n_axes != 1:
            raise ValueError(f"study: text has one position axis, and {name} works on {n_axes}; leave it out.")
    return config


def _lengths(given: Mapping[str, Any] | None, labels: Sequence[str]) -> dict[str, dict[str, list[int]]] | None:
    """Check lengths of lines: of tasks that are asked for, and of lines that there are."""
    checked: dict[str, dict[str, list[int]]] = {}
    for label, own in (given or {}).items():
        if label not in labels or label == TEXT or not isinstance(own, Mapping) or set(own) - {"train", "test"}:
            raise ValueError(
                f"study: lengths are of a task that is asked for ({', '.join(labels)}; those of text are --train-len "
                f"and --test-len), and are called train and test; got {label!r}: {own!r}."
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
            raise ValueError(f"study: {label} is trained up to {max(train)} and tested up to {max(test)}; test longer.")
    return checked or None


def _construct(name: str, config: Config) -> Any:
    try:
        return registry.create(name, dims=config.dims(config.sizes[0], max(config.test_lens), config.train_len))
    except TypeError as error:
        if "needs" not in str(error):
            raise
        raise TypeError(
            "study: it constructs encodings with d_model, n_heads, n_kv_heads, head_dim, max_len and original_max_len "
            f"alone. {error} Here, give other arguments a default."
        ) from error
