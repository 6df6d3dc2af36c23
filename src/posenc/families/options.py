"""Mix-ins for several families: own frequencies, a known length, a memory budget."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from posenc import frequencies
from posenc.config.values import short
from posenc.encoding import Encoding, Placed, Pos
from posenc.families.numbers import numbers, size, wide_parameter

# a user's own frequencies: numbers, or a function of the indices 0, 1, ..
Given = Tensor | np.ndarray | Sequence[float] | Callable[[Tensor], Tensor]
LONGEST = 10**12  # the most positions of a text


def check_word(who: str, option: str, word: Any, *allowed: str) -> None:
    """Raise unless a constructor's word is allowed.

    Raises:
        ValueError: The word is not one of `allowed`.
    """
    if not isinstance(word, str) or word not in allowed:
        raise ValueError(f"{who}: {option} must be {' or '.join(map(repr, allowed))}; got {short(word)}.")


class OwnFrequencies(Encoding):
    """Frequencies by formula, given, or learned, as in `Sinusoidal` and `RoPE`; mixed into a family.

    Learned frequencies are a parameter in float32 or wider, whatever the module is cast to: in half precision, angles
    would be useless after a thousand positions.
    """

    keeps_float32 = True

    def formula(self) -> Float64[Tensor, " n"]:
        """Return radians per position by the paper's formula."""
        raise NotImplementedError(f"{self.name} must define formula().")

    def inv_freqs(self) -> Float64[Tensor, " n"]:
        """Return the current radians per position."""
        return self.inv_freq.double() if isinstance(self.inv_freq, Tensor) else self._start()

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments; inv_freq as given, not as learned."""
        return super().options() | {"inv_freq": self._given}

    def reset_parameters(self) -> None:
        """Set learned frequencies to their initial values."""
        if isinstance(self.inv_freq, Tensor):
            with torch.no_grad():
                self.inv_freq.copy_(self._start())

    def _set_frequencies(self, n: int, inv_freq: Given | None, trainable: bool) -> None:
        if not isinstance(trainable, bool):  # "no" would be truthy
            raise TypeError(f"{self.name}: trainable must be True or False; got trainable={short(trainable)}.")
        self._given = None
        if inv_freq is not None:
            own = inv_freq(torch.arange(n, dtype=torch.float64, device="cpu")) if callable(inv_freq) else inv_freq
            self._given = frequencies.given(numbers(self.name, "inv_freq", own), n, self.name)
        self.trainable = trainable
        self.inv_freq: nn.Parameter | tuple[float, ...] | None = self._given
        if trainable:
            self.inv_freq = wide_parameter(n)
        self.reset_parameters()

    def _start(self) -> Float64[Tensor, " n"]:
        return self.formula() if self._given is None else torch.tensor(self._given, dtype=torch.float64)


class Scaled(Encoding):
    """A gain of the rotated dimensions and a factor on all scores, as in scaled rotations; mixed into a family."""

    def gain(self) -> float:
        """Return attention_factor."""
        return self.attention_factor

    def score_scale(self, head_dim: int) -> float:
        """Return head_dim^-0.5 times score_factor."""
        return super().score_scale(head_dim) * self.score_factor

    def _set_factors(self, attention_factor: float, score_factor: float) -> None:
        self.attention_factor = size(self.name, "attention_factor", attention_factor)
        self.score_factor = size(self.name, "score_factor", score_factor)


class OfLength(Encoding):
    """An encoding that depends on the current length, which `resolve` sets; mixed into a family.

    The length is an option, so a resolved encoding shows the length that it was resolved for and does not change.
    """

    length: int | None

    def resolve(self, seq_len: int) -> Encoding:
        """Return the encoding for one length; itself if it has a length."""
        if self.length is not None:
            return self
        twin = copy.copy(self)  # shares the parameters
        twin._set_length(seq_len)
        return twin

    def given_length(self) -> int:
        """Return the length.

        Raises:
            ValueError: No length is set yet.
        """
        if self.length is None:
            raise ValueError(
                f"{self.name}: depends on the length of the sequence and cannot be placed before the length is known; "
                "got length=None. Call resolve(seq_len) and use the result, or construct it with length=."
            )
        return self.length

    def _set_length(self, length: int | None) -> None:
        if length is not None:
            self._count(length=length)
            if length > LONGEST:
                raise ValueError(f"{self.name}: length must be at most {LONGEST}; got length={short(length)}.")
        self.length = length


class Budgeted(Encoding):
    """An encoding that makes tables of positions and limits their memory; mixed into a family."""

    table_budget: ClassVar[int] = 16 * 2**30  # bytes of tables above which `place` raises; you may set it

    def _afford(self, n_bytes: int) -> None:
        # a compiler or an exporter may leave a length open, and a comparison would bound it
        if not torch.compiler.is_compiling() and n_bytes > self.table_budget:
            raise ValueError(
                f"{self.name}: tables of positions must fit into table_budget={self.table_budget / 2**30:.3g} GiB; "
                f"these positions would need {n_bytes / 2**30:.3g} GiB. Place fewer at a time, or set "
                f"{self.name}.table_budget to more bytes."
            )


class ReadsTokens(Encoding):
    """An encoding that reads the input of its attention layer, tokens of width `d_model`; mixed into a family."""

    reads_x = True
    d_model: int

    def place(
        self,
        pos: Pos,
        x: Tensor | None = None,
        *,
        past: Placed | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Placed:
        """Read tokens (batch, seq_len, d_model), continuing after `past`; positions get their batch.

        Raises:
            TypeError: There are no tokens.
            ValueError: The tokens' shape does not match the positions and d_model, or the batches of tokens, positions
                and `past` differ.
        """
        pos = self._check(pos, dtype)
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{self.name}: reads the tokens, so positions are not enough; got x={short(x)}. Pass place(pos, x), "
                "where x is the tensor that enters the attention layer."
            )
        if x.ndim != 3 or x.shape[-1] != self.d_model or x.shape[1] != pos.shape[-1]:
            raise ValueError(
                f"{self.name}: x must be (batch, seq_len={pos.shape[-1]}, d_model={self.d_model}), to match the "
                f"positions and weights; got {tuple(x.shape)}."
            )
        rows = {"x": x.shape[:1], "pos": pos.shape[:-1], "past": () if past is None else past.pos.shape[:-1]}
        try:
            batch = torch.broadcast_shapes(*rows.values())
        except RuntimeError:
            given = " and ".join(f"{n[0]} of {what}" for what, n in rows.items() if n)
            raise ValueError(
                f"{self.name}: tokens, positions and past must have one batch, or one row for all; got rows: {given}. "
                "Place the rows of one batch together."
            ) from None
        pos = pos.expand(*batch, -1)
        return Placed(pos, self.parts(pos, x.expand(*batch, -1, -1), past, dtype))

    @staticmethod
    def clear(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Set tokens that are not finite, as those of padding may be, to zero; also return which ones are finite.

        Clearing their results instead would leave NaN in the gradients of the weights that read them.
        """
        finite = x.isfinite().all(-1, keepdim=True)
        return x.masked_fill(~finite, 0.0).to(dtype), finite
