"""The families: an author writes one method, and the family does the rest of the contract."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn

from posenc import frequencies, kernels
from posenc.encoding import Encoding, Placed, Pos


class OwnFrequencies(Encoding):
    """Frequencies by formula, given, or learned, for `Sinusoidal` and `RoPE`; mixed into a family.

    Learned ones are a parameter in float32 or wider, whatever the module is cast to: in half
    precision, angles would be garbage after a thousand positions.
    """

    keeps_float32 = True

    def formula(self) -> Float64[Tensor, " n"]:
        """Return radians per position as the paper has them."""
        raise NotImplementedError(f"{self.name} must define formula().")

    def inv_freqs(self) -> Float64[Tensor, " n"]:
        """Return radians per position as they stand."""
        return self.inv_freq.double() if isinstance(self.inv_freq, Tensor) else self._start()

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments; inv_freq as it was given, not as it was learned."""
        return super().options() | {"inv_freq": self._given}

    def reset_parameters(self) -> None:
        """Set learned frequencies back to where they start."""
        if isinstance(self.inv_freq, Tensor):
            with torch.no_grad():
                self.inv_freq.copy_(self._start())

    def _set_frequencies(self, n: int, inv_freq: frequencies.Given | None, trainable: bool) -> None:
        self._given = None if inv_freq is None else frequencies.given(inv_freq, n, self.name)
        self.trainable = trainable
        self.inv_freq: nn.Parameter | tuple[float, ...] | None = self._given
        if trainable:
            dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
            self.inv_freq = nn.Parameter(torch.empty(n, dtype=dtype))
        self.reset_parameters()

    def _start(self) -> Float64[Tensor, " n"]:
        return self.formula() if self._given is None else torch.tensor(self._given, dtype=torch.float64)


class OfLength(Encoding):
    """An encoding whose meaning depends on the current length, which `resolve` gives it; mixed into a family.

    The length is an option, so that a resolved encoding says what it was resolved for and stays as it is.
    """

    length: int | None

    def resolve(self, seq_len: int) -> Encoding:
        """Return the encoding for one length; itself where the length is given already."""
        if self.length is not None:
            return self
        return type(self)(**self.options() | {"length": seq_len})

    def given_length(self) -> int:
        """Return the length.

        Raises:
            ValueError: There is none yet.
        """
        if self.length is None:
            raise ValueError(
                f"{self.name}: depends on the length of the sequence, and was placed before it knows that; got "
                "length=None. Call resolve(seq_len) and use what it returns, or construct it with length=."
            )
        return self.length

    def _set_length(self, length: int | None) -> None:
        if length is not None and length < 1:
            raise ValueError(f"{self.name}: length must be at least 1; got length={length}.")
        self.length = length


