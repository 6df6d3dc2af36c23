"""Golden vectors: inputs and exact outputs of every encoding, for ports in other languages.

Each encoding has one safetensors file with the cases of its card: positions, tokens or queries and keys, learned
tensors, the results of the definition in float64, and those of the implementation. `manifest.json` describes each
tensor under a versioned schema. All inputs are multiples of 1/64 up to 2 in size, so every dtype from bfloat16 on
represents them exactly. The same versions on the same machine write the same bytes.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save

import posenc
from posenc import definitions, registry
from posenc.golden.cases import TOLERANCE, Case, cases_of, definition
from posenc.golden.writing import MADE_BY, made_before, replace

SCHEMA = 1


def write(out: str | Path) -> dict[str, Any]:
    """Write the golden vectors of every registered encoding and return the manifest.

    Args:
        out: A new or empty directory, or an earlier output of this function, whose vectors are replaced.

    Raises:
        ValueError: The directory contains other files, or is not a directory.
    """
    out = Path(out)
    made_before(out)  # may refuse, before anything is computed
    files, entries = {}, []
    for name in filter(definitions.find, registry.names()):  # another package's encoding may have no definition
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
    replace(out, manifest, files)
    return manifest


def _entry(card: registry.Card, cases: list[Case], data: bytes) -> dict[str, Any]:
    define = definition(card)
    return {
        "encoding": card.name,
        "class": card.declared.cls_name,
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
