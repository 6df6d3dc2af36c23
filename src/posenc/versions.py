"""What older releases of torch do otherwise; docs/versions.md says what was run on which."""

import torch

RELEASE = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
# torch's attention for the CPU reads one head of keys for several heads of queries, and masks of any strides
SHARES_KEYS, READS_STRIDES = RELEASE >= (2, 9), RELEASE >= (2, 8)
# torch.nn.RMSNorm without eps takes that of float32 for numbers of two bytes, not their own
WIDE_EPS = RELEASE >= (2, 7)

# its exporters say that they export, and follow what posenc does; releases between 2.6 and 2.9 were not tried
EXPORTS = RELEASE >= (2, 9)
# a compiler follows what a module holds; 2.9 does not, releases between were not tried
FOLLOWS_VARS = RELEASE >= (2, 13)


def _never() -> bool:
    return False


# whether a graph is made for a file; a release that cannot say puts posenc's operator of attention into the file
is_exporting = getattr(torch.compiler, "is_exporting", _never)
