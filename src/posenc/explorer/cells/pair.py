"""A query and a key that are explained, and the numbers that an encoding's own code makes on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.encoding import Placed
from posenc.measure.asking import place, read_positions


@dataclass(frozen=True)
class Pair:
    """One query and one key, as one head sees them.

    Args:
        encoding: In float64, resolved for the length.
        q_pos: Along axis 0, where there are several.
        k_pos: The same of the key.
        head: Of the queries.
        q: Contents of the query in all heads, before any turn; None stands for ones.
        k: The same of the key.
        text: The tokens from position 0 on, of an encoding that reads them.
    """

    encoding: Any
    q_pos: float
    k_pos: float
    head: int
    q: Float64[Tensor, "n_heads head_dim"] | None = None
    k: Float64[Tensor, "n_heads head_dim"] | None = None
    text: Float64[Tensor, "1 length d_model"] | None = None

    @property
    def distance(self) -> float:
        """How far the query looks back."""
        return self.q_pos - self.k_pos

    def of_query(self) -> Any:
        """Return the query's lanes in this head, as an array."""
        return self._lanes(self.q)

    def of_key(self) -> Any:
        """Return the key's lanes in this head, as an array."""
        return self._lanes(self.k)

    def bias_of(self, encoding: Any) -> Float64[Tensor, " n_heads"]:
        """Return a bias in all heads, of an encoding that looks at no contents."""
        placed, k_placed = (self.placed(encoding, p) for p in (self.q_pos, self.k_pos))
        q = torch.ones(1, encoding.n_heads, 1, 1, dtype=torch.float64)
        found: Tensor = encoding.bias(q, q, placed, k_placed)[0, :, 0, 0]
        return found

    @staticmethod
    def placed(encoding: Any, pos: float) -> Placed:
        """Place one position."""
        whole = int(pos) if pos == int(pos) else pos
        return place(encoding, read_positions("explore", encoding, whole))

    def _lanes(self, content: Tensor | None) -> Any:
        if content is None:
            return torch.ones(self.encoding.head_dim, dtype=torch.float64).numpy()
        return content[self.head].numpy()


@dataclass(frozen=True)
class Call:
    """A call of a function of torch: its name, what it was given, and what it returned."""

    name: str
    given: tuple[Any, ...]
    named: dict[str, Any]
    out: Tensor


class Watch(TorchFunctionMode):
    """Note what functions of torch get and return while an encoding's own code runs.

    Networks here are weights and functions, and no modules on which a hook could be put.

    Args:
        names: Of the functions that count.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.seen: list[Call] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function, and note it."""
        out = func(*args, **(kwargs or {}))
        if (name := getattr(func, "__name__", "")) in self.names:
            self.seen.append(Call(name, args, kwargs or {}, out))
        return out

    def results(self, *names: str) -> list[Tensor]:
        """Return what functions of these names returned, in order."""
        return [call.out for call in self.seen if call.name in names]
