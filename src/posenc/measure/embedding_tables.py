"""Compare a checkpoint's position vectors with its token vectors: their lengths, and how independent dimensions are."""

import os
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float64
from safetensors import SafetensorError, safe_open

from posenc.config.values import short
from posenc.families.numbers import size
from posenc.interop.checkpoint import PICKLES
from posenc.measure.tables import covariance, diagonal_share, norms
from posenc.measure.values import Array, Numbers, matrix

_NAMED = 5  # names that an error lists


@dataclass(frozen=True)
class EmbeddingTables:
    """The quantities that the Taylor view makes assumptions about, measured on a model's tables.

    Args:
        token_diagonal: The share of the squares of the tokens' covariance on its diagonal: 1 if no two dimensions are
            correlated, about 1 / d_model if all are.
        position_diagonal: The same for positions.
        token_norm: The mean length of a token vector.
        position_norm: The mean length of a position vector.
    """

    token_diagonal: float
    position_diagonal: float
    token_norm: float
    position_norm: float

    @property
    def ratio(self) -> float:
        """The mean length of position vectors over that of token vectors: the Taylor expansion assumes a small one."""
        return self.position_norm / self.token_norm


def embedding_tables(tokens: Numbers, positions: Numbers, *, token_scale: float = 1.0) -> EmbeddingTables:
    """Measure a checkpoint's tables of token vectors and position vectors.

    Su's reading of p_m · H p_n assumes that p is small and H is diagonal, the latter because dimensions of embeddings
    vary independently. This function measures both assumptions, in float64 on one copy of each table.

    Args:
        tokens: (vocab_size, d_model), a tensor, an array or nested lists.
        positions: (max_len, d_model), without the rows for padding that some models have at the start.
        token_scale: The factor of token vectors before positions are added; sqrt(d_model) in Vaswani et al.

    Source: Su 2021, kexue.fm/archives/8231.

    >>> embedding_tables([[3.0, 4.0], [-3.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]])
    EmbeddingTables(token_diagonal=1.0, position_diagonal=0.5, token_norm=5.0, position_norm=1.0)
    """
    who = "embedding_tables"
    token_rows, position_rows = matrix(who, "tokens", tokens), matrix(who, "positions", positions)
    if token_rows.shape[1] != position_rows.shape[1]:
        raise ValueError(
            f"{who}: tokens and positions must be equally wide; got d_model={token_rows.shape[1]} and "
            f"{position_rows.shape[1]}. Pass the table of positions that is added to these tokens."
        )
    scale = size(who, "token_scale", token_scale)
    if not token_rows.any():
        raise ValueError(f"{who}: tokens must not all be zero, because positions are compared with their length.")
    return EmbeddingTables(
        diagonal_share(covariance(token_rows)),
        diagonal_share(covariance(position_rows)),
        float(norms(token_rows).mean()) * scale,
        float(norms(position_rows).mean()),
    )


def read_table(path: str | os.PathLike[str], name: str) -> Float64[Array, "rows columns"]:
    """Read only one table, such as "wpe.weight", from a safetensors file."""
    who, file = "read_table", Path(path)
    if file.suffix in PICKLES or not file.is_file():
        raise ValueError(
            f"{who}: path must be a file in safetensors; got {short(file.name)}. If you trust the file, load the model "
            "and save it with save_pretrained, which writes model.safetensors."
        )
    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            tensor = opened.get_tensor(name) if name in names else None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{who}: {short(file.name)} cannot be read: {short(str(error))}. Restore it.") from error
    if tensor is None:
        likely = sorted(names, key=lambda one: (not any(word in one for word in ("emb", "wte", "wpe", "pos")), one))
        listed = ", ".join(likely[:_NAMED]) + (", .." if len(likely) > _NAMED else "")
        raise ValueError(f"{who}: {short(file.name)} has no tensor {short(name)}; it has {listed}.")
    return matrix(who, name, tensor)
