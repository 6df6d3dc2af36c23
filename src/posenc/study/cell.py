"""One cell of a study: train one encoding with one seed, then test it at every length."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from posenc import registry
from posenc.nn import LanguageModel
from posenc.study import memory
from posenc.study.config import DEMANDING, EXCUSED, Config

Report = Callable[[int, float], None]  # steps done, bits per byte
WARMUP = 20  # steps
LOG_EVERY = 10  # steps


@dataclass(frozen=True)
class Data:
    """Token ids to train on and to test on, and what the text demands."""

    train: Int64[Tensor, " train"]
    test: Int64[Tensor, " test"]
    vocab_size: int
    undertrained_above: float


@dataclass(frozen=True)
class Outcome:
    """A trained model, what was seen on the way, and the result."""

    model: LanguageModel
    metrics: list[dict[str, float]]
    result: dict[str, Any]


def build(config: Config, data: Data, name: str, seed: int) -> LanguageModel:
    """Build the model; its shared parts start the same for every encoding of a seed."""
    torch.manual_seed(seed)
    encoding = registry.create(name, dims=config.dims)
    torch.manual_seed(seed)  # again: the encoding may have drawn numbers of its own
    return LanguageModel(
        vocab_size=data.vocab_size,
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        encoding=encoding,
    )


def train(model: LanguageModel, config: Config, data: Data, seed: int, steps: int) -> Iterator[dict[str, float]]:
    """Train step by step and yield what was seen; batches depend on the seed alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01, fused=True)
    random, window = torch.Generator().manual_seed(seed), torch.arange(config.train_len + 1)
    model.train()
    for step in range(steps):
        begin, cpu = time.perf_counter(), time.process_time()
        starts = torch.randint(len(data.train) - config.train_len, (config.batch_size, 1), generator=random)
        batch = data.train[starts + window]
        lr = config.lr * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = lr
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
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


@torch.no_grad()
def measure(
    model: LanguageModel, config: Config, data: Data, context: int, *, last: int, windows: int
) -> Float[Tensor, "windows last"]:
    """Return bits per byte for each window and each of its last bytes.

    Windows end at the same bytes whatever the context, so that a longer one only adds past.
    """
    model.eval()
    # no byte is a target twice, even where the text is short
    windows = max(2, min(windows, (len(data.test) - max(config.test_lens)) // config.target_bytes))
    ends = torch.linspace(max(config.test_lens), len(data.test) - 1, windows).long()
    found = []
    for end in ends.split(max(1, config.tokens_per_step // context)):
        window = data.test[end[:, None] + torch.arange(-context, 1)]
        logits = model(window[:, :-1], last=last)
        found.append(F.cross_entropy(logits.transpose(1, 2), window[:, -last:], reduction="none") / math.log(2))
    return torch.cat(found)


def run(config: Config, data: Data, name: str, seed: int, steps: int, report: Report) -> Outcome:
    """Train and test one cell; `report` hears of progress."""
    model = build(config, data, name, seed)
    before, begin = memory.start(), time.perf_counter()
    metrics, seconds = [], []
    for seen in train(model, config, data, seed, steps):
        seconds.append(seen["cpu_s"])
        if seen["step"] % LOG_EVERY == 0 or seen["step"] == steps:
            metrics.append(seen)
            report(int(seen["step"]), seen["bits"])
    result: dict[str, Any] = {
        "encoding": name,
        "seed": seed,
        "steps": steps,
        "train_seconds": round(time.perf_counter() - begin, 3),
        "step_ms": round(1e3 * sorted(seconds)[len(seconds) // 2], 3),
        "peak_mib": memory.grown(before),
        "parameters": sum(p.numel() for p in model.parameters()),
        "position_parameters": sum(p.numel() for p in model.encoding.parameters()),
        "train_bits": round(sum(m["bits"] for m in metrics[-3:]) / len(metrics[-3:]), 4),
    }
    begin = time.perf_counter()
    result |= _tests(model, config, data)
    trained = result["bits_by_length"][str(config.train_len)]
    result["test_seconds"] = round(time.perf_counter() - begin, 3)
    # written so that a loss that is not a number counts as undertrained
    limit = data.undertrained_above * DEMANDING.get(name, 1.0)
    result["undertrained"] = name not in EXCUSED and not trained <= limit
    return Outcome(model, metrics, result)


def _tests(model: LanguageModel, config: Config, data: Data) -> dict[str, Any]:
    longest, means, errors = config.test_lens[-1], {}, {}
    by_position = torch.empty(0)
    for context in config.test_lens:
        last = longest if context == longest else config.target_bytes
        bits = measure(model, config, data, context, last=last, windows=config.windows)
        if context == longest:
            by_position = bits.mean(0)
        of_window = bits[:, -config.target_bytes :].mean(1)
        means[str(context)] = round(float(of_window.mean()), 4)
        errors[str(context)] = round(float(of_window.std() / len(of_window) ** 0.5), 4)
    width = max(1, longest // 64)
    bins = [float(part.mean()) for part in by_position.split(width)]
    edges = [*range(0, longest, width), longest]
    return {
        "bits_by_length": means,
        "bits_by_length_stderr": errors,
        "bits_by_position": {"edges": edges, "bits": [round(b, 4) for b in bins]},
    }


def time_it(config: Config, data: Data, name: str) -> tuple[float, float]:
    """Return seconds of one training step and of all tests, from a short trial."""
    model = build(config, data, name, seed=0)
    steps = sorted(seen["seconds"] for seen in train(model, config, data, 0, steps=8))
    tests = 0.0
    for context in config.test_lens:
        few, begin = max(1, config.tokens_per_step // context), time.perf_counter()
        measure(model, config, data, context, last=config.target_bytes, windows=few)
        tests += (time.perf_counter() - begin) / few * config.windows
    return steps[len(steps) // 2], tests
