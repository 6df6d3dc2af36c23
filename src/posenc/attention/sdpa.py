"""torch's scaled_dot_product_attention, with the bias as a dense mask where there is one."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.call import Call, zero_empty_rows
from posenc.families import autocast_dtype, no_autocast


class SDPA:
    """Plain SDPA: free of extra memory without a bias, and a mask of q_len x k_len with one."""

    name = "sdpa"

    def rejects(self, call: Call) -> str | None:
        """Refuse what SDPA cannot take."""
        if len({call.q.dtype, call.k.dtype, call.v.dtype}) > 1 and autocast_dtype(call.q.device) is None:
            return (
                f"q, k and v must have one dtype; got {call.q.dtype}, {call.k.dtype}, {call.v.dtype}. "
                "Cast them, or run under autocast."
            )
        return None

    def memory(self, call: Call) -> int:
        """Estimate the mask, if one must be built."""
        batch, n_heads, q_len, k_len = call.shape
        if _has_bias(call):
            shared = call.placed.seq_dim == 0 and not call.encoding.reads_qk
            return (1 if shared else batch) * n_heads * q_len * k_len * max(4, call.q.dtype.itemsize)
        masked = any(m is not None for m in (call.mask, call.window, call.document_ids))
        return batch * q_len * k_len if masked or (call.causal and not _plain_causal(call)) else 0

    def run(self, call: Call) -> Tensor:
        """Run SDPA; under autocast the cast is ours, since autocast would round the bias as well."""
        dtype = call.out_dtype
        with no_autocast(call.q.device):
            call, allowed = call.blanked()
            bias = call.bias()
            causal = _plain_causal(call) and bias is None
            mask = _mask(call, bias, None if causal else allowed)
            # a bias of 50 loses its fraction in half precision. The CPU adds a float32 mask to half precision
            # scores; other devices demand one dtype, so that there all of it is float32
            wide = mask is not None and mask.is_floating_point() and call.q.device.type != "cpu" and dtype.itemsize < 4
            q, k, v = (t.to(torch.float32 if wide else dtype) for t in (*call.turned(), call.v))
            if mask is not None and mask.is_floating_point():
                mask = mask.to(torch.float64 if dtype == torch.float64 else torch.float32)
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=call.dropout_p,
                is_causal=causal,
                scale=call.scale,
                enable_gqa=_grouped(call),
            )
            return zero_empty_rows(out, None if causal else allowed).to(dtype)


def _mask(call: Call, bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """Return what joins the scores: who sees whom as booleans, or all terms added up."""
    terms = [term for term in (bias, call.added()) if term is not None]
    if not terms:
        return allowed
    mask = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    return mask if allowed is None else mask.masked_fill(~allowed, -torch.inf)


def _grouped(call: Call) -> bool:
    if call.q.shape[1] != call.k.shape[1]:  # noqa: SIM103 - a branch, since a compiler's symbolic bool is no bool
        return True
    return False


def _plain_causal(call: Call) -> bool:
    """Whether torch's own is_causal, which aligns at the start, means what ours means."""
    masked = call.mask is not None or call.window is not None or call.document_ids is not None
    if call.causal and not masked and call.q.shape[2] == call.k.shape[2]:  # noqa: SIM103 - as above
        return True
    return False


def _has_bias(call: Call) -> bool:
    q, k = call.q[:, :, :0], call.k[:, :, :0]
    return call.encoding.bias(q, k, call.placed.last(0), call.k_placed.last(0)) is not None
