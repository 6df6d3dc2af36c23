"""The contract of a position encoding.

One law defines the meaning of an encoding (p = place(pos, x)):

    scores[i, j] = score_scale * <rotate_q(q_i, p_i), rotate_k(k_j, p_j)> + bias(q_i, k_j, p_i, p_j)
    out[i] = unrotate_out(sum_j softmax(scores[i])[j] * rotate_v(v_j, p_j), p_i)

Before it, `embed(x, p)` embeds the tokens. A score map changes whole rows of these scores with `rescore`, before mask
and softmax. Every method is neutral by default: `Encoding` itself is NoPE. distance = q_pos - k_pos is positive for
earlier keys.
"""

import inspect
import sys
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posenc import positions
from posenc.placed import Placed, once

Pos = Shaped[Tensor, "*pos"]  # (seq,), (batch, seq), or either with a last dimension of n_axes


class Encoding(nn.Module):
    """NoPE: the contract with every method neutral, and the base class of all encodings.

    A constructor stores each argument under its own name. Encodings have no growing tables, no sequence
    length, no mask and no buffer. Only learned tensors are in `state_dict`, and `reset_parameters()`
    initialises them again.
    """

    family: ClassVar[str] = "none"
    n_axes: int = 1
    max_len: Any = None  # the number of positions along the shortest axis, if there is a last one
    accepts_real: bool = True  # False: only integer positions have a meaning, and real ones are refused
    reads_x: bool = False
    reads_qk: bool = False  # True: bias() reads q and k, and needs them before the rotation
    rescores: bool = False  # True: rescore() changes whole rows of scores, so they must be formed
    turns_in_bias: bool = False  # True: bias() replaces q.k by other products, after other members rotate q and k
    _first_pos: int = 0  # the first position of an encoding that has a last one
    keeps_float32: ClassVar[bool] = False  # True: learned frequencies, for which half precision is too coarse

    def place(
        self,
        pos: Pos,
        x: Tensor | None = None,
        *,
        past: Placed | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Placed:
        """Prepare positions for the encoding, once per forward pass.

        Args:
            pos: (seq_len,) or (batch, seq_len); with n_axes > 1 a last dimension of n_axes.
                Integers, float32 or float64.
            x: The tokens (batch, seq_len, d_model), for encodings that read them (`reads_x`).
            past: The placed tokens of a cache, for encodings with a running sum along the sequence.
            dtype: float32, or float64 for exact work.

        Raises:
            TypeError: `pos` is not a tensor, or is in half precision.
            ValueError: Its shape does not match `n_axes`, `dtype` is half precision, or a position is beyond the last.
        """
        pos = self._check(pos, dtype)
        if self.reads_x and x is not None and pos.ndim == 1 + (self.n_axes > 1):
            pos = pos.expand(x.shape[0], *pos.shape)  # parts that depend on the tokens have their batch
        return Placed(pos, once(self.parts(pos, x, past, dtype)), self.n_axes)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the `parts` of `Placed` for positions in int64 or float64; families and encodings override it."""
        return ()

    def embed(self, x: Float[Tensor, "*batch seq d_model"], placed: Placed) -> Float[Tensor, "*batch seq d_model"]:
        """Add position to token embeddings (hook 1)."""
        return x

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate queries (batch, n_heads, q_len, head_dim) by their own positions (hook 2)."""
        return q

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys (batch, n_kv_heads, k_len, head_dim) by their own positions (hook 2)."""
        return k

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        placed: Placed,
        k_placed: Placed | None = None,
        *,
        inverse: bool = False,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys; `inverse` rotates back; `out` are tensors to write into, such as cache slots."""
        k_placed = placed if k_placed is None else k_placed
        if inverse:
            rotated = self._unrotate(q, k, placed, k_placed)
        else:
            rotated = self.rotate_q(q, placed), self.rotate_k(k, k_placed)
        if out is None:
            return rotated
        for name, slot, t in zip("qk", out, rotated, strict=True):
            if slot.shape != t.shape:  # copy_ would broadcast
                raise ValueError(
                    f"{self.name}: out must have the shapes of q and k; got {tuple(slot.shape)} for {name} of "
                    f"{tuple(t.shape)}. Pass only the slots of these tokens."
                )
        return out[0].copy_(rotated[0]), out[1].copy_(rotated[1])

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        if type(self).rotate_q is not Encoding.rotate_q or type(self).rotate_k is not Encoding.rotate_k:
            raise TypeError(
                f"{self.name}: cannot rotate back, because it overrides rotate_q or rotate_k without _unrotate. "
                "Derive it from Rotary, or define _unrotate(q, k, placed, k_placed)."
            )
        return q, k

    def bias(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> Tensor | None:
        """Return the term (1 | batch, n_heads, q_len, k_len) that is added to the scores, or None (hook 3).

        `q` and `k` are those before `rotate`. The result has the precision of `placed`.
        """
        return None

    def rescore(
        self, scores: Tensor, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed, mask: Tensor | None
    ) -> Tensor:
        """Return new scores (batch, n_heads, q_len, k_len), computed from whole rows of scores (`rescores`).

        `scores` are scaled and include all biases. `q` and `k` are those before `rotate`. `mask` is True where
        attention is allowed, or None if it is allowed everywhere. Masked scores may be any finite numbers.
        """
        return scores

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        """Rotate values (batch, n_kv_heads, k_len, any width) by the positions of their own tokens (hook 4).

        `attend` does so before any backend runs. A cache holds rotated values, as it holds rotated keys.
        """
        return v

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        """Rotate outputs (batch, n_heads, q_len, width of v) back by the positions of their queries (hook 4).

        It undoes `rotate_v` at the same position, so a sum of values depends on distances.
        """
        return out

    def check_heads(self, q: Tensor) -> None:
        """Raise unless q has the heads (`n_heads`) and the width (`head_dim`) that this encoding was made for, if any.

        Raises:
            ValueError: It has others.
        """
        shape = {"n_heads": q.shape[1], "head_dim": q.shape[-1]}
        made = {fact: getattr(self, fact) for fact in shape if hasattr(self, fact)}
        if any(made[fact] != shape[fact] for fact in made):
            raise ValueError(
                f"{self.name}: made for {' and '.join(f'{fact}={n}' for fact, n in made.items())}; got q of shape "
                f"{tuple(q.shape)}, which is (batch, heads, seq, head_dim)."
            )

    def score_scale(self, head_dim: int) -> float:
        """Return the factor of q . k."""
        return float(head_dim**-0.5)

    def resolve(self, seq_len: int) -> "Encoding":
        """Return the encoding for one current length; itself unless it depends on the length."""
        return self

    def layer(self, index: int, placed: Placed) -> "tuple[Encoding, Placed]":
        """Return the encoding of layer `index` and its part of `placed`; the same for every layer here."""
        return self, placed

    def leaves(self, placed: Placed) -> "list[tuple[Encoding, Placed]]":
        """Return the member encodings, each with its part of `placed`; only the encoding itself by default."""
        return [(self, placed)]

    def reset_parameters(self) -> None:
        """Initialise learned tensors again; there are none by default."""

    @property
    def name(self) -> str:
        """The class's name, used at the start of errors."""
        return type(self).__name__

    def options(self) -> dict[str, Any]:
        """Return the constructor's keyword-only arguments with their current values."""
        named = (p.name for p in inspect.signature(type(self)).parameters.values() if p.kind is p.KEYWORD_ONLY)
        return {name: getattr(self, name) for name in named if hasattr(self, name)}

    def _count(self, least: int = 1, **counts: Any) -> None:
        """Check that each of the constructor's numbers is an integer of at least `least`.

        Raises:
            TypeError: One of them is not an integer.
            ValueError: One of them is too small.
        """
        for name, n in counts.items():
            if isinstance(n, bool) or not isinstance(n, Integral):
                raise TypeError(f"{self.name}: {name} must be a whole number; got {name}={n!r}.")
            if n < least:
                raise ValueError(f"{self.name}: {name} must be at least {least}; got {name}={n}.")

    def _measure(self, **sizes: Any) -> None:
        """Check that each of the constructor's sizes is a finite number above zero.

        Raises:
            ValueError: One of them is not.
        """
        for name, size in sizes.items():
            real = isinstance(size, Real) and not isinstance(size, bool)
            if not real or not 0 < size <= sys.float_info.max:
                raise ValueError(f"{self.name}: {name} must be a finite number above zero; got {name}={size!r}.")

    def extra_repr(self) -> str:
        """Show the constructor's arguments."""
        shown = {k: "Parameter" if isinstance(v, Tensor) else repr(v) for k, v in self.options().items()}
        return ", ".join(f"{k}={v}" for k, v in shown.items() if v != "None")

    def _check(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{self.name}: place() works in float32 or float64, because angles and distances in half "
                f"precision are wrong after a few hundred positions; got dtype={dtype}. Leave dtype out; "
                "results are cast to the dtypes of q, k and x."
            )
        checked = positions.check(pos, self.n_axes, self.name)
        if checked.is_floating_point() and not self.accepts_real:
            raise TypeError(
                f"{self.name}: needs integer positions, because it has no values between them; got {pos.dtype}. "
                "Pass pos.long()."
            )
        if self.max_len is not None and self.n_axes == 1:
            why = f"it has max_len={self.max_len}"
            positions.check_range(checked, self.max_len, self.name, why, start=self._first_pos)
            if not positions.may_look(checked):  # beyond the table, where the index kernel raises
                checked = torch.where((checked >= self._first_pos) & (checked < self.max_len), checked, self.max_len)
        return checked

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Encoding":
        """Move and cast like any module, but never cast learned frequencies below float32."""

        def wide(t: Tensor) -> Tensor:
            moved = fn(t)
            return moved if moved.dtype in (torch.float32, torch.float64) else t.to(moved.device)

        return super()._apply(wide if self.keeps_float32 else fn, recurse)  # type: ignore[no-any-return]
