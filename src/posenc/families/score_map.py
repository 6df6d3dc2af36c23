"""What makes other scores of whole rows of them, before mask and softmax."""

from jaxtyping import Bool, Float
from torch import Tensor

from posenc.encoding import Encoding, Placed


class ScoreMap(Encoding):
    """An encoding that maps the scores of all keys of a query to others; its author writes `rescore`.

    Scores come scaled and with all biases, and rows are whole: every key that the query may see is there. So only
    attention that forms them can run it, the reference and blocks of queries.
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
        """Return other scores in the precision of those that are given.

        Args:
            scores: Scaled, and with all biases.
            q: Queries as they were before any turn.
            k: The same for keys.
            placed: What `place` made of the queries' positions.
            k_placed: The same for the keys.
            mask: True where attention is allowed, broadcastable to the scores; None where it is everywhere.
        """
        raise NotImplementedError(f"{self.name} must define rescore(scores, q, k, placed, k_placed, mask).")
