"""Golden vectors: inputs and exact outputs of every encoding, for ports in other languages.

Each encoding has one safetensors file with the cases of its card: positions, tokens or queries and keys, learned
tensors, what the definition makes of them in float64, and what the implementation does. `manifest.json` says what
each tensor is, under a versioned schema. All inputs are multiples of 1/64 up to 2 in size, so that every dtype from
bfloat16 on holds them exactly. The same versions on the same machine write the same bytes.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save

import posenc
from posenc import definitions, registry
from posenc.golden_cases import TOLERANCE, Case, cases_of, definition

SCHEMA = 1
MANIFEST = "manifest.json"
MADE_BY = "posenc golden"


def write(out: str | Path) -> dict[str, Any]:
    """Write the golden vectors of every registered encoding and return the manifest.

    Args:
        out: A new or empty directory, or one that this function has written, whose vectors are replaced.

    Raises:
        ValueError: The directory holds something else, or is none.
    """
    out = Path(out)
    old = _made_before(out)
    files, entries = {}, []
    for name in filter(definitions.find, registry.names()):  # another package's encoding need not have a definition
        card = registry.card(name)
        cases = cases_of(card)
        data = save({f"{i}.{key}": t for i, case in enumerate(cases) for key, t in case.tensors.items()})
        files[f"{name}.safetensors"] = data
        entries.append(_entry(card, cases, data))
    manifest = {
        "schema": SCHEMA,
        "made_by": MADE_BY,
        "posenc": posenc.__version__,
        "torch": torch.__version__,
        "tolerance": TOLERANCE,
        "conventions": " ".join((definitions.__doc__ or "").partition("common to all: ")[2].split()),
        "encodings": entries,
    }
    out.mkdir(parents=True, exist_ok=True)
    for stale in old - set(files):
        (out / stale).unlink(missing_ok=True)
    for name, data in files.items():
        (out / name).write_bytes(data)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return manifest


def _made_before(out: Path) -> set[str]:
    """Return the names of the vectors that a directory of ours holds.

    Raises:
        ValueError: It is not ours and not empty, or no directory.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"golden: --out must be a directory; got the file {str(out)!r}. Name another.")
    if not out.exists() or not any(out.iterdir()):
        return set()
    try:
        manifest = json.loads((out / MANIFEST).read_text("utf-8"))
        ours = manifest["made_by"] == MADE_BY
        names = {str(entry["file"]) for entry in manifest["encodings"]}
    except (OSError, ValueError, KeyError, TypeError):
        ours, names = False, set()
    if not ours:
        raise ValueError(
            f"golden: --out must be new, empty, or written by `posenc golden`, because files in it are replaced; got "
            f"{str(out)!r}, which holds something else. Name another."
        )
    return {name for name in names if re.fullmatch(r"\w+\.safetensors", name)}


def _entry(card: registry.Card, cases: list[Case], data: bytes) -> dict[str, Any]:
    define = definition(card)
    return {
        "encoding": card.name,
        "class": card.cls.__name__,
        "family": card.family,
        "formula": card.formula,
        "paper": card.paper,
        "year": card.year,
        "arxiv": card.arxiv,
        "definition": f"{define.__module__}.{define.__name__}",
        "file": f"{card.name}.safetensors",
        "sha256": hashlib.sha256(data).hexdigest(),
        "cases": [
            {
                "case": i,
                "options": case.options,
                "options_outside_definition": case.outside,
                "n_axes": case.n_axes,
                "score_scale": case.score_scale,
                "law": case.law,
                "positions": {
                    name.partition(".")[2]: t.tolist() for name, t in case.tensors.items() if name.endswith("pos")
                },
                "tensors": [
                    {
                        "name": f"{i}.{name}",
                        "role": name.partition(".")[0],
                        "shape": list(t.shape),
                        "dtype": str(t.dtype),
                        "meaning": case.meanings[name],
                    }
                    for name, t in sorted(case.tensors.items())
                ],
            }
            for i, case in enumerate(cases)
        ],
    }
