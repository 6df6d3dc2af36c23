"""The options of an evaluation and its cells, all checked before any weights are read."""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posenc.extend.evaluate import measures
from posenc.extend.evaluate.findings import NONE
from posenc.extend.evaluate.measures import DEPTHS, NEEDLES, POSITION, SLIDING, Text
from posenc.extend.evaluate.targets import WHO, Target, find
from posenc.extend.stretch import METHODS, Stretched

SCHEMA = 1
MOST_SCORED = 512  # tokens of a piece; with a large vocabulary their logits take 300 MB
_LONGEST = 1 << 24


@dataclass(frozen=True)
class Options:
    """The options of an evaluation.

    Args:
        paths: Directories of models; several are seeds of one model.
        text: The path of the text.
        lengths: Context lengths in tokens; none means 1, 2, 4 and 8 times the trained length.
        methods: NAME or NAME:FACTOR; unscaled RoPE, none, is always the first.
        factor: The factor of all methods; None takes the longest length / the trained length.
        trained_len: The trained length; None takes that of the configuration.
        pieces: How many pieces of text, each with its own scored tokens.
        trials: How many needles of each kind, depth and length; 0 measures none.
        device: The device; by default a GPU if there is one.
        out: The directory.
        force: Replace an existing report.
    """

    paths: Sequence[str]
    text: str
    lengths: Sequence[int] = ()
    methods: Sequence[str] = ()
    factor: float | None = None
    trained_len: int | None = None
    pieces: int = 16
    trials: int = 4
    device: str = ""
    out: str = "evaluation"
    force: bool = False


class Job(NamedTuple):
    """One cell: a model, a method, a length and a measure."""

    model: str
    method: str
    length: int
    measure: str


@dataclass(frozen=True)
class Plan:
    """The plan for checked options; nothing is written or loaded yet."""

    targets: dict[str, Target]
    stretched: dict[str, Stretched | None]
    text: Text
    record: dict[str, Any]
    jobs: list[Job]

    def tokens(self, job: Job) -> int:
        """Return how many tokens a cell reads."""
        rows = self.text.pieces if job.measure in (POSITION, SLIDING) else self.record["trials"] * (1 + len(DEPTHS))
        return job.length * int(rows)


