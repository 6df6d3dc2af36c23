"""What a study is asked to do, and everything that makes two studies the same."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posenc import registry

DEFAULT_ENCODINGS = (
    "nope", "sinusoidal", "learned", "binary", "rope", "xpos",
    "alibi", "t5", "kerple", "relative_bias", "transformer_xl",
)  # fmt: skip
# Never marked undertrained: what they lack at the trained length is position, not steps.
EXCUSED = ("nope", "binary")
# Asked for more than the others: on the built-in text 2.6 bits per byte instead of 3.2.
DEMANDING = {"rope": 2.6 / 3.2}


@dataclass(frozen=True)
class Config:
    """A study: which encodings, on what, how long.

    Args:
        encodings: Registered names or package.module:Class.
        train_len: Tokens of a training sequence.
        test_lens: Tokens of context in the tests, rising; `train_len` is among them.
        seeds: Of data order and initial weights; shared by all encodings.
        budget_s: Seconds for everything, from which the number of steps follows; None where that is given.
        fixed_steps: The number of steps of a cell, or None.
    """

    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    train_len: int = 64
    test_lens: tuple[int, ...] = (64, 128, 256, 512, 1024)
    seeds: tuple[int, ...] = (0, 1)
    budget_s: float | None = 240.0
    fixed_steps: int | None = None
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    lr: float = 6e-3  # measured: at 280 steps, 3e-3 leaves what is learned (T5, learned) far behind
    tokens_per_step: int = 4096
    windows: int = 96

    @property
    def batch_size(self) -> int:
        """Sequences of one training step."""
        return max(1, self.tokens_per_step // self.train_len)

    @property
    def target_bytes(self) -> int:
        """The last so many bytes of a window are what is tested, at every length the same ones."""
        return max(1, self.test_lens[0] // 2)

    @property
    def dims(self) -> registry.Dims:
        """What the model tells encodings of itself."""
        return registry.Dims(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads,
            head_dim=self.d_model // self.n_heads,
            max_len=max(self.test_lens),
            original_max_len=self.train_len,
        )

    def cells(self) -> list[tuple[str, int]]:
        """Every (encoding, seed), the first seed of all encodings first."""
        return [(encoding, seed) for seed in self.seeds for encoding in self.encodings]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        return plain | {"batch_size": self.batch_size, "target_bytes": self.target_bytes}


def make_config(
    encodings: Sequence[str],
    train_len: int,
    test_lens: Sequence[int],
    seeds: int,
    budget_s: float | None,
    steps: int | None = None,
) -> Config:
    """Check what a user asks for.

    Args:
        encodings: Names; none means the default ones.
        train_len: Tokens of a training sequence.
        test_lens: Tokens of context beside `train_len`; none means 2, 4, 8 and 16 times as many.
        seeds: How many.
        budget_s: Seconds; None if steps are given.
        steps: Of a cell; None if a budget is given.

    Raises:
        ValueError: A number out of range, a name twice, an unknown encoding, or a class that does
            not fit the study's model.
        TypeError: A class that is no encoding, or needs options.
    """
    if not 2 <= train_len <= 2**16 // (1 if test_lens else 16):
        raise ValueError(
            f"study: --train-len must lie in 2..65536, and in 2..4096 where tests go to 16 times it; got {train_len}."
        )
    lengths = tuple(sorted({train_len, *(test_lens or (train_len * 2**i for i in range(5)))}))
    if lengths[0] < 2 or lengths[-1] > 2**16:
        raise ValueError(f"study: --test-len must lie in 2..65536; got {', '.join(map(str, lengths))}.")
    if not 1 <= seeds <= 100:
        raise ValueError(f"study: --seeds must lie in 1..100; got {seeds}.")
    if budget_s is not None and not budget_s > 0:
        raise ValueError(f"study: --budget must be a positive time such as 240s; got {budget_s:g}s.")
    names = tuple(name if ":" in name else registry.card(name).name for name in encodings) or DEFAULT_ENCODINGS
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"study: --encodings names {', '.join(twice)} more than once; name each one once.")
    config = Config(names, train_len, lengths, tuple(range(seeds)), budget_s, steps)
    for name in names:
        cls: Any = registry.find_class(name)  # a class for images may also ask for what the study does not know
        n_axes = cls.n_axes if cls.n_axes != 1 else _construct(name, config).n_axes
        if n_axes != 1:
            raise ValueError(f"study: text has one position axis, and {name} works on {n_axes}; leave it out.")
    return config


def _construct(name: str, config: Config) -> Any:
    try:
        return registry.create(name, dims=config.dims)
    except TypeError as error:
        if "needs" not in str(error):
            raise
        raise TypeError(
            "study: it constructs encodings with d_model, n_heads, n_kv_heads, head_dim, max_len and original_max_len "
            f"alone. {error} Here, give other arguments a default."
        ) from error