class Embedded(Encoding):
    """An encoding that enters at the token embeddings; its author writes `parts(pos, ...)` and `mix(x, *parts)`.

    Args:
        d_model: Width of the token embeddings; a class of one's own may also set the attribute itself.
    """

    family = "embedded"
    d_model: int

    def __init__(self, *, d_model: int | None = None) -> None:
        super().__init__()
        if d_model is not None:
            if d_model < 1:
                raise ValueError(f"{self.name}: d_model must be at least 1; got d_model={d_model}.")
            self.d_model = d_model

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens with position in them, in any precision; `parts` are those that `place` made."""
        raise NotImplementedError(f"{self.name} must define mix(x, *parts).")

    def embed(self, x: Float[Tensor, "*batch seq d_model"], placed: Placed) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens with position in them, rounded once to the dtype of x."""
        if x.shape[-1] != self.d_model:
            raise ValueError(
                f"{self.name}: x must have d_model={self.d_model} lanes, the encoding's width; "
                f"got x of shape {tuple(x.shape)}. Construct it with d_model={x.shape[-1]}."
            )
        where = placed.pos.shape[: placed.seq_dim + 1]
        if x.shape[-2] != where[-1] or (len(where) == 2 and where[0] not in (1, x.shape[0])):
            raise ValueError(
                f"{self.name}: x must have a token for each position; got x of shape {tuple(x.shape)} and positions "
                f"of shape {tuple(where)}. When decoding, pass the positions of the new tokens only."
            )
        return self.mix(x, *placed.parts).to(x.dtype)

    def forward(self, x: Float[Tensor, "*batch seq d_model"], pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Place and embed in one call, the commonest use."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        return self.embed(x, self.place(pos, dtype=dtype))


class Additive(Embedded):
    """An encoding that is added to token embeddings; its author writes `vectors(pos)`."""

    family = "additive"

    def vectors(self, pos: Pos) -> Float[Tensor, "*batch seq d_model"]:
        """Return the vector of each position, (..., seq_len, d_model), in float32 or wider."""
        raise NotImplementedError(f"{self.name} must define vectors(pos).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Look up or compute the vectors of all positions."""
        return (self.vectors(pos).to(dtype),)

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return x plus the vectors."""
        return x + parts[0]


class Rotary(Encoding):
    """An encoding that turns pairs of lanes; its author writes `frequencies()`.

    Angles are formed in float64 and rounded after cosine and sine. `gain()` multiplies the turned
    lanes of q and of k (scores get its square); `amplitude(pos)` does so by position, with its
    inverse on keys (xPos).

    Args:
        head_dim: Lanes of one head.
        rotary_dim: How many of them turn; None means all.
        rotary_side: "first" or "last": which ones.
        pairing: "half" (lane k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
    """

    family = "rotary"

    def __init__(
        self,
        *,
        head_dim: int,
        rotary_dim: int | None = None,
        rotary_side: kernels.eager.Side = "first",
        pairing: kernels.eager.Pairing = "half",
    ) -> None:
        super().__init__()
        width = head_dim if rotary_dim is None else rotary_dim
        if rotary_dim is None and head_dim % 2:
            raise ValueError(
                f"{self.name}: head_dim must be even, because lanes turn in pairs; got head_dim={head_dim}. "
                f"Pass rotary_dim={head_dim - 1} to turn the first {head_dim - 1}."
            )
        if width % 2 or not 2 <= width <= head_dim:
            raise ValueError(
                f"{self.name}: rotary_dim must be even and between 2 and head_dim={head_dim}, because lanes "
                f"turn in pairs; got rotary_dim={width}."
            )
        choices = {
            "pairing": (pairing, ("half", "interleaved")),
            "rotary_side": (rotary_side, ("first", "last")),
        }
        for option, (value, allowed) in choices.items():
            if value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {value!r}.")
        self.head_dim, self.rotary_dim = head_dim, width
        self.rotary_side, self.pairing = rotary_side, pairing

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return radians per position and pair: angle = pos @ frequencies."""
        raise NotImplementedError(f"{self.name} must define frequencies().")

    def gain(self) -> float:
        """Return what multiplies the turned lanes of q and of k."""
        return 1.0

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch seq n_pairs"] | None:
        """Return what multiplies queries by position and divides keys, or None."""
        return None

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute the tables: (cos, sin), or those of q and then those of k where they differ."""
        exact, inv_freq = pos.double(), self.frequencies().to(pos.device)
        # a product over one axis is written as such: as a matrix product, compilers specialise on its length
        angle = exact @ inv_freq if self.n_axes > 1 else exact[..., None] * inv_freq
        cos, sin = angle.cos() * self.gain(), angle.sin() * self.gain()
        amplitude = self.amplitude(exact)
        tables: tuple[Tensor, ...] = (cos, sin)
        if amplitude is not None:
            tables = (cos * amplitude, sin * amplitude, cos / amplitude, sin / amplitude)
        return tuple(t.to(dtype) for t in tables)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Turn queries by their own positions."""
        return self._turn(q, placed.parts[:2])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Turn keys by their own positions."""
        return self._turn(k, placed.parts[-2:])

    def rotate_(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed | None = None) -> None:
        """Turn q and k in place; under no_grad, since autograd needs what they were."""
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            raise ValueError(
                f"{self.name}: rotate_ overwrites q and k, which their gradients need; "
                "call it under torch.no_grad(), or use rotate."
            )
        self.rotate(q, k, placed, k_placed, out=(q, k))

    def _turn(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ValueError(
                f"{self.name}: q and k must have head_dim={self.head_dim} lanes; got shape {tuple(x.shape)}. "
                f"Construct it with head_dim={x.shape[-1]}, or hand over (batch, heads, seq, head_dim)."
            )
        cos, sin = tables
        if x.shape[-2] != cos.shape[-2] or (cos.ndim == 3 and cos.shape[0] not in (1, x.shape[0])):
            raise ValueError(
                f"{self.name}: q and k must have a token for each of their positions; got shape {tuple(x.shape)} and "
                f"positions of shape {tuple(cos.shape[:-1])}. With a cache, k_placed is for all keys that are given."
            )
        return kernels.turn(x, cos, sin, pairing=self.pairing, side=self.rotary_side)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        def back(x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
            cos, sin = tables
            square = cos**2 + sin**2  # of gain and amplitude: turn back by the transpose, divided by it
            return self._turn(x, (cos / square, -sin / square))

        return back(q, placed.parts[:2]), back(k, k_placed.parts[-2:])


class Bias(Encoding):
    """An encoding that joins the scores by position alone; its author writes `at(h, q, k)`.

    `at` is written once, elementwise: broadcast it is the dense matrix, traced it is a
    FlexAttention `score_mod`. Positions reach it exactly (int64, or float64), so that distances
    are exact before anything is rounded.
    """

    family = "bias"
    n_heads: int

    def __init__(self, *, n_heads: int) -> None:
        super().__init__()
        if n_heads < 1:
            raise ValueError(f"{self.name}: n_heads must be at least 1; got n_heads={n_heads}.")
        self.n_heads = n_heads

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return the bias of head `h` for what `place` made of one query and one key.

        The arguments broadcast. `q` and `k` are positions; with several axes or parts, tuples of
        them. Positions are float64 where the call wants float64, and int64 otherwise.
        """
        raise NotImplementedError(f"{self.name} must define at(h, q, k).")

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact."""
        exact = pos.double() if dtype == torch.float64 else pos
        return exact.unbind(-1) if self.n_axes > 1 else (exact,)

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor:
        """Return `at` broadcast over heads, queries and keys."""
        if q.shape[1] != self.n_heads:
            raise ValueError(
                f"{self.name}: made for n_heads={self.n_heads}, but q has {q.shape[1]} heads; got q of shape "
                f"{tuple(q.shape)}. Construct it with n_heads={q.shape[1]}."
            )
        return self._broadcast(placed, k_placed)

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
            k_pos: Positions of the keys; those of the queries if left out.
            causal: True writes -inf where key j > i + k_len - q_len, by index.
            dtype: Of the result; computed in float32, or in float64 for float64.
        """
        work = torch.float64 if dtype == torch.float64 else torch.float32
        placed = self.place(pos, dtype=work)
        bias = self._broadcast(placed, placed if k_pos is None else self.place(k_pos, dtype=work)).to(dtype)
        if causal:
            q_len, k_len = bias.shape[-2:]
            seen = torch.ones(q_len, k_len, dtype=torch.bool, device=bias.device).tril(k_len - q_len)
            bias = bias.masked_fill(~seen, -torch.inf)
        return bias

    def score_mod(self, placed: Placed, k_placed: Placed | None = None) -> Callable[..., Tensor]:
        """Return f(score, b, h, q_idx, kv_idx) for FlexAttention."""
        k_placed = placed if k_placed is None else k_placed

        def pick(p: Placed, b: Tensor, i: Tensor) -> Any:
            rows = (part if p.seq_dim else part[None] for part in p.parts)
            found = tuple(part[b if part.shape[0] > 1 else 0, i] for part in rows)
            return found[0] if len(found) == 1 else found

        def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + self.at(h, pick(placed, b, q_idx), pick(k_placed, b, kv_idx))

        return mod

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        h = torch.arange(self.n_heads, device=placed.pos.device)[:, None, None]
        rows = tuple(part[..., None, :, None] for part in placed.parts)
        columns = tuple(part[..., None, None, :] for part in k_placed.parts)
        term = self.at(h, *((rows[0], columns[0]) if len(rows) == 1 else (rows, columns)))
        return term if term.ndim == 4 else term[None]


class ContentBias(Encoding):
    """An encoding whose term on the scores looks at q and k; its author writes `bias`."""

    family = "content_bias"
    reads_qk = True


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return what autocast casts to on a device, or None where it is off or unknown (as on meta)."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast rounds nothing behind our back."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def wide(t: Tensor) -> Tensor:
    """Return a learned tensor in float32 or wider, so that arithmetic with it is not in half precision."""
    return t if t.dtype == torch.float64 else t.float()


def floating(distance: Tensor) -> Tensor:
    """Return an exact distance as float32, or as float64 if it is one already."""
    return distance if distance.dtype == torch.float64 else distance.float()
