"""Write arrays to a directory with a manifest in four formats, read them within limits, and replace earlier output."""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize
from safetensors.numpy import save

Array = NDArray[Any]
FORMATS = ("safetensors", "npz", "npy", "json")
MANIFEST = "manifest.json"
MADE_BY = "posenc golden"
JSON_ARRAY = '{"dtype": "float32", "shape": [26, 64], "data": [numbers in C order, not nested]}'
MAX_BYTES = 1 << 28  # limit for a file that is read
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}
_NAME = re.compile(r"(?!\.)[\w.-]{1,160}\.(safetensors|npz|npy|json)", re.ASCII)


def encoded(stem: str, arrays: Mapping[str, Array], form: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the file of each array, and the bytes of each file.

    A file of safetensors, npz or json contains all arrays of a stem by name; npy has one file for each.

    >>> encoded("layer", {"cos": np.ones(2), "sin": np.zeros(2)}, "npy")[0]
    {'cos': 'layer.cos.npy', 'sin': 'layer.sin.npy'}
    """
    arrays = {name: np.ascontiguousarray(t) for name, t in arrays.items()}
    if form == "npy":
        return {name: f"{stem}.{name}.npy" for name in arrays}, {
            f"{stem}.{name}.npy": _saved(np.save, t) for name, t in arrays.items()
        }
    if form == "safetensors":
        data = save(arrays)
    elif form == "npz":
        data = _saved(np.savez, **arrays)
    else:
        data = json.dumps({name: _listed(t) for name, t in arrays.items()}).encode()
    return dict.fromkeys(arrays, f"{stem}.{form}"), {f"{stem}.{form}": data}


def _saved(write: Any, *args: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    write(file, *args, **arrays)
    return file.getvalue()


def _listed(t: Array) -> dict[str, Any]:
    return {"dtype": str(t.dtype), "shape": list(t.shape), "data": t.ravel().tolist()}


def read(directory: Path, file: str, name: str) -> tuple[Array, str] | None:
    """Return an array of a file with its dtype, bfloat16 as float32; None if the file or the array is missing.

    Raises:
        ValueError: The file name leads elsewhere, or the file is too large, damaged, or contains no array of numbers.
    """
    if not _NAME.fullmatch(file):
        raise ValueError(f"golden check: a manifest may only name files of its own directory; got {file!r:.80}.")
    path = directory / file
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"over {MAX_BYTES:,} bytes, more than these arrays can have")
        found = {".npy": _of_npy, ".npz": _of_npz, ".json": _of_json, ".safetensors": _of_safetensors}[path.suffix](
            path.read_bytes(), name
        )
        if found is not None and (found[0].dtype.kind not in "iuf" or found[0].dtype.itemsize > 8):
            raise ValueError(f"{name} must be numeric; got {found[0].dtype}")
    except Exception as error:  # the readers of four formats
        raise ValueError(f"golden check: {path} cannot be read: {' '.join(str(error).split())[:240]}.") from error
    return found


def _of_npy(data: bytes, name: str) -> tuple[Array, str]:
    t: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return t, str(t.dtype)


def _of_npz(data: bytes, name: str) -> tuple[Array, str] | None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if f"{name}.npy" not in archive.namelist():
            return None
        if archive.getinfo(f"{name}.npy").file_size > MAX_BYTES:
            raise ValueError(f"{name} has over {MAX_BYTES:,} bytes, more than these arrays can have")
        return _of_npy(archive.read(f"{name}.npy"), name)


def _of_json(data: bytes, name: str) -> tuple[Array, str] | None:
    fields = json.loads(data.decode())
    if not isinstance(fields, dict):
        raise TypeError(f"it must be an object of arrays by name; got {type(fields).__name__}")
    if name not in fields:
        return None
    if not isinstance(fields[name], dict) or {"dtype", "shape", "data"} - set(fields[name]):
        got = list(fields[name]) if isinstance(fields[name], dict) else type(fields[name]).__name__
        raise TypeError(f"{name} must be {JSON_ARRAY}; got {got!s:.60}")
    shape, dtype = fields[name]["shape"], str(fields[name]["dtype"])
    held = "float32" if dtype == "bfloat16" else dtype
    if held not in _DTYPES.values():
        raise ValueError(f"{name} has dtype {dtype!r:.40}")
    return np.array(fields[name]["data"], dtype=held).reshape(shape), dtype


def _of_safetensors(data: bytes, name: str) -> tuple[Array, str] | None:
    record = next((one for key, one in deserialize(data) if key == name), None)
    if record is None:
        return None
    dtype = _DTYPES[record["dtype"]]
    if dtype != "bfloat16":
        return np.frombuffer(record["data"], dtype=dtype).reshape(record["shape"]), dtype
    bits = np.frombuffer(record["data"], dtype=np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(record["shape"]), dtype


def made_before(out: Path) -> set[str]:
    """Return the names of the files, other than the manifest, in a directory that posenc has written.

    Raises:
        ValueError: It was not written by posenc and is not empty, or is not a directory.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"golden: --out must be a directory; got the file {str(out)!r}. Name another.")
    if not out.exists() or not any(out.iterdir()):
        return set()
    try:
        manifest = json.loads((out / MANIFEST).read_text("utf-8"))
        ours = manifest["made_by"] == MADE_BY
        names = {str(entry["file"]) for entry in manifest.get("encodings", [])}
        names |= {str(file) for layer in manifest.get("layers", []) for file in layer["files"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ours, names = False, set()
    if not ours:
        raise ValueError(
            f"golden: --out must be new, empty, or an output of `posenc golden`, because its files are replaced; got "
            f"{str(out)!r}, which contains other files. Name another."
        )
    return {name for name in names if _NAME.fullmatch(name) and name != MANIFEST}


def replace(out: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write files and their manifest to a directory, replacing those of an earlier output.

    Raises:
        ValueError: `made_before` refuses the directory, or it cannot be written to.
    """
    stale = made_before(out) - set(files)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in stale:
            (out / name).unlink(missing_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
        (out / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"golden: {str(out)!r} cannot be written to: {error.strerror}. Name another.") from error
