"""Made-up study data of the shape that a study saves, with realistic numbers unless given."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

LENGTHS = (64, 128, 256, 512, 1024)
REAL: dict[str, tuple[float, ...]] = {
    "nope": (2.9, 2.95, 3.0, 3.05, 3.1),
    "sinusoidal": (2.7, 3.1, 3.3, 3.4, 3.5),
    "learned": (2.6, 3.9, 4.1, 4.2, 4.3),
    "binary": (3.3, 4.0, 5.0, 5.5, 6.0),
    "rope": (2.11, 2.28, 3.77, 4.98, 5.4),
    "xpos": (2.15, 2.2, 2.4, 2.6, 2.9),
    "alibi": (2.34, 2.34, 2.35, 2.35, 2.36),
    "t5": (2.6, 2.7, 2.85, 3.0, 3.2),
    "kerple": (2.35, 2.36, 2.38, 2.42, 2.5),
    "relative_bias": (2.4, 2.41, 2.45, 2.5, 2.6),
    "transformer_xl": (2.3, 2.4, 2.6, 3.0, 3.6),
}
STEP_MS = {
    "nope": 41.0,
    "rope": 47.5,
    "xpos": 51.2,
    "t5": 55.0,
    "transformer_xl": 78.0,
    "relative_bias": 60.0,
}
PARAMETERS = {"learned": 65536, "t5": 128, "kerple": 16, "relative_bias": 1020, "transformer_xl": 8448}
CARDS: dict[str, dict[str, Any]] = {
    "rope": {
        "family": "rotary",
        "cls": "RoPE",
        "paper": "Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding",
        "year": 2021,
        "arxiv": "2104.09864",
        "formula": "q_m · k_n = Re[(W_q x_m)(W_k x_n)* e^{i(m−n)θ}]",
        "relative": True,
        "used_by": ["Llama", "Mistral", "Qwen", "GPT-NeoX"],
        "cost": "two multiplications per element of q and k",
    },
    "alibi": {
        "family": "bias",
        "cls": "ALiBi",
        "paper": "Press et al., Train Short, Test Long",
        "year": 2021,
        "arxiv": "2108.12409",
        "formula": "score − m_h · (i − j)",
        "relative": True,
        "used_by": ["BLOOM", "MPT"],
        "cost": "one addition per score",
    },
    "sinusoidal": {
        "family": "additive",
        "cls": "Sinusoidal",
        "paper": "Vaswani et al., Attention Is All You Need",
        "year": 2017,
        "arxiv": "1706.03762",
        "formula": "sin(p / 10000^{2i/d}), cos(p / 10000^{2i/d})",
        "relative": False,
        "used_by": ["the original Transformer"],
        "cost": "one addition per input element",
    },
}


def make_cell(name: str, seed: int, bits: Sequence[float], noise: float = 0.02, **extra: Any) -> dict[str, Any]:
    """Return one cell whose loss by length is `bits`, moved by at most `noise`; `extra` replaces fields."""
    chance = random.Random(f"{name}-{seed}")
    moved = [value + chance.uniform(-noise, noise) for value in bits]
    edges = [0, 16, 32, 64, 128, 256, 512, 1024]
    early = [max(bits[0], 2.2) + 1.4, bits[0] + 0.45, bits[0] + 0.1]
    return {
        "encoding": name,
        "seed": seed,
        "steps": 380,
        "train_seconds": 9.0 + chance.random(),
        "step_ms": STEP_MS.get(name, 43.0) * (1 + chance.uniform(-0.02, 0.02)),
        "peak_mib": 180 + 2 * STEP_MS.get(name, 43.0) + chance.uniform(-5, 5),
        "parameters": 120_000 + PARAMETERS.get(name, 0),
        "position_parameters": PARAMETERS.get(name, 0),
        "bits_by_length": {str(n): value for n, value in zip(LENGTHS, moved, strict=True)},
        "bits_by_length_stderr": {str(n): 0.04 + 0.001 * math.log2(n) for n in LENGTHS},
        "bits_by_position": {"edges": edges, "bits": [*early, *(value + 0.02 for value in moved[1:])]},
        "train_bits": bits[0] - 0.1,
        "undertrained": False,
        **extra,
    }


def make_run(names: Sequence[str], seeds: Sequence[int] = (0, 1), **extra: Any) -> dict[str, Any]:
    """Return a study's `run` for these encodings; `extra` replaces fields."""
    return {
        "schema": 1,
        "status": "complete",
        "command": "posenc study --text pydoc --out report.html --budget 240",
        "created": "2025-01-02T03:04:05+00:00",
        "elapsed_s": 242.4,
        "config": {
            "encodings": list(names),
            "train_len": 64,
            "test_lens": list(LENGTHS),
            "seeds": list(seeds),
            "steps": 380,
            "batch_size": 64,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "lr": 3e-3,
            "budget_s": 240,
            "target_bytes": 32,
            "windows": 96,
        },
        "text": {
            "name": "pydoc_data.topics",
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "bytes": 465000,
            "train_bytes": 418500,
            "test_bytes": 46500,
            "source_version": "Python 3.11.7",
        },
        "machine": {
            "cpu": "Some CPU @ 2.8 GHz",
            "cores": 2,
            "memory_gib": 24.0,
            "system": "Linux 6.1 x86_64",
        },
        "versions": {"posenc": "0.1.0", "python": "3.11.7", "torch": "2.5.1", "numpy": "2.1.0"},
        "cards": {name: CARDS[name] for name in names if name in CARDS},
        "problems": [],
        **extra,
    }


