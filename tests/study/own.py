"""Classes of a user's own, for the study to load by name."""

import torch

import posenc


class TwoAxes(posenc.Encoding):
    n_axes = 2


class SquareRoot(posenc.Bias):
    """Subtract the square root of the distance."""

    def at(self, h, q, k):
        return -((q - k).abs().float().sqrt())


class Failing(posenc.Encoding):
    """Fail as soon as it is used."""

    def place(self, pos, x=None, *, past=None, dtype=torch.float32):
        raise RuntimeError("out of <positions>")


class FailingInOne(posenc.Encoding):
    """Fail in one of the processes that work together, while the others go on."""

    def parts(self, pos, x, past, dtype):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise RuntimeError("out of positions in one")
        return ()


class Dying(posenc.Encoding):
    """End the process that trains it, as the system does when memory is short."""

    def place(self, pos, x=None, *, past=None, dtype=torch.float32):
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)


class Starving(posenc.Encoding):
    """Allocate more than the system allows."""

    def place(self, pos, x=None, *, past=None, dtype=torch.float32):
        import resource
        from pathlib import Path

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, before[1]))
        try:
            held = [torch.ones(2**22) for _ in range(64)]
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return x + len(held)
