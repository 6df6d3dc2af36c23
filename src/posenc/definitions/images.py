"""Definitions of encodings that act on the scores of images: (q_pos (m, 2), k_pos (n, 2)) -> (n_heads, m, n).

A position is (row, column) = (y, x), whole, of a patch; distance (dy, dx) = q_pos - k_pos. As in `bias`, each result is
added to q.k / sqrt(head_dim) before the softmax, except where the docstring describes another rule of the paper.
If a table covers a window, a distance that does not occur in the window raises IndexError.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def _steps(q_at: Positions, k_at: Positions, window: tuple[int, int]) -> tuple[int, int]:
    """Return (dy, dx), which must be a distance between two patches of the window."""
    (y, x), (k_y, k_x) = q_at, k_at
    dy, dx = int(y - k_y), int(x - k_x)
    if abs(dy) >= window[0] or abs(dx) >= window[1]:
        raise IndexError(f"distance ({dy}, {dx}) does not occur in a window of {window[0]} x {window[1]}")
    return dy, dx


def dynamic_position_bias(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    width: int,
    depth: int = 3,
    log_distance: bool = False,
    n_axes: int = 1,
    norm: bool = True,
    activation: Literal["relu", "silu"] = "relu",
    w_in: Array,
    b_in: Array,
    ln_g: Array | None = None,
    ln_b: Array | None = None,
    w_mid: Array | None = None,
    b_mid: Array | None = None,
    w_out: Array,
    b_out: Array,
) -> Array:
    """A small trained network of the distance, instead of a table, so every distance has a bias.

    Paper: Wang et al. 2021, "CrossFormer: A Versatile Vision Transformer Hinging on Cross-scale Attention", arXiv
    2108.00154, section 3 (DPB): of (dy, dx), linear layers with layer normalisation and ReLU between them.

    q_pos (m, n_axes), k_pos (n, n_axes), with one axis also (m,), (n,); fractions allowed; the distance enters as is.
    depth hidden layers: w_in (width, n_axes), b_in (width,) into the first, w_mid (depth - 1, width, width), b_mid
    (depth - 1, width) into the others, ln_g, ln_b (depth, width) the gain and offset of each one's normalisation,
    w_out (n_heads, width), b_out (n_heads,). The authors' code has depth 3.
    Not specified in the paper, from its code: the variance is the mean square (not n - 1) plus 1e-5.
    w_mid, b_mid are for depth > 1, ln_g, ln_b for norm.
    Not from the paper: one axis; and, from x-transformers, log_distance, which takes sign(d) log(1 + |d|) for d on each
    axis, norm False, which leaves the normalisation out, and activation "silu", z / (1 + exp(-z)) in place of ReLU.
    """
    weights = [w_in, *([] if w_mid is None else w_mid)]
    offsets = [b_in, *([] if b_mid is None else b_mid)]
    gains, shifts = ([] if ln is None else list(ln) for ln in (ln_g, ln_b))
    act = {"relu": lambda z: np.maximum(z, 0), "silu": lambda z: z * np.exp(-np.logaddexp(0, -z))}[activation]
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for i, q_at in enumerate(q_pos.reshape(len(q_pos), n_axes)):
        for j, k_at in enumerate(k_pos.reshape(len(k_pos), n_axes)):
            d = np.asarray(q_at - k_at, float)
            z = np.sign(d) * np.log1p(np.abs(d)) if log_distance else d
            for layer in range(depth):
                z = weights[layer] @ z + offsets[layer]
                if norm:
                    mean = z.sum() / width
                    spread = math.sqrt(((z - mean) ** 2).sum() / width + 1e-5)
                    z = gains[layer] * (z - mean) / spread + shifts[layer]
                z = act(z)
            out[:, i, j] = w_out @ z + b_out
    return out


def swin(q_pos: Positions, k_pos: Positions, *, n_heads: int, window: tuple[int, int] = (7, 7), weight: Array) -> Array:
    """One trained number per head and distance (dy, dx) inside a window.

    Paper: Liu et al. 2021, "Swin Transformer", arXiv 2103.14030, section 3.2, equation 4: the table B-hat.

    q_pos (m, 2), k_pos (n, 2); window = (wh, ww) in patches; weight ((2 wh - 1) (2 ww - 1), n_heads), its rows those of
    the public tables: (dy + wh - 1) * (2 ww - 1) + (dx + ww - 1), so the key furthest ahead in both has row 0.
    """
    wh, ww = window
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for i, q_at in enumerate(q_pos):
        for j, k_at in enumerate(k_pos):
            dy, dx = _steps(q_at, k_at, window)
            out[:, i, j] = weight[(dy + wh - 1) * (2 * ww - 1) + (dx + ww - 1)]
    return out


def swin_v2(
    q_pos: Positions,
    k_pos: Positions,
    *,
    n_heads: int,
    window: tuple[int, int] = (8, 8),
    pretrained_window: tuple[int, int] | None = None,
    width: int = 512,
    w1: Array,
    b1: Array,
    w2: Array,
) -> Array:
    """A small trained network of the distance on a logarithmic scale, bounded by 16.

    Paper: Liu et al. 2021, "Swin Transformer V2", arXiv 2111.09883, section 3.3 (log-spaced continuous
    position bias): of sign(d) log(1 + |d|) on each axis, a hidden layer of ReLU.

    q_pos (m, 2), k_pos (n, 2); windows in patches; w1 (width, 2), b1 (width,), w2 (n_heads, width), no last offset; the
    network's input is (y, x). Not specified in the paper, from its code: d is first scaled to 8 d / (W - 1), W the side
    of the trained window (pretrained_window, else window), and the logarithm's base is 8, so inputs lie in
    -log_8(9).. log_8(9) in that window; the result is 16 sigmoid(network). A side of 1 has only d = 0.
    The models add the bias to the cosine similarity of q and k times a trained scale, which is not part of this.
    """
    side = [max(w - 1, 1) for w in (window if pretrained_window is None else pretrained_window)]
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        share = [8 * float(q - k) / n for q, k, n in zip(q_pos[i], k_pos[j], side, strict=True)]
        y, x = (math.copysign(math.log(1 + abs(d), 8), d) for d in share)
        z = sum(w2[h, u] * max(w1[u, 0] * y + w1[u, 1] * x + b1[u], 0.0) for u in range(width))
        out[h, i, j] = 16 * math.exp(-np.logaddexp(0, -z))
    return out


def beit(
    q_pos: Positions, k_pos: Positions, *, n_heads: int, window: tuple[int, int] = (14, 14), weight: Array
) -> Array:
    """The table of `swin` over the whole image, and three more numbers for a class token.

    Paper: Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", arXiv 2106.08254, which takes its relative
    position bias from Raffel et al. 2019 and prints no formula; this is the one of its code, of timm and Hugging Face.

    q_pos (m, 2), k_pos (n, 2), the class token at (-1, -1) or (-1, 0) and no other in a negative row (our convention);
    window = (wh, ww) in patches; weight ((2 wh - 1) (2 ww - 1) + 3, n_heads): the rows of `swin`, then, third from
    last, class to patch (the class token is the query), patch to class, and last class to class.
    """
    classes = ((-1, -1), (-1, 0))
    for at in (*q_pos, *k_pos):
        if at[0] < 0 and tuple(at) not in classes:
            raise IndexError(f"a token at ({at[0]:g}, {at[1]:g}) is neither a patch nor the class token")
    wh, ww = window
    patches = (2 * wh - 1) * (2 * ww - 1)
    rows = {(True, False): patches, (False, True): patches + 1, (True, True): patches + 2}
    out = np.zeros((n_heads, len(q_pos), len(k_pos)))
    for i, q_at in enumerate(q_pos):
        for j, k_at in enumerate(k_pos):
            row = rows.get((tuple(q_at) in classes, tuple(k_at) in classes))
            if row is None:
                dy, dx = _steps(q_at, k_at, window)
                row = (dy + wh - 1) * (2 * ww - 1) + (dx + ww - 1)
            out[:, i, j] = weight[row]
    return out


def decomposed_2d(
    q: Array,
    k: Array,
    q_pos: Positions,
    k_pos: Positions,
    *,
    head_dim: int,
    size: tuple[int, int],
    rel_h: Array,
    rel_w: Array,
) -> Array:
    """The query's product with a trained vector of the row difference and one of the column difference.

    Paper: Li et al. 2021, "MViTv2", arXiv 2112.01526 (decomposed relative position embeddings): q_i . (R_h + R_w)
    added, without the R_t of videos; as in Segment Anything (Kirillov et al. 2023, arXiv 2304.02643).

    q (n_heads, m, head_dim), k (n_heads, n, head_dim), which is not used; q_pos (m, 2), k_pos (n, 2); size = (h, w)
    in patches; rel_h (2 h - 1, head_dim), row dy + h - 1; rel_w (2 w - 1, head_dim), row dx + w - 1; all heads share.
    Departure, shared with both codes: the paper divides q . (k + R) by sqrt(head_dim); the codes divide only q . k, and
    q . R is NOT divided.
    """
    out = np.zeros((len(q), len(q_pos), len(k_pos)))
    for h, i, j in np.ndindex(out.shape):
        dy, dx = _steps(q_pos[i], k_pos[j], size)
        out[h, i, j] = q[h, i] @ rel_h[dy + size[0] - 1] + q[h, i] @ rel_w[dx + size[1] - 1]
    return out
