"""Calls of which the memory is known, for a child process to import."""

import os
import signal
import time

import torch


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
