"""torch's scaled_dot_product_attention: no bias, and no mask that must be built. One query may take two products."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import fused, one_query
from posenc.attention.call import Call
from posenc.families import no_autocast


class SDPA:
    """Plain SDPA: no extra memory but where values have another width than keys, or one query is two products."""

    name = "sdpa"

    def rejects(self, call: Call) -> str | None:
        """Refuse what SDPA cannot take without a matrix of all scores."""
        if (reason := fused.mixed(call)) is not None:
            return reason
        if call.encoding.rescores or call.leaves:
            return f"{call.encoding.name} joins the scores, which SDPA takes as a mask of q_len x k_len alone."
        if call.causal and not fused.hides(call.scale):
            return "torch's causal kernel multiplies minus infinity by the scale, which must be above zero in float32."
        if not torch.compiler.is_compiling() and call.shape[3] == 0:
            return "torch's kernel divides by the number of keys, and there are none."
        return refuses_masks(call)

    def memory(self, call: Call) -> int:
        """Nothing, unless values must be made as wide as keys, or one query has a row of scores."""
        if one_query.fits(call):
            return one_query.memory(call)
        batch, _, q_len, k_len = call.shape
        narrow = abs(call.v.shape[-1] - call.q.shape[-1]) * call.out_dtype.itemsize
        return batch * narrow * (call.k.shape[1] * k_len + call.q.shape[1] * q_len)

    def run(self, call: Call) -> Tensor:
        """Run SDPA; under autocast the cast is ours."""
        with no_autocast(call.q.device):
            if one_query.fits(call):
                return one_query.run(call)
            q, k, v = (t.to(call.out_dtype) for t in (*call.turned(), call.v))
            return plain(call, q, k, v, call.scale)


def refuses_masks(call: Call) -> str | None:
    """Say why the kernel would need a mask of q_len x k_len, or None."""
    if call.mask is not None or call.window is not None or call.document_ids is not None:
        return "a mask, window or documents would be a mask of q_len x k_len; blocks of queries see slices instead."
    if call.causal and not _aligned(call):
        # no lengths in these words: a compiler would take them for constants
        return "torch's is_causal aligns at the start, which is wrong for the last few queries of a longer text."
    if call.dropout_p and call.q.device.type == "cpu":
        return "on a CPU torch forms all weights for dropout; blocks of queries form few at a time."
    return None


def plain(call: Call, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Run SDPA on turned tensors of one dtype, with zeros beside narrow lanes: kernels want one width."""
    width, widest = v.shape[-1], max(q.shape[-1], v.shape[-1])
    q, k, v = (t if t.shape[-1] == widest else F.pad(t, (0, widest - t.shape[-1])) for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        dropout_p=call.dropout_p,
        is_causal=call.causal and not single(call),
        scale=scale,
        enable_gqa=grouped(call),
    )
    return out[..., :width]


def grouped(call: Call) -> bool:
    """Whether several heads of q share one of k."""
    if call.q.shape[1] != call.k.shape[1]:  # noqa: SIM103 - a branch, since a compiler's symbolic bool is no bool
        return True
    return False


def _aligned(call: Call) -> bool:
    """Whether torch's own is_causal means what ours means, or one query sees everything."""
    if single(call) or call.q.shape[2] == call.k.shape[2]:  # noqa: SIM103 - as above
        return True
    return False


def single(call: Call) -> bool:
    """Whether there is one query, the last token: it sees every key, where torch's is_causal shows it one."""
    if not torch.compiler.is_compiling() and call.q.shape[2] == 1:  # noqa: SIM103 - as above
        return True
    return False
