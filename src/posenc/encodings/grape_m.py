"""GRAPE-M: rotations in learned planes."""

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies, kernels
from posenc.families import Rotary, by_key_head, check_tokens, geometric, no_autocast, wide_parameter
from posenc.registry import register


@register(
    "grape_m",
    paper="Zhang et al., Group Representational Position Encoding",
    year=2025,
    arxiv="2512.07805",
    formula="R_h(p) = exp(p·Σ_m ω_{h,m} L_{h,m}),  L = v uᵀ - u vᵀ for orthonormal u, v",
    parameters="n_kv_heads * n_planes * (2 * head_dim + 1)",
    cost="two products with a matrix (head_dim, 2 n_planes) for each token and head",
    aliases=("grape", "multiplicative_grape"),
    serves=("text",),
    example={"n_kv_heads": 4, "head_dim": 64},
    variants=({"head_dim": 5, "n_planes": 1, "n_kv_heads": 2},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 16_512,
        "cost": "token",
    },
)
class GRAPEM(Rotary):
    """Rotate queries and keys in learned planes, at learned frequencies, with one set for each key head.

    The planes of a head are orthogonal to each other, so their rotations commute and scores depend only on the
    distance. Components outside the planes stay fixed. It starts as RoPE (interleaved), with planes along pairs of
    dimensions. Rodrigues' formula replaces the matrix exponential. The columns of `planes` must stay linearly
    independent. Source: Zhang 2025, sections 2 and 3.

    Args:
        n_kv_heads: Number of key heads; the queries of a group share the planes of their key head.
        head_dim: Dimensions of one head.
        n_planes: Number of planes that rotate; None means head_dim / 2.
        base: 10,000, for the initial frequencies.

    Raises:
        ValueError: n_planes is more than head_dim / 2, head_dim is odd without n_planes, n_kv_heads is below 1, or base
            is not above 1.

    >>> GRAPEM(n_kv_heads=2, head_dim=8, n_planes=1).basis().shape
    torch.Size([2, 8, 2])
    """

    keeps_float32 = True
    n_kv_heads: int

    def __init__(self, *, n_kv_heads: int, head_dim: int, n_planes: int | None = None, base: float = 10000.0) -> None:
        self._count(n_kv_heads=n_kv_heads, head_dim=head_dim, n_planes=1 if n_planes is None else n_planes)
        if head_dim % 2 if n_planes is None else 2 * n_planes > head_dim:
            raise ValueError(
                f"{self.name}: a plane has two dimensions, so n_planes must be at most {head_dim // 2}, and an odd "
                f"head_dim needs n_planes; got head_dim={head_dim}, n_planes={n_planes}."
            )
        super().__init__(
            head_dim=head_dim, rotary_dim=None if n_planes is None else 2 * n_planes, pairing="interleaved"
        )
        self.n_kv_heads, self.n_planes = n_kv_heads, self.rotary_dim // 2
        self.base = frequencies.check_base(base, self.name)
        self.planes = wide_parameter(n_kv_heads, head_dim, self.rotary_dim)
        self.log_freq = wide_parameter(n_kv_heads, self.n_planes)
        self.reset_parameters()

    def frequencies(self) -> Float64[Tensor, "n_kv_heads 1 n_planes"]:
        """Return radians per position of each plane."""
        return self.log_freq.double().exp()[:, None]

    def basis(self) -> Float64[Tensor, "n_kv_heads head_dim rotary_dim"]:
        """Return orthonormal columns, two per plane: the columns of `planes` after Gram-Schmidt."""
        q, r = torch.linalg.qr(self.planes.double())
        basis: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # QR does not fix the columns' signs
        return basis

    def reset_parameters(self) -> None:
        """Start as RoPE over head_dim: the first planes along the first pairs of dimensions."""
        with torch.no_grad():
            self.planes.copy_(torch.eye(self.head_dim)[:, : self.rotary_dim].expand_as(self.planes))
            start = geometric(self.n_planes, base=self.base, width=self.head_dim)
            self.log_freq.copy_(start.log().expand_as(self.log_freq))

    def of_slice(self) -> "Rotary":
        """Refuse, because planes lie across all dimensions.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{self.name}: planes lie across all dimensions, so none can be left out. Rotate whole heads.")

    def _rotate(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        check_tokens(self.name, x, self.head_dim, tables[0].shape[:-2])
        cos, sin = (t.movedim(-2, -3).unsqueeze(-3) for t in tables)
        with no_autocast(x.device):
            basis, lanes = self.basis().to(cos.dtype), by_key_head(self.name, x.to(cos.dtype), self.n_kv_heads)
            inside = torch.einsum("bkgsd,kdr->bkgsr", lanes, basis)
            change = kernels.rotate(inside, cos, sin, pairing=self.pairing) - inside
            rotated: Tensor = (lanes + torch.einsum("bkgsr,kdr->bkgsd", change, basis)).flatten(1, 2)
        return rotated.to(x.dtype)