def make_plan(options: Options) -> Plan:
    """Check the options, read the text, and list the cells.

    Raises:
        ValueError: A directory, method, factor or length is invalid, or the text is too short.
    """
    targets = {path: find(path, options.trained_len) for path in dict.fromkeys(options.paths)}
    first, *others = targets.values()
    trained = first.trained_len
    if any(other.trained_len != trained for other in others):
        got = ", ".join(f"{target.name} {target.trained_len}" for target in targets.values())
        raise ValueError(
            f"{WHO}: models of one run must have the same trained length; got {got}. Evaluate them separately."
        )
    lengths = sorted(set(options.lengths)) or [trained * n for n in (1, 2, 4, 8)]
    if lengths[0] < trained or lengths[-1] > _LONGEST:
        raise ValueError(
            f"{WHO}: --lengths must lie from the trained length {trained} to {_LONGEST}; got {lengths[0]} to "
            f"{lengths[-1]}. Short texts, of {trained // 2} and {trained} tokens, are always tested."
        )
    if trained < 8 or options.pieces < 2 or options.trials < 0:
        raise ValueError(
            f"{WHO}: the trained length must be 8 or more, --pieces 2 or more and --trials 0 or more; got {trained}, "
            f"{options.pieces} and {options.trials}."
        )
    stretched = _methods(options, first, lengths[-1] / trained)
    text, data = _text(options, list(targets.values()), lengths[-1])
    short = [trained // 2, trained]
    kinds = list(NEEDLES) if options.trials else []
    jobs = []
    for path in targets:
        for method in stretched:
            jobs += [Job(path, method, length, POSITION) for length in sorted({*short, *lengths})]
            jobs += [Job(path, method, length, SLIDING) for length in lengths]
            jobs += [Job(path, method, n, kind) for kind in kinds for n in lengths
                     if measures.fits(first, text, kind, n, options.trials)]  # fmt: skip
    record = _record(options, targets, stretched, lengths, short, text, data)
    return Plan(targets, stretched, text, record, jobs)


def _methods(options: Options, target: Target, factor: float) -> dict[str, Stretched | None]:
    """Return the stretched configuration of each method by its label; None for unscaled RoPE."""
    if options.factor is not None and not options.factor >= 1:
        raise ValueError(f"{WHO}: --factor must be 1 or more; got {options.factor:g}.")
    found: dict[str, Stretched | None] = {NONE: None}
    for label in options.methods:
        name, _, own = label.partition(":")
        if name == NONE:
            continue
        if name not in METHODS:
            raise ValueError(f"{WHO}: unknown method {name[:60]!r}. Known: {NONE}, {', '.join(METHODS)}.")
        try:
            chosen = float(own) if own else factor if options.factor is None else options.factor
        except ValueError:
            raise ValueError(
                f"{WHO}: --method must be NAME or NAME:FACTOR, such as yarn:4; got {label[:60]!r}."
            ) from None
        found[label] = target.stretch(name, chosen)
    return found


def _text(options: Options, targets: Sequence[Target], longest: int) -> tuple[Text, bytes]:
    try:
        data = Path(options.text).read_bytes()
    except OSError as error:
        raise ValueError(f"{WHO}: cannot read --text {options.text}: {error.strerror}. Give a file.") from error
    ids = targets[0].encode(data)
    for other in targets[1:]:
        if other.encode(data) != ids or other.start != targets[0].start:
            raise ValueError(
                f"{WHO}: {other.name} and {targets[0].name} split the text into different tokens. Evaluate them apart."
            )
    scored = min(targets[0].trained_len // 4, MOST_SCORED)
    pieces = min(options.pieces, (len(ids) - 1 - longest) // scored + 1)  # no token is scored twice
    if pieces < 2:
        raise ValueError(
            f"{WHO}: the text has {len(ids)} {targets[0].unit}s, but two pieces with {longest} of context need "
            f"{longest + scored + 1}. Give a longer --text, or smaller --lengths."
        )
    return Text(torch.tensor(ids), longest, scored, pieces), data


def _record(
    options: Options, targets: dict[str, Target], stretched: dict[str, Stretched | None], lengths: list[int],
    short: list[int], text: Text, data: bytes,
) -> dict[str, Any]:  # fmt: skip
    """Return the contents of run.json."""
    first = next(iter(targets.values()))
    parameters = {label: None if s is None else dict(s.override["rope_parameters"]) for label, s in stretched.items()}
    facts = {"scored": text.scored, "pieces": text.pieces, "trials": options.trials, "longest": text.longest,
             "text": hashlib.sha256(data).hexdigest()}  # fmt: skip
    words = ["posenc", "evaluate", *targets, "--text", options.text, "--lengths", ",".join(map(str, lengths))]
    words += ["--method", ",".join(list(stretched)[1:])] if len(stretched) > 1 else []
    words += ["--factor", f"{options.factor:g}"] if options.factor else []
    words += ["--trained-len", str(options.trained_len)] if options.trained_len else []
    words += ["--pieces", str(options.pieces), "--trials", str(options.trials), "--out", options.out]
    return {
        "command": shlex.join(words),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {package: version(package) for package in ("posenc", "torch", "numpy")},
        "models": list(targets),
        "methods": list(stretched),
        "parameters": parameters,
        "lengths": lengths,
        "short": short,
        "trained_len": first.trained_len,
        "unit": first.unit,
        "text": {"name": options.text, "bytes": len(data), "tokens": len(text.tokens)},
        **{key: facts[key] for key in ("scored", "pieces", "trials")},
        "identity": {
            "schema": SCHEMA,
            "models": {path: target.fingerprint for path, target in targets.items()},
            "trained_len": first.trained_len,
            "parameters": parameters,
            "lengths": lengths,
            **facts,
        },
    }
