"""An encoding in a small attention layer with random learned tensors, as the subject of measurements."""

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from posenc import positions
from posenc.encoding import Encoding, Placed
from posenc.placed import tensors
from posenc.private import watching

LENGTH = 1024  # the length for which an encoding is resolved, if it depends on the length
LIMIT = 2**53  # beyond it float64, in which angles are computed, does not have every integer
HOOKS = ("embed", "rotate_q", "bias", "rescore", "rotate_v")  # rotate_k shows nothing that rotate_q does not
REFUSALS = (ValueError, IndexError, OverflowError, RuntimeError)  # errors by which posenc or torch refuses a position


class Probe:
    """An encoding with random parameters inside a self-attention layer with random projections.

    Args:
        encoding: The encoding. A copy is set to evaluation mode and resolved; its parameters are drawn from N(0, 1).
        dtype: The dtype of all tensors, float64 or float32.
        index: The layer, if each has its own encoding.
        seed: The seed of all draws. The global random state is neither read nor written.
        length: The length for which the encoding is resolved; None leaves it unresolved.
    """

    def __init__(
        self, encoding: Encoding, dtype: torch.dtype, index: int = 0, *, seed: int = 2017, length: int | None = LENGTH
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.dtype, self.index = dtype, index
        original = copy.deepcopy(encoding)
        self.original = (original if length is None else original.resolve(length)).eval()
        self.encoding = copy.deepcopy(self.original).to(dtype)
        for parameter in self.encoding.parameters():
            parameter.data = self.normal(*parameter.shape).to(parameter.dtype)
        own = self._find("n_kv_heads", 0)  # for an encoding that rotates key heads differently
        self.n_heads = self._find("n_heads", 2 * own or 4)
        self.n_kv_heads = own or (self.n_heads // 2 if self.n_heads % 2 == 0 else self.n_heads)
        self.head_dim = self._find("head_dim", 8)
        self.d_model = self._find("d_model", 32)
        widths = {"q": self.n_heads, "k": self.n_kv_heads, "v": self.n_kv_heads}
        self.projections = {
            name: self.normal(self.d_model, heads * self.head_dim) / self.d_model**0.5 for name, heads in widths.items()
        }

    def _find(self, fact: str, default: Any) -> Any:
        return find_fact(self.encoding, fact, default)

    def normal(self, *shape: int) -> Tensor:
        """Draw from N(0, 1)."""
        return torch.randn(shape, generator=self.random, dtype=torch.float64).to(self.dtype)

    def place(self, pos: Tensor, x: Tensor | None, *, past: Placed | None = None) -> Placed:
        """Place in the precision of the probe."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return self.encoding.place(pos, x if self.encoding.reads_x else None, past=past, dtype=wide)

    def project(self, x: Tensor, placed: Placed) -> tuple[Tensor, Tensor, Tensor]:
        """Embed tokens and return q, k, v."""
        x = self.encoding.embed(x, placed)
        q, k, v = (
            (x @ self.projections[name].to(x.dtype)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in "qkv"
        )
        return q, k, v

    def scores(self, q: Tensor, k: Tensor, placed: Placed) -> Tensor:
        """Compute the scores of one layer by the contract's hooks."""
        return form_scores(*self.encoding.layer(self.index, placed), q, k)

    def along(self, pos: Shaped[Tensor, " n"]) -> Shaped[Tensor, "n *axes"]:
        """Let positions run along axis 0, with the other axes at 0."""
        return torch.nn.functional.pad(pos[:, None], (0, self.encoding.n_axes - 1)) if self.encoding.n_axes > 1 else pos

    @torch.no_grad()
    def signatures(
        self, pos: Shaped[Tensor, " n"], hooks: Iterable[str] = HOOKS, token: Tensor | None = None
    ) -> Float[Tensor, "n width"]:
        """Return the results of the hooks for the same content at each position.

        A row concatenates the embedded token, the rotated query, the bias of the query and a key at position 0 for each
        head, the score map's result for a score of zero between the two, and the rotated value. Hooks that the encoding
        does not use are left out; if it uses none, there is one column of zeros.

        Args:
            pos: Positions along axis 0.
            hooks: The hooks to include: "embed", "rotate_q", "rotate_k", "bias", "rescore" and "rotate_v".
            token: (d_model,); by default `self.token`.
        """
        n = len(pos)
        x = (self.token if token is None else token).expand(1, n, -1)
        query, key = (self._content[name].expand(1, -1, n, -1) for name in ("query", "key"))
        placed = self.place(self.along(pos), x)
        first = self.place(self.along(pos.new_zeros(1)), x[:, :1])
        embedded = self.encoding.embed(x, placed)
        encoding, placed = self.encoding.layer(self.index, placed)
        first = self.encoding.layer(self.index, first)[1]
        results = {
            "embed": lambda: None if embedded is x else embedded[0],
            "rotate_q": lambda: _rows(encoding.rotate_q(query, placed), query),
            "rotate_k": lambda: _rows(encoding.rotate_k(key, placed), key),
            "bias": lambda: _rows(encoding.bias(query, key[:, :, :1], placed, first), None),
            "rescore": lambda: _rows(_rescore(encoding, query, key[:, :, :1], placed, first), None),
            "rotate_v": lambda: _rows(encoding.rotate_v(key, placed), key),
        }
        shown = [rows for hook in hooks if (rows := results[hook]()) is not None]
        return torch.cat(shown, -1) if shown else query.new_zeros(n, 1)

    @cached_property
    def token(self) -> Float[Tensor, " d_model"]:
        """Zeros, to see only the added vectors; or a random token, if zeros do not show positions (products)."""
        zeros = self.projections["q"].new_zeros(self.d_model)
        pos = positions.arange(min(16, LENGTH if self.longest is None else self.longest + 1))
        seen = self.signatures(pos, ["embed"], zeros)
        return self._content["token"] if bool((seen == seen[:1]).all()) else zeros

    @cached_property
    def longest(self) -> int | None:
        """The largest position that is not refused, found by trials; None if `LIMIT` is not refused."""
        self._ask(0)  # raises if even position 0 is refused
        if self._accepts(LIMIT):
            return None
        accepted, refused = 0, LIMIT
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            accepted, refused = (middle, refused) if self._accepts(middle) else (accepted, middle)
        return accepted

    def line(self, n: int, *, start: int = 0) -> Shaped[Tensor, " count"]:
        """Count n positions from `start`, but not beyond the longest."""
        end = start + n if self.longest is None else min(start + n, self.longest + 1)
        return positions.arange(max(end - start, 0), start=start)

    def _accepts(self, position: int) -> bool:
        try:
            self._ask(position)
        except REFUSALS:
            return False
        return True

    def _ask(self, position: int) -> None:
        self.signatures(torch.tensor([position]), token=self._content["token"])

    @cached_property
    def _content(self) -> dict[str, Tensor]:
        """The token, query and key that are used at every position."""
        n_heads, n_kv_heads = count_heads(self.encoding)
        of_q, of_k = ((1, n, 1, self.head_dim) for n in (n_heads, n_kv_heads))
        return {"token": self.normal(self.d_model), "query": self.normal(*of_q), "key": self.normal(*of_k)}


def find_fact(encoding: Encoding, fact: str, default: Any) -> Any:
    """Look for a host fact, such as n_heads, in an encoding and its members."""
    found = (getattr(module, fact, None) for module in encoding.modules())
    return next((value for value in found if value is not None), default)


def count_heads(encoding: Encoding) -> tuple[int, int]:
    """Return the fewest heads and key heads that an encoding is made for; 1 if it does not define them."""
    n_kv_heads = find_fact(encoding, "n_kv_heads", None)
    n_heads = find_fact(encoding, "n_heads", n_kv_heads or 1)
    return int(n_heads), int(n_kv_heads or n_heads)


def form_scores(
    encoding: Encoding,
    placed: Placed,
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads k_len head_dim"],
    k_placed: Placed | None = None,
    *,
    scale: float | None = None,
    allowed: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch n_heads q_len k_len"]:
    """Compute the scores of one layer by the contract's hooks.

    Args:
        encoding: The encoding of the layer.
        placed: Positions of the queries, and of the keys unless `k_placed` is given.
        q: Queries before the rotation.
        k: Keys before the rotation.
        k_placed: Positions of the keys.
        scale: The factor of products; None for that of the encoding.
        allowed: Which keys a row may see, for score maps; None for all.
    """
    k_placed = placed if k_placed is None else k_placed
    rotated_q, rotated_k = encoding.rotate(q, k, placed, k_placed)
    scale = encoding.score_scale(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    scores = scale * rotated_q @ rotated_k.repeat_interleave(group, 1).transpose(-1, -2)
    bias = encoding.bias(q, k, placed, k_placed)
    scores = scores if bias is None else scores + bias
    return encoding.rescore(scores, q, k, placed, k_placed, allowed) if encoding.rescores else scores


def _rescore(encoding: Encoding, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
    """Return a score map's result for scores of zero; None if the encoding is not a score map."""
    scores = q.new_zeros(*q.shape[:3], k.shape[2])
    return encoding.rescore(scores, q, k, placed, k_placed, None) if encoding.rescores else None


def _rows(after: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return (1, n_heads, n, width) as one row for each position, or None if the hook changed nothing."""
    return None if after is None or after is before else after[0].transpose(0, 1).flatten(1)


def count_numbers(run: Callable[[], Any]) -> int:
    """Count the numbers that the tensor operations of a call compute; views compute none.

    Raises:
        RuntimeError: This torch has no hook for operations (`posenc.private`).
    """
    written = 0

    def count(operation: Any, out: Any) -> None:
        nonlocal written
        written += 0 if operation.is_view else sum(t.numel() for t in tensors(out))

    with torch.no_grad(), watching(count):
        run()
    return written
