"""The view of trained models: what each head attends to in a text, by token or by distance."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc import measure
from posenc.explorer import studies
from posenc.explorer.frames import Frame
from posenc.explorer.studies import Study
from posenc.explorer.views.controls import COLUMNS, ROWS, Control
from posenc.explorer.views.view import Series, Values, View, axis, of_lines, of_matrix, spread
from posenc.languages import tr
from posenc.study.config import read_size

_MOST_TOKENS = 512
_DRAWS = 64  # the default of `measure.profile`
_SHOWN = (
    "The map of one head; weights by distance for all heads or for all encodings; or scores by distance for all heads "
    "or for all encodings."
)
_TEXT = "The position of a word says what it may mean; the word before it says more."


def _attention(asked: Values) -> Frame:
    study = studies.open_study()
    cell = asked["cell"] or next(iter(study.cells))
    model = study.model(cell)
    ids, unknown = study.tokens(asked["text"])
    if not ids:
        raise ValueError(
            tr(
                "explore: text must have characters that occur in the study's training text; got {got:s}.",
                got=repr(asked["text"][:40]),
            )
        )
    ids = ids[:_MOST_TOKENS]
    sizes = {"layer": len(model.blocks), "head": read_size(study.cells[cell].size).n_heads}
    for name, most in sizes.items():
        if asked[name] >= most:
            raise ValueError(
                tr(
                    "explore: {name:s} must be from 0 to {last:d}; got {got:d}.",
                    name=name,
                    last=most - 1,
                    got=asked[name],
                )
            )
    head = {
        "view": "attention",
        "of": "A",
        "subject": study.cells[cell].encoding,
        "cells": [{"cell": c, "encoding": its.encoding, "seed": its.seed} for c, its in study.cells.items()],
        "cell": cell,
        **{f"n_{name}s": most for name, most in sizes.items()},
        "tokens": [_shown(study.symbols[i]) for i in ids],
        "notes": [tr("Left out, because the study's training text has none of them: {unknown:s}", unknown=unknown)]
        if unknown
        else [],
        "code": _code(study, cell, ids, asked),
    }
    drawn = {"map": _map, "distance": _by_distance, "encodings": _by_encoding, "profile": _profile}
    drawn["profiles"] = _profiles
    return drawn[asked["draw"]](study, cell, ids, asked, head)


def _map(study: Study, cell: str, ids: list[int], asked: Values, head: dict[str, Any]) -> Frame:
    weights = measure.attention_maps(study.model(cell), ids)[asked["layer"], asked["head"]]
    n = len(ids)
    rows, columns = spread(n, asked["rows"]), spread(n, asked["columns"])
    shown = np.where(np.tri(n, dtype=bool), weights, np.nan)[np.ix_(rows.astype(int), columns.astype(int))]
    head |= {
        "title": tr(
            "{cell:s}: attention weights of layer {layer:d}, head {head:d}",
            cell=cell,
            layer=asked["layer"],
            head=asked["head"],
        ),
        "x": axis(tr("key token")),
        "y": axis(tr("query token")),
    }
    return of_matrix(head, shown, rows, columns, (n, n))


def _by_distance(study: Study, cell: str, ids: list[int], asked: Values, head: dict[str, Any]) -> Frame:
    found = measure.attention_by_distance(measure.attention_maps(study.model(cell), ids))
    head |= _of_distance(
        tr("{cell:s}: attention weight by distance, heads of layer {layer:d}", cell=cell, layer=asked["layer"])
    )
    distance = np.arange(float(len(ids)))
    return of_lines(
        head, [Series(tr("head {head:d}", head=h), distance, y) for h, y in enumerate(found[asked["layer"]])]
    )


def _by_encoding(study: Study, cell: str, ids: list[int], asked: Values, head: dict[str, Any]) -> Frame:
    distance = np.arange(float(len(ids)))
    series = []
    for name, encoding in _siblings(study, cell).items():
        maps = measure.attention_maps(study.model(name), ids)[asked["layer"]]
        series.append(Series(encoding, distance, measure.attention_by_distance(maps).mean(0)))
    title = tr("Attention weight by distance in layer {layer:d}, mean of its heads, by encoding", layer=asked["layer"])
    head |= _of_distance(title)
    return of_lines(head, series)


def _profile(study: Study, cell: str, ids: list[int], asked: Values, head: dict[str, Any]) -> Frame:
    distance = np.arange(float(_reach(study, ids)))
    found = measure.profile(study.model(cell).encoding, distance.astype(int), content="same", seed=0)
    title = tr("{cell:s}: score by distance of the trained encoding, q = k drawn at random", cell=cell)
    means = tr("Means of {draws:d} draws; the band contains 90 % of them.", draws=_DRAWS)
    head |= _of_scores(title, means, study, head)
    bands = zip(found.mean, found.low, found.high, strict=True)
    several = len(found.mean) > 1
    return of_lines(
        head,
        [
            Series(tr("head {head:d}", head=h) if several else tr("score"), distance, *band)
            for h, band in enumerate(bands)
        ],
    )


def _profiles(study: Study, cell: str, ids: list[int], asked: Values, head: dict[str, Any]) -> Frame:
    distance = np.arange(float(_reach(study, ids)))
    series = []
    for name, encoding in _siblings(study, cell).items():
        found = measure.profile(study.model(name).encoding, distance.astype(int), content="same", seed=0)
        series.append(Series(encoding, distance, found.mean.mean(0)))
    title = tr("Score by distance of each trained encoding, mean of its heads, q = k drawn")
    head |= _of_scores(title, tr("Means of {draws:d} draws.", draws=_DRAWS), study, head)
    return of_lines(head, series)


def _siblings(study: Study, cell: str) -> dict[str, str]:
    """Return the encodings of all cells with the same size and seed; user classes are not loaded."""
    like = study.cells[cell]
    return {name: its.encoding for name, its in study.cells.items() if its[2:] == like[2:] and ":" not in its.encoding}


def _reach(study: Study, ids: list[int]) -> int:
    return max(len(ids), study.config.train_len)


def _of_scores(title: str, means: str, study: Study, head: Mapping[str, Any]) -> dict[str, Any]:
    trained = study.config.train_len
    return {
        **_of_distance(title),
        "y": axis(tr("score")),
        "lines": [{"label": tr("trained {n:,}", n=trained), "x": trained}],
        "notes": [*head["notes"], means],
    }


def _of_distance(title: str) -> dict[str, Any]:
    return {"title": title, "x": axis(tr("distance"), tr("tokens")), "y": axis(tr("mean weight"))}


def _shown(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else {10: "↵", 9: "⇥"}.get(byte, f"\\x{byte:02x}")


def _code(study: Study, cell: str, ids: list[int], asked: Values) -> dict[str, str]:
    name, c = study.cells[cell].encoding, study.config
    d_model, n_layers, n_heads = read_size(study.cells[cell].size)
    maps = "measure.attention_maps(model, ids)"
    last = {
        "map": f"values = {maps}[{asked['layer']}, {asked['head']}]",
        "distance": f"values = measure.attention_by_distance({maps}[{asked['layer']}])",
        "encodings": f"values = measure.attention_by_distance({maps}[{asked['layer']}]).mean(0)",
        "profile": f"values = measure.profile(model.encoding, range({_reach(study, ids)}), seed=0)",
        "profiles": f"values = measure.profile(model.encoding, range({_reach(study, ids)}), seed=0).mean.mean(0)",
    }[asked["draw"]]
    sizes = f"d_model={d_model}, n_layers={n_layers}, n_heads={n_heads}"
    facts = f"{d_model}, {n_heads}, {n_heads}, {d_model // n_heads}, {max(c.test_lens)}, {c.train_len}"
    lines = [
        "import posenc",
        "from posenc import measure",
        "from posenc.nn import LanguageModel",
        "from safetensors.torch import load_file",
        "",
        f"encoding = posenc.create({name!r}, dims=posenc.Dims({facts}))",
        f"model = LanguageModel(vocab_size={len(study.symbols)}, {sizes}, encoding=encoding)",
        f"model.load_state_dict(load_file('cells/{cell}/model.safetensors'))  # in the study's directory",
        f"ids = {ids}",
        last,
    ]
    return {"python": "\n".join(lines) + "\n", "command": "posenc explore STUDY"}


ATTENTION = View(
    "attention",
    "Attention",
    "A trained model of a study: what each head attends to, by token, by distance, and compared with other encodings.",
    (
        Control(
            "cell",
            "text",
            "",
            "A cell of the study, such as rope-text-64x2x4-s0; if empty, the first one.",
            max=200,
        ),
        Control("draw", "choice", "map", _SHOWN, ("map", "distance", "encodings", "profile", "profiles")),
        Control("text", "text", _TEXT, "The text that the model reads.", max=2048),
        Control("layer", "int", 0, "The layer.", min=0, max=63),
        Control("head", "int", 0, "The head of the map.", min=0, max=255),
        ROWS,
        COLUMNS,
    ),
    _attention,
    None,
)
