"""Differences between releases of torch; docs/versions.md lists the versions that were tested."""

import torch

RELEASE = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
# torch's attention for the CPU reads one head of keys for several heads of queries, and masks of any strides
SHARES_KEYS, READS_STRIDES = RELEASE >= (2, 9), RELEASE >= (2, 8)
# torch.nn.RMSNorm without eps uses the epsilon of float32 for half precision
WIDE_EPS = RELEASE >= (2, 7)

# exporters set is_exporting and can trace posenc; releases between 2.6 and 2.9 are not tested
EXPORTS = RELEASE >= (2, 9)
# a compiler can trace vars(module); 2.9 cannot, and releases between are not tested
FOLLOWS_VARS = RELEASE >= (2, 13)


def _never() -> bool:
    return False


# whether a graph is made for a file; without it, the file contains posenc's attention operator
is_exporting = getattr(torch.compiler, "is_exporting", _never)
