"""Terms on the scores: of two positions, or of their contents as well."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posenc.encoding import Encoding, Placed, Pos
from posenc.families.numbers import no_autocast
from posenc.positions.checks import first_of_run


class Bias(Encoding):
    """An encoding that adds to the scores a term of positions only; its author writes `at(h, q, k)`.

    `at` is written once, elementwise. Broadcast it gives the dense matrix, traced it is a FlexAttention `score_mod`.
    It gets exact positions (int64, or float64), so distances are exact before any rounding.

    Under FSDP2 leave the parameters to the root, which keeps them gathered, or wrap the encoding itself. A model calls
    `place`, not `forward`, and needs the parameters until the end of the backward pass. So use
    `fully_shard(encoding, reshard_after_forward=False)` and `register_fsdp_forward_method(encoding, "place")`.
    """

    family = "bias"
    n_heads: int
    by_distance: bool = False  # True: at(h, q, k) is at(h, q - k, 0), so a vector over distances is enough
    _held: tuple[int, int] | None = None  # first head and number of heads, if other ranks have the rest

    def __init__(self, *, n_heads: int) -> None:
        super().__init__()
        self._count(n_heads=n_heads)
        self.n_heads = n_heads

    def of_heads(self, first: int, n: int) -> "Bias":
        """Return the same bias for heads first .. first + n - 1, as one rank of tensor parallelism needs it.

        Parameters are shared with this encoding, unsplit: each rank holds the table of all heads.

        Raises:
            ValueError: A head is not one of this encoding's.
        """
        self._count(n=n)
        self._count(least=0, first=first)
        if first + n > self.n_heads:
            raise ValueError(
                f"{self.name}: has heads 0..{self.n_heads - 1}; got of_heads({first}, {n}), which ends at "
                f"{first + n - 1}. Split n_heads={self.n_heads} among the ranks."
            )
        twin = copy.copy(self)
        twin._held = first, n
        return twin

    @property
    def held(self) -> tuple[int, int]:
        """The first head of this bias, and the number of its heads, within the heads it was constructed for."""
        return self._held or (0, self.n_heads)

    def over(self, distance: Shaped[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Return the bias of each head over distances, for an encoding that depends only on those (`by_distance`)."""
        found = self.at(self._heads(distance.device)[:, None], distance, torch.zeros_like(distance))
        return _real(found).expand(self.held[1], -1)  # an author need not use h

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return the bias of head `h` for the parts that `place` made of one query and one key.

        The arguments broadcast. `q` and `k` are positions; with several axes or parts, tuples of them. Positions are
        float64 if the call computes in float64, otherwise int64. Of a part with a number for each head, (batch,
        seq_len, n_heads), they hold the number of head `h`.
        """
        raise NotImplementedError(f"{self.name} must define at(h, q, k).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact."""
        exact = pos.double() if dtype == torch.float64 else pos
        return exact.unbind(-1) if self.n_axes > 1 else (exact,)

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor:
        """Return `at` broadcast over heads, queries and keys."""
        self.check_heads(q)
        return self._broadcast(placed, k_placed)

    def check_heads(self, q: Tensor) -> None:
        """Raise unless q has the number of heads that this encoding was made for.

        Raises:
            ValueError: It has another number of heads.
        """
        first, n = self.held
        if q.shape[1] != n:
            made = f"n_heads={n}" if self._held is None else f"heads {first}..{first + n - 1}"
            raise ValueError(
                f"{self.name}: made for {made}, but q has {q.shape[1]} heads; got q of shape "
                f"{tuple(q.shape)}. Construct it with n_heads={q.shape[1]}."
            )

    def dense(
        self,
        pos: Pos,
        k_pos: Shaped[Tensor, "*k_pos"] | None = None,
        *,
        causal: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return the whole bias as a mask that `scaled_dot_product_attention` adds to the scores.

        Args:
            pos: Positions of the queries.
            k_pos: Positions of the keys; None means those of the queries.
            causal: True writes -inf where key j > i + k_len - q_len, by index.
            dtype: Dtype of the result; computed in float32, or in float64 for float64.
        """
        work = torch.promote_types(dtype, torch.float32)
        placed = self.place(pos, dtype=work)
        bias = self._broadcast(placed, placed if k_pos is None else self.place(k_pos, dtype=work)).to(dtype)
        if causal:
            *_, q_len, k_len = bias.shape
            seen = torch.ones(q_len, k_len, dtype=torch.bool, device=bias.device).tril(k_len - q_len)
            bias = bias.masked_fill(~seen, -torch.inf)
        return bias

    def score_mod(self, placed: Placed, k_placed: Placed | None = None) -> Callable[..., Tensor]:
        """Return f(score, b, h, q_idx, kv_idx) for FlexAttention."""
        k_placed, first = placed if k_placed is None else k_placed, self._held[0] if self._held else 0

        def pick(p: Placed, b: Tensor, i: Tensor, h: Tensor) -> Any:
            rows = [part if p.seq_dim else part[None] for part in p.parts]
            where = [(b if part.shape[0] > 1 else 0 * b, i, h)[: part.ndim] for part in rows]
            return _single(tuple([part[at] for part, at in zip(rows, where, strict=True)]))

        def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            h = h + first
            return score + self.at(h, pick(placed, b, q_idx, h), pick(k_placed, b, kv_idx, h))

        return mod

    def _heads(self, device: torch.device) -> Tensor:
        first, n = self.held
        return torch.arange(first, first + n, device=device)

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        if self.by_distance and (vector := self._of_runs(placed, k_placed)) is not None:
            return vector.unfold(-1, k_placed.pos.shape[0], 1).flip(-2)[None]
        h = self._heads(placed.pos.device)[:, None, None]
        rows = tuple(part[..., :, None] for part in self._by_head(placed))
        columns = tuple(part[..., None, :] for part in self._by_head(k_placed))
        term = self.at(h, _single(rows), _single(columns))
        return _real(term if term.ndim == 4 else term[None]).expand(-1, self.held[1], -1, -1)

    def _of_runs(self, placed: Placed, k_placed: Placed) -> Float[Tensor, "heads n"] | None:
        """Return the bias over falling distances, if there are fewer than pairs: positions are runs of integers."""
        q_len, k_len = placed.pos.shape[-1], k_placed.pos.shape[-1]
        if min(q_len, k_len) < 2 or not keeps_promise(self, "by_distance", "bias", "parts", "at"):
            return None
        first = first_of_run(placed.pos)
        k_first = first if k_placed is placed else first_of_run(k_placed.pos)
        if first is None or k_first is None:
            return None
        highest = first - k_first + q_len - 1
        distance = torch.arange(highest, highest - q_len - k_len + 1, -1, device=placed.pos.device)
        return self.over(distance.double() if placed.parts[0].is_floating_point() else distance)

    def _by_head(self, placed: Placed) -> list[Tensor]:
        """Return parts with a heads dimension before that of tokens, of size 1 if all heads share the part."""
        first, n = self.held
        plain = placed.seq_dim + 1  # dimensions of a part that is the same for all heads
        return [part[..., None, :] if part.ndim == plain else part[..., first : first + n].mT for part in placed.parts]


def keeps_promise(encoding: Encoding, promise: str, *methods: str) -> bool:
    """Whether a class attribute, the promise, still describes the methods of an encoding.

    It does not if a subclass overrides one of the methods but not the attribute.
    """
    order = type(encoding).__mro__
    promised, *defined = (next(i for i, cls in enumerate(order) if n in vars(cls)) for n in (promise, *methods))
    return promised <= min(defined)


def _real(bias: Tensor) -> Tensor:
    """Return whole numbers, such as distances, in float32."""
    return bias if bias.is_floating_point() else bias.float()


def _single(parts: tuple[Any, ...]) -> Any:
    """Return the argument of `at` for one token: its only part, or the tuple of its parts."""
    return parts[0] if len(parts) == 1 else parts


class ContentBias(Encoding):
    """An encoding whose term on the scores reads q and k; its author writes `bias`, or `vectors`.

    Callers write into the tensor that `bias` returns. So return a new tensor each time; a buffer or a parameter is not
    overwritten. If the term is (queries(q_i)·vectors(i - j) + of_keys(k_j)) times the score scale, set
    `by_distance = True` and define `vectors` and those of the other two that are needed; attention then computes a
    block of it by one product, and `bias`, where positions have gaps, pair by pair.
    """

    family = "content_bias"
    reads_qk = True
    by_distance: bool = False

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Return the products of queries and the vectors of all distances, and the terms of keys."""
        if not self.by_distance:
            raise NotImplementedError(
                f"{self.name} must define bias(q, k, placed, k_placed), or vectors(distance, dtype) and by_distance."
            )
        self.check_heads(q)
        distance, dtype = (
            placed.pos[..., :, None] - k_placed.pos[..., None, :],
            torch.promote_types(q.dtype, torch.float32),
        )
        with no_autocast(q.device):  # half precision would round the products before the softmax
            each = self.vectors(distance.flatten(), dtype).unflatten(1, distance.shape)
            each = each.transpose(0, 1) if distance.ndim == 3 else each[None]
            products: Tensor = (each @ self.queries(q.to(dtype))[..., None]).squeeze(-1)
            of_keys = self.of_keys(k.to(dtype))
            return (products if of_keys is None else products + of_keys[:, :, None]) * self.score_scale(q.shape[-1])

    def vectors(self, distance: Shaped[Tensor, " n"], dtype: torch.dtype) -> Float[Tensor, "heads_or_one n head_dim"]:
        """Return the vectors that queries are multiplied with, for each distance."""
        raise NotImplementedError(f"{self.name} must define vectors(distance, dtype), or leave by_distance False.")

    def queries(self, q: Float[Tensor, "batch heads q_len head_dim"]) -> Float[Tensor, "batch heads q_len head_dim"]:
        """Return the queries that are multiplied with the vectors; by default q itself."""
        return q

    def of_keys(self, k: Float[Tensor, "batch kv_heads k_len head_dim"]) -> Float[Tensor, "batch heads k_len"] | None:
        """Return the term that each key adds for every query; by default None."""
        return None
