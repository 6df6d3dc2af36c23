"""Directories of studies, made by hand."""

import json

from posenc.study.config import Cell


def result(encoding="rope", task="copy", size="64x2x4", seed=0, values=(1.0, 0.5), **more):
    """Return a result whose measures at 20 and 40 (text: 64 and 1024) are `values`."""
    if task == "text":
        by_length = dict(zip(("64", "1024"), values, strict=True))
        measures = {"bits_by_length": by_length, "bits_by_length_stderr": dict.fromkeys(by_length, 0.1)}
    else:
        by_length = dict(zip(("20", "40"), values, strict=True))
        measures = {"exact_by_length": by_length, "right_by_length": dict.fromkeys(by_length, 1.0), "probes": {}}
    facts = {"steps": 300, "step_ms": 33.1, "peak_mib": None, "parameters": 1200, "undertrained": False}
    return {"encoding": encoding, "task": task, "size": size, "seed": seed, **facts, **measures, **more}


def name_of(cell):
    return Cell(*(cell[part] for part in Cell._fields)).name


def add(study, cell, name=None):
    """Write the file of a finished cell and return its path."""
    return write(study / "cells" / (name or name_of(cell)) / "result.json", json.dumps(cell))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


def make(study, cells=(), **run):
    """Write a study's directory and return its path."""
    (study / "cells").mkdir(parents=True)
    config = {"train_len": 64, "test_lens": [64, 1024], "lengths": {"copy": {"train": [1, 20], "test": [20, 40]}}}
    write(study / "run.json", json.dumps({"schema": 2, "identity": {}, "config": config, **run}))
    for cell in cells:
        add(study, cell)
    return study
