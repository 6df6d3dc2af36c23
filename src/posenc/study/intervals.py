"""The 90 % t interval of a mean of paired differences."""

from collections.abc import Sequence
from statistics import fmean, stdev

# The 0.95 quantile of Student's t for 1 to 30 degrees of freedom, and of the normal distribution
_T = (
    6.313752, 2.919986, 2.353363, 2.131847, 2.015048, 1.943180, 1.894579, 1.859548, 1.833113, 1.812461,
    1.795885, 1.782288, 1.770933, 1.761310, 1.753050, 1.745884, 1.739607, 1.734064, 1.729133, 1.724718,
    1.720743, 1.717144, 1.713872, 1.710882, 1.708141, 1.705618, 1.703288, 1.701131, 1.699127, 1.697261,
)  # fmt: skip
_NORMAL = 1.644854


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends of the two-sided 90 % t interval of the mean, or None for fewer than two differences.

    >>> interval([0.0, 2.0])
    (-5.313752, 7.313752)
    """
    freedom = len(differences) - 1
    if freedom < 1:
        return None
    quantile = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    mean, half = fmean(differences), quantile * stdev(differences) / (freedom + 1) ** 0.5
    return mean - half, mean + half
