"""Whether numbers may be read and written past torch: nobody traces, transforms or intercepts what is done."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.autograd import forward_ad

from posenc.positions.checks import all_plain

_PLAIN = (Tensor, nn.Parameter)
# asked at each call, and each look-up is a part of decoding's microseconds
_n_dispatch_modes, _n_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_tracing, _has_storage = torch._C._get_tracing_state, torch._C._has_storage
transform_level = torch._C._functorch.maybe_current_level


def watched() -> bool:
    """Whether somebody sees each operation."""
    if _n_dispatch_modes() or _tracing() or forward_ad._current_level >= 0:
        return True
    return bool(_n_function_modes() and _len_torch_dispatch_stack_pre_dispatch())  # recorded before autograd


def is_memory(turned: Sequence[Tensor], others: Iterable[Tensor]) -> bool:
    """Whether what is turned or written to, and what is read beside it, are numbers in memory."""
    if watched() or (transform_level() is not None and not all_plain([*turned, *others])):
        return False
    for t in others:
        if type(t) not in _PLAIN:
            return False
    for t in turned:
        if type(t) not in _PLAIN or t.is_neg() or not _has_storage(t):  # sparse, or a batch of gradients
            return False
    return not turned[0].is_meta
