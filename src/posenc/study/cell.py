"""One cell of a study: train one encoding with one seed, then test it at every length."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from posenc import registry
from posenc.nn import LanguageModel
from posenc.study import memory, sharded
from posenc.study.config import Cell, Config, read_size
from posenc.study.subjects import Subject

Report = Callable[[dict[str, float]], None]  # called with a step: its number, bits, seconds, ...
WARMUP = 20  # steps
LOG_EVERY = 10  # steps
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Outcome:
    """A trained model, its training metrics, and the result."""

    model: LanguageModel
    metrics: list[dict[str, float]]
    result: dict[str, Any]


def build(config: Config, subject: Subject, cell: Cell) -> LanguageModel:
    """Build the model; its shared parts start the same for every encoding of a seed."""
    size = read_size(cell.size)
    torch.manual_seed(cell.seed)
    encoding = registry.create(cell.encoding, dims=config.dims(cell.size, subject.max_len, subject.original_max_len))
    torch.manual_seed(cell.seed)  # again: the encoding may have drawn random numbers
    return LanguageModel(
        vocab_size=subject.vocab_size,
        d_model=size.d_model,
        n_layers=size.n_layers,
        n_heads=size.n_heads,
        encoding=encoding,
    )


def train(
    model: LanguageModel, config: Config, subject: Subject, cell: Cell, steps: int, device: torch.device = CPU
) -> Iterator[dict[str, float]]:
    """Train step by step and yield each step's metrics; batches depend only on the seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01, fused=True)
    random = torch.Generator().manual_seed(cell.seed)
    highest = config.lr * math.sqrt(64 / read_size(cell.size).d_model)
    model.train()
    for step in range(steps):
        begin, cpu = time.perf_counter(), time.process_time()
        tokens, targets, pos = (None if t is None else t.to(device) for t in subject.batch(random))
        lr = highest * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = lr
        loss = F.cross_entropy(model(tokens, pos).flatten(0, 1), targets.flatten())  # type: ignore[union-attr]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield {
            "step": step + 1,
            "bits": float(loss.detach()) / math.log(2),
            "lr": lr,
            "seconds": time.perf_counter() - begin,
            "cpu_s": time.process_time() - cpu,
        }


def run(
    config: Config, subject: Subject, cell: Cell, steps: int, report: Report, device: torch.device = CPU
) -> Outcome:
    """Train and test one cell; `report` is called with the logged steps."""
    model = sharded.place(build(config, subject, cell), device)
    before, begin = memory.start(), time.perf_counter()
    metrics, seconds, spent = [], [], []
    for seen in train(model, config, subject, cell, steps, device):
        seconds.append(seen["seconds"])
        spent.append(seen["cpu_s" if device.type == "cpu" else "seconds"])
        if seen["step"] % LOG_EVERY == 0 or seen["step"] == steps:
            metrics.append(seen)
            report(seen)
    result: dict[str, Any] = {
        **cell._asdict(),
        "steps": steps,
        "train_seconds": round(time.perf_counter() - begin, 3),
        "step_ms": round(1e3 * sorted(spent)[steps // 2], 3),
        "tokens_per_s": round(subject.batch(torch.Generator())[0].numel() / sorted(seconds)[steps // 2]),
        "peak_mib": memory.grown(before),
        "parameters": sum(p.numel() for p in model.parameters()),
        "position_parameters": sum(p.numel() for p in model.encoding.parameters()),
        "train_bits": round(sum(m["bits"] for m in metrics[-3:]) / len(metrics[-3:]), 4),
    }
    begin = time.perf_counter()
    model.eval()
    result |= subject.test(model, device)
    result["test_seconds"] = round(time.perf_counter() - begin, 3)
    result["undertrained"] = subject.undertrained(cell, result)
    return Outcome(model, metrics, result)


def time_it(config: Config, subject: Subject, cell: Cell, device: torch.device = CPU) -> dict[str, float]:
    """Return the seconds of one training step and of all tests, estimated from a short trial."""
    model = sharded.place(build(config, subject, cell), device)
    steps = sorted(seen["seconds"] for seen in train(model, config, subject, cell, 8, device))
    model.eval()
    shares = (1 / 32, 1 / 16, 3 / 16)  # the first is a warm-up
    few, more = [_seconds(partial(subject.test, model, device, share=share)) for share in shares][1:]
    each = max(0.0, more - few) / (shares[2] - shares[1])
    return {"step_s": steps[len(steps) // 2], "tests_s": few + each * (1 - shares[1])}


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
