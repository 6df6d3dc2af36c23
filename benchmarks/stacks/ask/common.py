"""The parts that all of these programs share: jobs in, answers out.

    PYTHON -m ask.STACK JOBS.json ANSWERS.jsonl     # in benchmarks/stacks

A job is {"key": "type/probe", "config", "at": positions}, and "unless": a type whose answers make it superfluous. The
first line of ANSWERS is {"version"}, each further one {key: answer}; keys that are there are not asked again. An answer
is {"tables", "layers": the number of the table of each layer, "model"}, or {"error", "stage": config, build, forward or
measure, "file": where it was raised}. A table is what one layer does: attention, rotates, pairing, rotary_dim,
head_dim, inv_freq, gain, score (the factor of the scores beyond the usual one), temperature (of q, by position).
"""

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ask.decode import Table, decode, gain_of, still, temperature

Job = dict[str, Any]
Answer = dict[str, Any]
PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
FIRST = ("published", "plain.old", "plain.new")  # a type for which all of these fail cannot be built
SLOW = 5.0  # seconds for a job: more are not worth it for a model type
LIMIT = 60  # seconds after which a job is given up
STAGE = ["config"]


class TooLongError(Exception):
    """A job took longer than its limit."""


def text_of(config: Answer) -> Answer:
    """Return the fields of the text model."""
    part = next((key for key in PARTS if isinstance(config.get(key), dict) and config[key]), None)
    return text_of(config[part]) if part else config


def first(text: Answer, *names: str, otherwise: Any = None) -> Any:
    """Return the first value that is there."""
    return next((text[name] for name in names if text.get(name) is not None), otherwise)


def n_layers(config: Answer) -> int:
    """Return the number of layers."""
    return int(first(text_of(config), "num_hidden_layers", "n_layer", "num_layers", "n_layers", otherwise=2))


def positions(job: Job) -> list[int]:
    """Return the positions to be measured, 0 and 1 first."""
    return sorted({0, 1, *job["at"]})


