"""Calls of which the memory is known, for a child process to import."""

import os
import signal
import sys
import time

import torch

import posenc
from posenc import private


def temporary(n):
    """Form n numbers in float32 and return one."""
    return lambda: torch.ones(n).max()


def kept(n):
    """Return n numbers in float32."""
    return lambda: torch.ones(n)


def inputs_only(n):
    """Hold n numbers as inputs, and form none."""
    numbers = torch.ones(n)
    return lambda: numbers.max()


def freed_before(n):
    """Free n numbers, and form the same again: the peak that earlier work left is no peak of this one."""
    torch.ones(n).max()
    return lambda: torch.ones(1).max()


def in_holes(n):
    """Take n numbers at a time, each time in another hole that earlier work left between what it keeps."""
    torch.ones(8 * n).max()  # from whose size on glibc looks for holes
    sizes = [n + 1000 * i for i in range(8)]
    held = [(torch.ones(size), torch.ones(size)) for size in sizes]
    held = [kept for _, kept in held]
    return lambda: [float(torch.ones(size).max()) for size in sizes] and held


def failing():
    """Raise when it is called."""

    def call():
        raise ValueError("there is nothing to see.")

    return call


def killed():
    """Die as a process does that the system ends."""
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def sleeping():
    """Never end in time."""
    return lambda: time.sleep(60)


def scattered(n, *call):
    """Attend at n tokens whose positions follow no order, with a bias that sees distances."""
    encoding, q, pos = scattered_call(n, *call)
    return torch.no_grad()(lambda: posenc.attend(q, q, q, encoding, pos, backend="blocked"))


def scattered_call(n, n_heads=8, n_biases=1, apart=1):
    """Return an encoding, queries and positions of which no two neighbours are as far apart as the next."""
    biases = [posenc.ALiBi(n_heads=n_heads), posenc.T5(n_heads=n_heads)][:n_biases]
    return posenc.Compose(*biases), torch.randn(1, n_heads, n, 64), torch.arange(n) * 7919 % n * apart


def attended(n, name, backend, learns, elsewhere=False):
    """Attend at n tokens by a backend, with gradients or without; elsewhere no value is looked at, as on a GPU."""
    encoding, q, pos = attended_call(n, name, learns, elsewhere)

    def run():
        with torch.set_grad_enabled(learns):
            out = posenc.attend(q, q, q, encoding, pos, backend=backend)
            return out.sum().backward() if learns else out

    return run


def attended_call(n, name, learns, elsewhere):
    """Return an encoding of eight heads, queries and positions."""
    if elsewhere:
        look_at_nothing(setattr)
    made = {"head_dim": 64} if name in ("shaw", "rerope", "cope") else {"n_heads": 8}
    made |= {"head_dim": 64, "n_buckets": 64, "max_distance": 128} if name == "deberta" else {}
    made |= {"rerope": {"window": 256}, "cope": {"max_count": 64}}.get(name, {})
    return posenc.create(name, **made), torch.randn(1, 8, n, 64, requires_grad=learns), torch.arange(n)


def look_at_nothing(put):
    """Take values for such that a device would have to be waited for, and torch's kernel for CPUs away."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "posenc" and hasattr(module, "may_look"):
            put(module, "may_look", lambda _: False)
    put(private, "has_attention", lambda: False)
