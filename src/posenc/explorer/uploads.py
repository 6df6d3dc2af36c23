"""Read models from untrusted files: a config.json, or the header of a checkpoint in safetensors."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from posenc import config, inspection
from posenc.config.reading import MAX_BYTES, parse
from posenc.config.values import short
from posenc.explorer import shelf
from posenc.interop import checkpoint
from posenc.languages import tr

MOST_TENSORS = 200_000
_METADATA = "__metadata__"  # the only entry of a header that is not a tensor
_LENGTH = 8  # bytes before a header that hold its length
# Names of tensors with position parameters in published checkpoints.
_POSITIONS = re.compile(
    r"(?:^|[._])(?P<kind>wpe|pos_embed|pos_embedding|position_embeddings?|position_embedding|embed_positions|"
    r"relative_attention_bias|relative_position_bias_table|rel_embeddings|rel_pos_[hw]|r_[wr]_bias|inv_freq)"
    r"(?:\.weight)?$"
)
_SHOWN = 64


def read_body(body: bytes, title: str) -> dict[str, Any]:
    """Read an upload: a config.json, or a checkpoint's header with or without a config.json after it.

    Returns:
        The facts that the page shows, with the id of the kept model.

    Raises:
        ValueError: The body is neither, or holds an invalid value.
        TypeError: It holds a value of a wrong type.
    """
    if not body:
        raise ValueError(tr("explore: the file is empty. Drop a config.json or a .safetensors file."))
    length = int.from_bytes(body[:_LENGTH], "little")
    if body[_LENGTH : _LENGTH + 1] != b"{" or length > MAX_BYTES:
        if body.lstrip()[:1] not in (b"{", b"["):
            raise ValueError(tr("explore: the file is neither JSON nor the beginning of a .safetensors file."))
        return _keep(title, _checked(parse(body, "the file")), None)
    header, rest = body[_LENGTH : _LENGTH + length], body[_LENGTH + length :]
    if len(header) < length:
        raise ValueError(
            tr(
                "explore: the header has {length:,} bytes, but only {arrived:,} arrived. Send all of it.",
                length=length,
                arrived=len(header),
            )
        )
    fields = _checked(parse(rest, "the configuration")) if rest.strip() else None
    return _keep(title, fields, describe(checkpoint.parse(header, "the header")))


def read_path(path: Path, title: str) -> dict[str, Any]:
    """Read a config.json, or a checkpoint's directory or file; only the headers of weight files are read.

    Raises:
        ValueError: It cannot be read, or holds an invalid value.
        TypeError: It holds a value of a wrong type.
    """
    if path.is_file() and path.suffix == ".json":
        return _keep(title, config.read(path), None)
    home = path if path.is_dir() else path.parent
    fields = None
    with suppress(FileNotFoundError):
        fields = config.read(home)
    headers, problem = _headers(path, needed=fields is None)
    return _keep(title, fields, describe(headers) if headers else None, problem)


def _headers(path: Path, *, needed: bool) -> tuple[dict[str, Any], str | None]:
    """Return the entries of a checkpoint's headers; or an error message, if they are not needed and cannot be read."""
    if path.is_dir() and not needed and not any(path.glob("*.safetensors")):
        return {}, None
    try:
        if path.is_file():
            return checkpoint.open_shard(path).header, None
        shards = checkpoint.open_checkpoint(path).shards
        return {name: entry for shard in shards for name, entry in shard.header.items()}, None
    except ValueError as error:  # the reader belongs to `posenc convert` and names it in its errors
        reason = str(error).removeprefix("convert: ")
        if needed:
            raise ValueError(tr("explore: {reason:s}", reason=reason)) from error
        return {}, reason


def _checked(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(tr("explore: a configuration must be a JSON object; got {got:s}.", got=type(value).__name__))
    return config.read(value)


def _keep(
    title: str, fields: dict[str, Any] | None, tensors: dict[str, Any] | None, problem: str | None = None
) -> dict[str, Any]:
    found = {"layers": [], "warnings": []} if fields is None else inspection.inspect(fields)
    if fields is None:
        message = tr(
            "A checkpoint's header lists its tensors but not the settings for positions: those are in its config.json."
        )
        found["warnings"] = [_warning("no_config", message)]
    if problem:
        found["warnings"] = [
            *found["warnings"],
            _warning("weights_unread", tr("The weights were not read: {problem:s}", problem=problem)),
        ]
    key = shelf.keep({"title": title, "inspection": found, "config": fields, "tensors": tensors})
    return {"id": key, "title": title, **found, **({"tensors": tensors} if tensors else {})}


def _warning(code: str, message: str) -> dict[str, str]:
    return {"code": code, "key": "", "message": message}


def describe(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of tensors in a header, and the ones with position parameters.

    Raises:
        ValueError: An entry is invalid, or there are too many.
    """
    entries = {name: entry for name, entry in header.items() if name != _METADATA}
    if len(entries) > MOST_TENSORS:
        raise ValueError(
            tr(
                "explore: a header may list at most {most:,} tensors; got {got:,}.",
                most=MOST_TENSORS,
                got=len(entries),
            )
        )
    sizes = [_size(name, entry) for name, entry in entries.items()]
    tables = [
        {"name": name, "kind": found["kind"], "shape": entry["shape"], "dtype": entry["dtype"]}
        for name, entry in entries.items()
        if (found := _POSITIONS.search(name))
    ]
    return {"count": len(entries), "parameters": sum(sizes), "tables": tables[:_SHOWN], "n_tables": len(tables)}


def _size(name: str, entry: object) -> int:
    """Return the number of elements of a tensor.

    Raises:
        ValueError: The entry is invalid.
    """
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    plain = isinstance(shape, list) and all(isinstance(n, int) and 0 <= n < 2**48 for n in shape) and len(shape) <= 16
    if not plain or not isinstance(entry, Mapping) or not isinstance(entry.get("dtype"), str):
        raise ValueError(
            tr("explore: {name:s} has no valid shape and dtype, which every tensor must have.", name=short(name))
        )
    return math.prod(shape or ())
