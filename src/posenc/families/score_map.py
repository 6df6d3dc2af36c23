"""Encodings that map whole rows of scores to other scores, before mask and softmax."""

from jaxtyping import Bool, Float
from torch import Tensor

from posenc.encoding import Encoding, Placed


class ScoreMap(Encoding):
    """An encoding that maps the scores of all keys of a query to other scores; its author writes `rescore`.

    Scores arrive scaled and with all biases. Rows are complete: they contain every key that the query may attend to.
    So only attention that forms whole rows supports it: the reference and blocks of queries.
    """

    family = "score_map"
    rescores = True

    def rescore(
        self,
        scores: Float[Tensor, "batch n_heads q_len k_len"],
        q: Float[Tensor, "batch n_heads q_len head_dim"],
        k: Float[Tensor, "batch n_kv_heads k_len head_dim"],
        placed: Placed,
        k_placed: Placed,
        mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return the new scores in the precision of the given ones.

        Args:
            scores: Scaled scores with all biases.
            q: Queries before any rotation.
            k: Keys before any rotation.
            placed: The queries' positions, from `place`.
            k_placed: The keys' positions, from `place`.
            mask: True where attention is allowed, broadcastable to the scores; None if it is allowed everywhere.
        """
        raise NotImplementedError(f"{self.name} must define rescore(scores, q, k, placed, k_placed, mask).")
