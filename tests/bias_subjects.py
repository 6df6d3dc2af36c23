"""What the tests of slopes, biases, buckets and indices share: right parts to spoil, and `judged`."""

import json
import math
from importlib import resources

import torch

from posenc.verify.biases import check as biases

ALIBI = {"encoding": "alibi"}


def slopes(n, power=lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)]):
    """Return the slopes by the authors' rule, of any series for powers of two."""
    low = 2 ** math.floor(math.log2(n))
    return power(n) if low == n else power(low) + power(2 * low)[0::2][: n - low]


def geometric(n):
    return [2 ** (-8 * (h + 1) / n) for h in range(n)]


def next_power(n):
    return geometric(2 ** math.ceil(math.log2(n)))[:n]


def of_ranks(n, ranks=2):
    return slopes(n)[: n // ranks] * ranks


def of_local(n, ranks=4):
    return slopes(n // ranks) * ranks if n % ranks == 0 else slopes(n)


def column(n, rule=slopes):
    return torch.tensor(rule(n))[:, None, None]


def steps(q, k):
    return (torch.arange(k - q, k)[:, None] - torch.arange(k)).float()


def bucket(rel, both=True, nb=32, md=128, *, clamp=None, exact=None, log=None, last=None, ahead=None):
    """Return T5's buckets, with one part of the rule exchanged."""
    start = torch.zeros_like(rel)
    if both:
        nb //= 2
        start = start + (rel > 0).long() * (nb if ahead is None else ahead)
        n = rel.abs()
    else:
        n = -torch.minimum(rel, torch.zeros_like(rel))
    half = nb // 2 if exact is None else exact(nb)
    share = torch.log(n.clamp(min=1).float() / half) / math.log(md / half) * (nb - half)
    if log is not None:
        share = log(n.clamp(min=1).float(), half, nb, md)
    far = half + share.long()
    far = far if clamp == "none" else far.clamp(max=nb - 1 if last is None else last(nb))
    return start + torch.where(n < half, n, far)


def index(h, w, step=None, sign=1, absolute=False, shift=True, order="row"):
    n = torch.arange(h * w)
    y, x = (n // w, n % w) if order == "row" else (n % h, n // h)
    dy, dx = sign * (y[:, None] - y), sign * (x[:, None] - x)
    if absolute:
        dy, dx = dy.abs(), dx.abs()
    if shift:
        dy, dx = dy + h - 1, dx + w - 1
    return dy * (2 * w - 1 if step is None else step(h, w)) + dx


def judged(subject, convention, spec, status, code):
    report = biases.check(subject, convention, spec).report(convention)
    said = [(c.code, c.message) for c in report.causes]
    if status is not None:
        assert report.status == status, (report.status, report.because, said)
    if code:
        assert report.causes, report
        assert report.causes[0].code == code, said
    for cause in report.causes:
        assert cause.message.endswith(".") or cause.code.startswith("subject."), cause.message
        json.dumps(report.to_dict())
        assert not cause.code.startswith(("alibi", "t5", "swin", "deberta")) or cause.code in codes(), cause.code
    assert bool(report.because) == (report.status in ("equivalent", "cannot_tell"))
    return report


def codes():
    return json.loads((resources.files("posenc.verify") / "codes" / "biases.json").read_text())
