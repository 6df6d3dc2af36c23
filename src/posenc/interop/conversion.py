"""A checkpoint on disk, converted into a directory that appears whole or not at all."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc import config
from posenc.config.model import open_model
from posenc.config.models import READS_INTERLEAVE
from posenc.config.values import short
from posenc.interop.checkpoint import Checkpoint, open_checkpoint
from posenc.interop.plan import Plan, plan
from posenc.interop.shards import KEY, copy, write_shard

_WHO = "convert"
_CONFIG = "config.json"
_FLAG = "rope_interleave"


@dataclass(frozen=True)
class Conversion:
    """What was done.

    Args:
        out: The new directory.
        plan: Which tensors were permuted, and which queries and keys were left, with the reason.
        n_tensors: How many tensors there are.
        copied: Names of the other files that were copied.
        left_out: Names of what was not.
        flag: What config.json now says under rope_interleave; None for the types that read no such key.
    """

    out: Path
    plan: Plan
    n_tensors: int
    copied: tuple[str, ...]
    left_out: tuple[str, ...]
    flag: bool | None


def convert_checkpoint(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: config.Pairing,
    *,
    of: config.Pairing | None = None,
    source: config.Source | None = None,
) -> Conversion:
    """Convert the safetensors of a directory as `convert_pairing` does, one tensor in memory at a time.

    Everything is checked before anything is written. The new directory is made beside `out` under another name,
    forced to disk and then renamed, so that what is called `out` is complete. Its weights say in their metadata which
    pairing they have, and a second conversion to that pairing is refused.

    Args:
        directory: Weights in one file or in shards with their index, config.json, and the tokenizer's files.
        out: The new directory: not there yet, or empty.
        to: The new pairing.
        of: The present one; None takes what the weights' metadata says, else what the model type has.
        source: The model's configuration, for LoRA factors whose directory has none; None takes config.json.

    Raises:
        ValueError: As `convert_pairing` does; `out` is taken or cannot be written; there are no safetensors, a file is
            damaged, or a link leads out of the directory.
        TypeError: A value of the configuration is of a wrong kind.
    """
    found, target = open_checkpoint(Path(directory)), Path(os.path.abspath(out))
    _check_target(target)
    own = next((path for path in found.beside if path.name == _CONFIG), None)
    if source is None and own is None:
        raise ValueError(
            f"{_WHO}: there is no config.json in {short(str(directory))}. For LoRA factors, name their model's "
            f"configuration with --config (source)."
        )
    fields = config.read(own if source is None else source)  # type: ignore[arg-type]
    of = _present(found, fields, to, of)
    planned = plan(found.sorts, fields, to, of)
    new_config = _flagged(fields, to) if source is None else None
    _check_space(found, target)
    _write(found, planned, target, new_config)
    flag = None if new_config is None else to == "interleaved"
    copied = tuple(path.name for path in found.beside)
    return Conversion(target, planned, len(found.sorts), copied, found.left_out, flag)


def _present(
    found: Checkpoint, fields: dict[str, Any], to: config.Pairing, of: config.Pairing | None
) -> config.Pairing | None:
    """Return the present pairing, as far as the caller or the weights say it."""
    said = {shard.pairing for shard in found.shards}
    if len(said) > 1 or not said <= {None, "half", "interleaved"}:
        raise ValueError(
            f"{_WHO}: the metadata of all files must agree on {KEY}; got {', '.join(map(short, said))[:200]}. "
            f"Restore the weights."
        )
    (noted,) = said
    if noted is None:
        return of
    if noted == to:
        raise ValueError(
            f"{_WHO}: these weights were converted to {to} before, as their metadata says ({KEY}); nothing is left to "
            f"do. Use them as they are, or convert to the other pairing."
        )
    model = open_model(fields)
    flag = model.fields.get(_FLAG) if model.name in READS_INTERLEAVE else None
    if (of is not None and of != noted) or (flag is not None and flag != (noted == "interleaved")):
        other = f"of={of}" if of not in (None, noted) else f"config.json, with {_FLAG} {flag}"
        raise ValueError(f"{_WHO}: the weights' metadata says {noted}, and {other} differs. Correct what is wrong.")
    return "half" if noted == "half" else "interleaved"


def _flagged(fields: dict[str, Any], to: config.Pairing) -> bytes | None:
    """Return config.json with the key that the type reads; None where it reads none, and the file stays as it is."""
    model = open_model(fields)
    if model.name not in READS_INTERLEAVE:
        return None
    inner = fields
    while inner != model.fields:  # the language model's own part
        inner = next(value for value in inner.values() if isinstance(value, dict) and _holds(value, model.fields))
    inner[_FLAG] = to == "interleaved"
    return (json.dumps(fields, indent=2) + "\n").encode()


def _holds(value: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return value == wanted or any(isinstance(inner, dict) and _holds(inner, wanted) for inner in value.values())


def _check_target(target: Path) -> None:
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{_WHO}: --out {short(str(target))} is there and is no empty directory; nothing was touched. "
            f"Choose another --out."
        )


def _check_space(found: Checkpoint, target: Path) -> None:
    near = next(parent for parent in target.parents if parent.exists())
    free = shutil.disk_usage(near).free
    if found.size > free:
        raise ValueError(f"{_WHO}: --out needs {found.size:,} bytes, and {free:,} are free. Choose another --out.")


def _write(found: Checkpoint, planned: Plan, target: Path, new_config: bytes | None) -> None:
    """Write all files under another name beside the target, and give them its name when they are on disk."""
    parent = target.parent
    aside: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=parent))
        for shard in found.shards:
            write_shard(shard, aside / shard.path.name, planned.turns, planned.to)
        for path in found.beside:
            _copy(path, aside / path.name, new_config if path.name == _CONFIG else None)
        aside.chmod(0o777 & ~_umask())  # mkdtemp lets nobody else in
        _sync(aside)
        if target.exists():
            target.rmdir()  # it was empty; if it is not any more, this fails
        aside.rename(target)
        aside = None
        _sync(parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{_WHO}: cannot write --out {short(str(target))}: {reason}. Choose another --out.") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _copy(path: Path, out: Path, instead: bytes | None) -> None:
    with path.open("rb") as source, out.open("xb") as file:
        if instead is None:
            copy(source, file, path.stat().st_size)
        else:
            file.write(instead)
        file.flush()
        os.fsync(file.fileno())


def _umask() -> int:
    os.umask(mask := os.umask(0o077))
    return mask


def _sync(directory: Path) -> None:
    """Force the names in a directory to disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
