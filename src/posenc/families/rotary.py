"""Encodings that rotate queries and keys, each by its own position."""

import copy
import inspect
import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from posenc import kernels
from posenc.config.values import short
from posenc.encoding import Placed, Pos
from posenc.families.angles import tabulate
from posenc.families.heads import check_groups, check_out, check_tokens
from posenc.families.norm import Norm, as_norm
from posenc.families.options import Budgeted


class Rotary(Budgeted):
    """An encoding that rotates pairs of dimensions; its author writes `frequencies()`.

    Angles are computed in float64 and rounded after cosine and sine. `gain()` multiplies the rotated dimensions of q
    and of k (scores get its square). `amplitude(pos)` multiplies queries by position and divides keys (xPos). Where
    `n_kv_heads` is set, each key head has its own frequencies, and the queries of its group share them.

    Args:
        head_dim: Dimensions of one head.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (dimension k with k + rotary_dim / 2) or "interleaved" (2k with 2k + 1).
    """

    family = "rotary"
    n_kv_heads: int | None = None
    _overridden: ClassVar[bool]  # whether a subclass does more than rotate by cosines and sines

    def __init_subclass__(cls, **options: Any) -> None:
        """Record whether a subclass overrides the rotation."""
        super().__init_subclass__(**options)
        own = Rotary.rotate_q, Rotary.rotate_k, Rotary._rotate
        cls._overridden = (cls.rotate_q, cls.rotate_k, cls._rotate) != own

    def __init__(
        self,
        *,
        head_dim: int,
        rotary_dim: int | None = None,
        rotary_side: kernels.eager.Side = "first",
        pairing: kernels.eager.Pairing = "half",
    ) -> None:
        super().__init__()
        self._count(head_dim=head_dim, rotary_dim=head_dim if rotary_dim is None else rotary_dim)
        width = head_dim if rotary_dim is None else rotary_dim
        if rotary_dim is None and head_dim % 2:
            some = head_dim > 2 and "rotary_dim" in inspect.signature(type(self)).parameters
            raise ValueError(
                f"{self.name}: head_dim must be even, because dimensions rotate in pairs; got head_dim={head_dim}."
                + (f" Pass rotary_dim={head_dim - 1} to rotate the first {head_dim - 1}." if some else "")
            )
        if width % 2 or not 2 <= width <= head_dim:
            raise ValueError(
                f"{self.name}: rotary_dim must be even and between 2 and head_dim={head_dim}, because dimensions "
                f"rotate in pairs; got rotary_dim={width}."
            )
        choices = {
            "pairing": (pairing, ("half", "interleaved")),
            "rotary_side": (rotary_side, ("first", "last")),
        }
        for option, (value, allowed) in choices.items():
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{self.name}: {option} must be one of {allowed}; got {short(value)}.")
        self.head_dim, self.rotary_dim = head_dim, width
        self.rotary_side: kernels.eager.Side = rotary_side
        self.pairing: kernels.eager.Pairing = pairing

    def frequencies(self) -> Float64[Tensor, "*heads n_axes n_pairs"]:
        """Return radians per position and pair, for each key head where they differ: angle = pos @ frequencies."""
        raise NotImplementedError(f"{self.name} must define frequencies().")

    def gain(self) -> float:
        """Return the factor on the rotated dimensions of q and of k."""
        return 1.0

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch n"] | None:
        """Return the factor that multiplies queries by position and divides keys, per pair or for all, or None."""
        return None

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute the tables: (cos, sin), or those of q followed by those of k if they differ.

        Raises:
            ValueError: The tables would need more than `table_budget` bytes.
        """
        changes = type(self).amplitude is not Rotary.amplitude  # called only then: some devices have no float64
        numbers = math.prod(pos.shape) // self.n_axes * (self.n_kv_heads or 1) * self.rotary_dim
        self._afford(numbers * dtype.itemsize * (2 if changes else 1))
        tables = self._of_angles(pos, dtype, self.gain())
        amplitude = self.amplitude(pos.double()) if changes else None
        if amplitude is not None:
            inverse = (1 / amplitude).to(dtype)
            amplitude = amplitude.to(dtype)
            return (*(t * amplitude for t in tables), *(t * inverse for t in tables))
        return tables

    def _of_angles(self, pos: Pos, dtype: torch.dtype, gain: float) -> tuple[Tensor, ...]:
        """Return cosines and sines times a gain, with a dimension of heads if heads have their own frequencies."""
        inv_freq, shared = self.frequencies(), (self.n_axes, self.rotary_dim // 2)
        if inv_freq.shape != shared and inv_freq.shape != (self.n_kv_heads, *shared):
            raise ValueError(
                f"{self.name}: frequencies() must return (n_axes, rotary_dim / 2) = {shared}, or one such table for "
                f"each of n_kv_heads={self.n_kv_heads}; got {tuple(inv_freq.shape)}."
            )
        if inv_freq.ndim == 3:  # heads: compute one wide table and split it
            inv_freq = inv_freq.movedim(0, 1).flatten(1)
        tables = tabulate(pos, inv_freq, dtype=dtype, gain=gain)
        if self.n_kv_heads is None:
            return tables
        return tuple(t.unflatten(-1, (-1, self.rotary_dim // 2)) for t in tables)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate queries by their own positions."""
        return self._rotate(q, placed.parts[:2])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys by their own positions."""
        return self._rotate(k, placed.parts[-2:])

    def rotate(
        self,
        q: Float[Tensor, "*q_batch q_heads q_len head_dim"],
        k: Float[Tensor, "*k_batch k_heads k_len head_dim"],
        placed: Placed,
        k_placed: Placed | None = None,
        *,
        inverse: bool = False,
        out: tuple[Tensor, Tensor] | None = None,
        q_norm: Norm | nn.RMSNorm | None = None,
        k_norm: Norm | nn.RMSNorm | None = None,
        backend: str = "auto",
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys in one call, in memory of any strides whose last dimension is contiguous.

        The arithmetic has the tables' precision, float32 or wider, and rounds once. The backward pass is the transposed
        rotation, for which only the tables are saved.

        Args:
            q: Queries (batch, n_heads, q_len, head_dim).
            k: Keys (batch, n_kv_heads, k_len, head_dim), of the same dtype on the same device.
            placed: Positions of the queries, and of the keys unless `k_placed` is given.
            k_placed: Positions of the keys.
            inverse: Rotate back.
            out: Tensors to write into, for example the slots of a cache; they may be q and k. Another dtype costs a
                copy.
            q_norm: Norm of each head of q before it rotates, without rounding in between (Qwen3, Gemma 3).
            k_norm: The same for k.
            backend: "auto", "formula", "blocked" (torch only), "numba" (the extra `fast`) or "triton". Compiled, traced
                or transformed calls and learned frequencies use the formula.

        Raises:
            TypeError: q and k differ in dtype, or are not floating-point.
            ValueError: Shapes do not match, q and k are on two devices, `out` overlaps, or the backend refuses.
        """
        k_placed = placed if k_placed is None else k_placed
        self._check_both(q, k, placed, k_placed)
        if self._overridden or inverse:
            if (q_norm, k_norm, backend) != (None, None, "auto"):
                raise ValueError(
                    f"{self.name}: q_norm, k_norm and backend apply only to a plain forward rotation; "
                    "apply norms before rotate and leave backend out."
                )
            return super().rotate(q, k, placed, k_placed, inverse=inverse, out=out)
        if q_norm is not None or k_norm is not None:
            wide = self._normalised("q_norm", q_norm, q, placed), self._normalised("k_norm", k_norm, k, k_placed)
            rotated = self.rotate(*wide, placed, k_placed, out=out, backend=backend)
            return rotated if out is not None else (rotated[0].to(q.dtype), rotated[1].to(q.dtype))
        if out is not None:
            check_out(self.name, (q, k), out)
            if (out[0].dtype, out[1].dtype) != (q.dtype, k.dtype):  # a cache of another precision
                fresh = self.rotate(q, k, placed, k_placed, backend=backend)
                return out[0].copy_(fresh[0]), out[1].copy_(fresh[1])
        shared = k_placed is placed and len(placed.parts) == 2
        q_tables = self._tables(placed.parts[:2])
        tables = q_tables, q_tables if shared else self._tables(k_placed.parts[-2:])
        way = kernels.Way(self.pairing, self.rotary_side, backend)
        written: Any = kernels.rotate_all((q, k), tables, way, out, self.name)
        return written  # type: ignore[no-any-return]

    def _normalised(self, name: str, given: Norm | nn.RMSNorm | None, x: Tensor, placed: Placed) -> Tensor:
        norm, wide = as_norm(self.name, name, given, x), torch.promote_types(x.dtype, placed.parts[0].dtype)
        return x.to(wide) if norm is None else norm.apply(x, wide)

    def rotate_(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed | None = None, *, backend: str = "auto"
    ) -> None:
        """Rotate q and k in place; under no_grad, since autograd needs the original values.

        Raises:
            ValueError: One of them requires gradients, one is expanded or overlaps itself or the other, or the backend
                refuses.
        """
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            raise ValueError(
                f"{self.name}: rotate_ overwrites q and k, which their gradients need; "
                "call it under torch.no_grad(), or use rotate."
            )
        if backend == "auto":  # a subclass's own rotate need not accept backend
            self.rotate(q, k, placed, k_placed, out=(q, k))
        else:
            self.rotate(q, k, placed, k_placed, out=(q, k), backend=backend)

    def _check_both(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> None:
        who, here, there = self.name, placed.pos, k_placed.pos
        where = here.shape if self.n_axes == 1 else here.shape[:-1]
        check_tokens(who, q, self.head_dim, where)
        if there is not here:
            where = there.shape if self.n_axes == 1 else there.shape[:-1]
        check_tokens(who, k, self.head_dim, where)
        if self.n_kv_heads is not None:
            check_groups(who, q, self.n_kv_heads)
            check_groups(who, k, self.n_kv_heads)
        if q.dtype != k.dtype:
            raise TypeError(
                f"{who}: q and k must have one dtype, because scores are their products; got {q.dtype} and "
                f"{k.dtype}. Cast one of them."
            )
        if not q.device == k.device == here.device or (there is not here and there.device != k.device):
            raise ValueError(
                f"{who}: q, k and their positions must be on one device; got q on {q.device}, k on {k.device}, "
                f"positions on {here.device}. Move them to one before place and rotate."
            )

    def _rotate(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        check_tokens(self.name, x, self.head_dim, tables[0].shape[: -1 if self.n_kv_heads is None else -2])
        if self.n_kv_heads is not None:
            check_groups(self.name, x, self.n_kv_heads)
        cos, sin = self._tables(tables)
        return kernels.rotate(x, cos, sin, pairing=self.pairing, side=self.rotary_side)

    def _tables(self, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return tables (seq, n_pairs), or with heads before the sequence (..., heads or 1, seq, n_pairs)."""
        cos, sin = tables
        if self.n_kv_heads is not None:
            return cos.movedim(-2, -3), sin.movedim(-2, -3)
        return (cos, sin) if cos.ndim == 2 else (cos.unsqueeze(-3), sin.unsqueeze(-3))

    def of_slice(self) -> "Rotary":
        """Return the same rotation for a tensor that holds only the dimensions that rotate.

        In multi-head latent attention (DeepSeek) all heads share one such slice of the keys. It is rotated once and
        cached, next to the latent vector that gives the keys' other dimensions. Learned frequencies are shared.

        >>> from posenc.encodings import RoPE
        >>> keys = RoPE(head_dim=192, rotary_dim=64, rotary_side="last").of_slice()
        >>> keys.head_dim, keys.rotary_dim
        (64, 64)
        """
        twin = copy.copy(self)
        twin.head_dim, twin.rotary_side = self.rotary_dim, "first"
        return twin

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        def back(x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
            cos, sin = tables
            square = cos**2 + sin**2  # of gain and amplitude: rotate back by the transpose and divide by it
            return self._rotate(x, (cos / square, -sin / square))

        return back(q, placed.parts[:2]), back(k, k_placed.parts[-2:])