def make_study(
    bits: Mapping[str, Sequence[float]] = REAL,
    seeds: Sequence[int] = (0, 1),
    noise: float = 0.02,
    **extra: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return `run` and `cells` of a study in which each encoding measured `bits` by length."""
    cells = [make_cell(name, seed, values, noise) for name, values in bits.items() for seed in seeds]
    return make_run(list(bits), seeds, **extra), cells


TASK_LENGTHS = (20, 30, 40, 80)
# exact match by length, a row per seed; lines of up to 20 were trained
EXACT: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "copy": {
        "nope": ((1.0, 0.99, 0.97, 0.93), (1.0, 0.98, 0.95, 0.91), (1.0, 0.97, 0.94, 0.92)),
        "sinusoidal": ((0.95, 0.01, 0.0, 0.0), (0.94, 0.0, 0.0, 0.0), (0.93, 0.0, 0.0, 0.0)),
        "rope": ((1.0, 0.12, 0.0, 0.0), (1.0, 0.2, 0.01, 0.0), (0.99, 0.1, 0.0, 0.0)),
        "alibi": ((0.99, 0.6, 0.2, 0.0), (1.0, 0.98, 0.96, 0.92), (1.0, 0.7, 0.3, 0.02)),
        "t5": ((1.0, 0.97, 0.95, 0.91), (1.0, 0.95, 0.93, 0.9), (0.99, 0.95, 0.91, 0.9)),
    },
    "copy@randomised": {
        "rope": ((0.99, 0.95, 0.9, 0.7), (0.99, 0.95, 0.92, 0.75), (0.98, 0.93, 0.9, 0.72)),
        "sinusoidal": ((0.99, 0.6, 0.3, 0.0), (0.97, 0.7, 0.2, 0.4), (0.96, 0.6, 0.2, 0.0)),
    },
    "parity": {
        "nope": ((0.98, 0.55, 0.5, 0.51), (0.97, 0.56, 0.49, 0.5), (0.99, 0.52, 0.5, 0.48)),
        "rope": ((0.99, 0.6, 0.52, 0.5), (1.0, 0.61, 0.5, 0.49), (0.98, 0.6, 0.5, 0.5)),
        "alibi": ((0.52, 0.5, 0.5, 0.5), (0.55, 0.5, 0.5, 0.5), (0.51, 0.5, 0.5, 0.5)),
    },
    "flip_flop": {"nope": ((0.97, 0.8, 0.7, 0.3),) * 3, "rope": ((1.0, 0.9, 0.5, 0.2),) * 3},
}
COPY_CARD = {
    "paper": "Kazemnejad et al. 2023",
    "arxiv": "2305.19466",
    "format": "^ a b c ? a b c . (letters, uniform, for words)",
    "length": "words of the question",
    "train_lengths": list(range(1, 21)),
    "test_lengths": list(TASK_LENGTHS),
    "probes": [],
}


def make_task_cell(
    name: str, task: str, seed: int, exact: Sequence[float], size: str = "64x2x4", **extra: Any
) -> dict[str, Any]:
    """Return one cell of a task whose share of exact lines by length is `exact`; `extra` replaces fields."""
    table = {str(n): value for n, value in zip(TASK_LENGTHS, exact, strict=True)}
    sparse = {n: round(0.6 * value, 3) for n, value in table.items()}
    probes = {"flip_flop:sparse": {"exact_by_length": sparse}} if task == "flip_flop" else {}
    return {
        "encoding": name,
        "task": task,
        "size": size,
        "seed": seed,
        "steps": 900,
        "train_seconds": 21.0,
        "step_ms": STEP_MS.get(name, 43.0),
        "parameters": 110000,
        "position_parameters": PARAMETERS.get(name, 0),
        "exact_by_length": table,
        "right_by_length": {n: 0.5 + value / 2 for n, value in table.items()},
        "lines": 200,
        "probes": probes,
        "undertrained": exact[0] < 0.9,
        **extra,
    }


def make_task_study(
    exact: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = EXACT,
    text: Mapping[str, Sequence[float]] | None = None,
    sizes: Sequence[str] = ("64x2x4",),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return `run` and `cells` of a study of tasks, and of text where losses by encoding are given."""
    names = list(dict.fromkeys([*(text or {}), *(name for rows in exact.values() for name in rows)]))
    n_seeds = max((len(seeds) for rows in exact.values() for seeds in rows.values()), default=2)
    cells = [
        make_task_cell(name, task, seed, values, size)
        for size in sizes
        for task, rows in exact.items()
        for name, seeds in rows.items()
        for seed, values in enumerate(seeds)
    ]
    cells += [
        make_cell(name, seed, bits, task="text", size=size)
        for size in sizes
        for name, bits in (text or {}).items()
        for seed in range(n_seeds)
    ]
    run = make_run(names, range(n_seeds), schema=2)
    run["config"] |= {
        "tasks": [*(["text"] if text else []), *exact],
        "sizes": list(sizes),
        "lengths": {task: {"train": list(range(1, 21)), "test": list(TASK_LENGTHS)} for task in exact},
    }
    fields = ("encoding", "task", "size", "seed")
    run["plan"] = {"cells": [{field: cell[field] for field in fields} for cell in cells]}
    run["tasks"] = {"copy": COPY_CARD}
    if not text:
        run["text"] = None
    return run, cells
