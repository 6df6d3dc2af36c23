"""The calls that are compared: each candidate of a row as a function without arguments."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import attention
from posenc.bench import models
from posenc.bench.measure import Work
from posenc.bench.peers import PEERS
from posenc.bench.rows import Row
from posenc.bench.setting import Forward, Setting, prepare

PLAIN = "plain"


def call_options(setting: Setting, backend: str) -> dict[str, Any]:
    """Return the options of `attend` for a row."""
    row = setting.row
    options = {"causal": row.causal, "window": row.window, "document_ids": setting.document_ids}
    return options | {"rotated": row.rotated, "backend": backend}


def build(setting: Setting, name: str) -> Work:
    """Return a candidate of a row: "plain", "attend" with a backend behind a colon, or a peer.

    Raises:
        ValueError: Nothing has that name.
        ImportError: The peer is not installed.
    """
    if setting.row.mode == "model":
        return _work(setting, models.forward(setting.row, ours=name != PLAIN), [])
    if name == PLAIN:
        causal = setting.row.causal and setting.row.mode != "decode"

        def plain() -> Tensor:
            return F.scaled_dot_product_attention(setting.q, setting.k, setting.v, is_causal=causal)

        return _work(setting, plain, [setting.q, setting.k, setting.v])
    kind, _, backend = name.partition(":")
    if kind == "attend":
        return _work(setting, _attend(setting, backend), setting.learned())
    if name not in PEERS:
        raise ValueError(f"bench: no candidate is called {name!r}; peers are {', '.join(PEERS)}.")
    forward, learned = PEERS[name].make(setting)
    return _work(setting, forward, learned)


def build_row(row: Row, name: str) -> Work:
    """Return a candidate with inputs of its own: what a child process is given."""
    return build(prepare(row), name)


def verdicts(row: Row, backend: str = "auto") -> list[attention.Verdict]:
    """Return what `explain` says of a row; nothing is computed and no input is filled."""
    setting = prepare(row, empty=True)
    with torch.set_grad_enabled(row.mode == "train"):
        q_placed, k_placed = setting.place()
        return attention.explain(
            setting.q, setting.k, setting.v, setting.encoding, q_placed, k_placed, **call_options(setting, backend)
        )


def _attend(setting: Setting, backend: str) -> Forward:
    options = call_options(setting, backend)
    fixed = None if setting.row.mode == "train" else setting.place()

    def forward() -> Tensor:
        q_placed, k_placed = fixed or setting.place()  # what place() learns needs a graph of its own in every step
        return posenc.attend(setting.q, setting.k, setting.v, setting.encoding, q_placed, k_placed, **options)

    return forward


def _work(setting: Setting, forward: Forward, learned: list[Tensor]) -> Work:
    """Return the forward pass without gradients, or the forward and the backward pass."""
    if setting.row.mode != "train":
        return torch.no_grad()(forward)
    seeded = torch.Generator(setting.q.device).manual_seed(1)  # all candidates go back from the same gradient
    slope = torch.randn(setting.q.shape, generator=seeded, dtype=setting.q.dtype, device=setting.q.device)

    def step() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(forward(), learned, slope, allow_unused=True)

    return step