def score(scale: float | None, config: Answer) -> float | None:
    """Return the factor of all scores beyond the usual scale, None if the configuration does not state that one."""
    text = text_of(config)
    if text.get("attention_multiplier"):
        usual = text["attention_multiplier"]
    elif "qk_rope_head_dim" in text and text.get("qk_nope_head_dim") is not None:
        usual = (text["qk_rope_head_dim"] + text["qk_nope_head_dim"]) ** -0.5
    elif text.get("query_pre_attn_scalar"):
        usual = text["query_pre_attn_scalar"] ** -0.5
    elif text.get("model_type") in ("gemma4_text", "gemma4_unified_text", "gemma3n_text"):
        usual = 1.0
    else:
        width = first(text, "hidden_size", "n_embd", "d_model", otherwise=0)
        heads = first(text, "num_attention_heads", "n_head", "n_heads", otherwise=1)
        usual = (first(text, "head_dim", "kv_channels", "attention_head_dim") or width // heads or 1) ** -0.5
    return float(scale) / usual if scale else None


def _layer(job: Job, q: Any, scale: float, window: Any, rope: tuple[Any, ...] | None, hf: list[Any]) -> Answer:
    """Return what a layer does, from its rotary module with the query before and after, else only from the query."""
    at, text = positions(job), text_of(job["config"])
    warm = temperature(q, at)
    layer = {"attention": True, "window": window, "head_dim": q.shape[-1], "temperature": warm}
    layer["score"] = score(scale, job["config"])
    if rope:
        module, *seen = rope
        width = getattr(module, "head_size", None) or q.shape[-1]
        before, after = (x.reshape(len(at), -1, width)[:, 0].double().numpy() for x in seen)
        found = decode(before, after, at)
    else:
        found = still(q[:, -text["qk_rope_head_dim"] :] if "qk_rope_head_dim" in text else q, at, warm)
        if found and "inv_freq" in found:
            found["gain"] = gain_of(hf, found["inv_freq"])
    return layer | {"rotates": found is not None} | (found or {})


def digest(job: Job, n: int, events: list[tuple[Any, ...]], hf: list[Any]) -> Answer:
    """Sort the events of vLLM or SGLang into layers: an attention ends a layer, whose rotations came before it."""
    table, rotations, by = Table(), list[Any](), dict[int, Any]()
    for kind, *event in events:
        if kind == "rotation":
            rotations.append(event)
        else:
            by[event[0]] = (event[1:], rotations)
            rotations = []
    for i in range(n):
        if i in by:
            (q, scale, window), seen = by[i]
            table.add(_layer(job, q, scale, window, seen[0] if seen else None, hf))
        else:
            table.add({"attention": False})
    return table.answer()


def run(ask: Callable[[Job], Answer], version: str) -> None:
    """Answer the jobs of argv[1] into argv[2]."""
    given, path = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    known: dict[str, Answer] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        known |= json.loads(line)
    if known.get("version", version) != version:
        raise ValueError(f"{path} has answers of {known['version']}, and this is {version}. Name another file.")
    signal.signal(signal.SIGALRM, _late)
    with path.open("a") as out:
        if not known:
            print(json.dumps({"version": version}), file=out, flush=True)
        built = {_type(key): _type(key) for key, found in known.items() if "tables" in found}  # by whom
        for job in given:
            name = _type(job["key"])
            text = job.get("unless", name)
            if job["key"] in known or built.get(text, name) != name or _hopeless(job["key"], known):
                continue
            found = known[job["key"]] = _answer(ask, job)
            if "tables" in found:
                built |= {name: name, text: name}
            print(json.dumps({job["key"]: found}, default=str), file=out, flush=True)


def _type(key: str) -> str:
    return key.partition("/")[0]


def _hopeless(key: str, known: dict[str, Answer]) -> bool:
    """Return whether the first answers of a type show that it cannot be built, or only slowly."""
    name, _, probe = key.partition("/")
    answers = [known[f"{name}/{one}"] for one in FIRST if f"{name}/{one}" in known]
    if probe in FIRST or not answers:
        return False
    slow = min(one["seconds"] for one in answers) > SLOW  # the first job of all also imports
    return slow or (len(answers) == len(FIRST) and all("error" in one for one in answers))


def _answer(ask: Callable[[Job], Answer], job: Job) -> Answer:
    began, STAGE[0] = time.time(), "config"
    signal.alarm(LIMIT)
    try:
        found = ask(job)
    except (Exception, SystemExit) as error:  # of whatever kind: the answer is that it raises
        said = f"{type(error).__name__}: {str(error)[:400]}"
        found = {"error": said, "stage": STAGE[0], "file": _where(error)}
    finally:
        signal.alarm(0)
    return found | {"seconds": round(time.time() - began, 3)}


def _late(*_: object) -> None:
    raise TooLongError("the job's time limit")


def _where(error: BaseException) -> str:
    """Return the last line of a traceback that is not torch's."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "/torch/" not in one.filename]
    return f"{frames[-1].filename.split('site-packages/')[-1]}:{frames[-1].lineno}" if frames else ""


def rows(x: Any, n: int) -> Any:
    """Return one head at each of n positions of a tensor of queries, None if it does not look like one."""
    import torch

    if not torch.is_tensor(x) or x.dim() < 3 or torch.is_complex(x):
        return None
    axis = next((axis for axis in (-2, -3, 1) if x.dim() >= -axis and x.shape[axis] == n), None)
    if axis is None or x.shape[-1] < 2:
        return None
    moved = x.movedim(axis, 0)
    return np.array(moved.reshape(n, -1, x.shape[-1])[:, 0].detach().double().numpy())


def zeros(*given: Any, **more: Any) -> Any:
    """Stand in for a module that needs kernels and does not rotate."""
    import torch

    if torch.is_tensor(more.get("output")):
        return more["output"].zero_() and None
    return torch.zeros_like(next(x for x in (*given, *more.values()) if torch.is_tensor(x)))


def random_weights(model: Any) -> None:
    """Give a model of torch weights of which none are zero or alike."""
    import torch

    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.data = torch.randn(p.shape, dtype=p.dtype) * 0.2 if p.dim() >= 2 else torch.ones_like(p.data)
