"""Texts run through a model: near, far, and all at position 0, with what its configuration turns there."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc import positions
from posenc.compose import PerLayer
from posenc.config.model import open_model
from posenc.config.reading import Checked
from posenc.verify.models import watching
from posenc.verify.models.measuring import Expected

TOKENS = 256
_BATCH = 2
_LONGEST = 1 << 20  # positions; beyond it float32 angles say nothing of the fast pairs
_UNTOLD = 8192  # the longest position of a file that names none


@dataclass(frozen=True)
class Run:
    """One text at given positions, and what should turn each layer."""

    name: str
    pos: Tensor
    seen: watching.Seen
    layers: PerLayer
    placed: Any

    def expected(self, index: int) -> Expected:
        """Return what should turn a layer."""
        return Expected.of(*self.layers.layer(index, self.placed))


def run_all(model: nn.Module, fields: dict[str, Any]) -> tuple[list[Run], Run | None]:
    """Run a text near and far, and once with all tokens at position 0."""
    ids = text(model, TOKENS)
    near = torch.arange(TOKENS)
    runs, origin = [], None
    was = model.training
    model.eval()
    try:
        with watching.watched(model):
            given = watching.takes_positions(model)
            if given:
                start = torch.zeros(TOKENS, dtype=torch.long)
                origin = _run("origin", model, ids, start, fields, given=True)
            runs.append(_run("near", model, ids, near, fields, given=False))
            if given and (far := _far(fields)) is not None:
                runs.append(_run("far", model, ids, far, fields, given=True))
    finally:
        model.train(was)
    return runs, origin


def _run(name: str, model: nn.Module, ids: Tensor, pos: Tensor, fields: dict[str, Any], *, given: bool) -> Run:
    device = ids.device
    seen = watching.run(model, ids, pos.expand(len(ids), -1).to(device) if given else None)
    return _placed(name, pos, seen, fields)


def halved(run: Run, fields: dict[str, Any]) -> Run:
    """Return the run with what is expected of sorted lanes, which turn in halves."""
    return _placed(run.name, run.pos, run.seen, fields, pairing="half")


def _placed(name: str, pos: Tensor, seen: watching.Seen, fields: dict[str, Any], **options: Any) -> Run:
    """Return a run of text with what its configuration turns at its positions."""
    layers = PerLayer.from_config(fields, seq_len=int(pos.max()) + 1, **options)
    placed = layers.place(positions.on_each_axis(pos[None], layers.n_axes), dtype=torch.float64)
    return Run(name, pos, seen, layers, placed)


def once(entries: int, seen: watching.Seen) -> int:
    """Return how many layers there are where a model runs the same ones again, an entry each time (HRM)."""
    calls = Counter(a.layer for a in seen.attended)
    again = calls and min(calls.values()) > 1 and max(calls) + 1 == len(calls) < entries
    return len(calls) if again else entries


def text(model: nn.Module, tokens: int) -> Tensor:
    """Return two texts (2, tokens) that differ in nearly every token."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    vocab = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    low = min(16, vocab // 2)  # the first ones are often special
    device = next(model.parameters()).device
    return torch.randint(low, vocab, (_BATCH, tokens), generator=generator).to(device)


def _far(fields: dict[str, Any]) -> Tensor | None:
    """Return positions that grow to the longest of the file, None where it has few."""
    longest = _longest(fields)
    if longest <= TOKENS:
        return None
    grown = torch.logspace(0, math.log10(longest - 1), TOKENS, dtype=torch.float64).round().long()
    steps = torch.maximum(grown, torch.arange(TOKENS))
    return steps.clamp_max(longest - 1)


def _longest(fields: dict[str, Any]) -> int:
    told = open_model(Checked(fields)).size("max_len")
    return min(told or _UNTOLD, _LONGEST)
