"""Why mutants survive, and why some are run by nothing: by "file function" and the change."""

EQUIVALENT = "equivalent: "  # the same numbers for everything that may be asked: no check can tell
_MAKES = "makes positions; conventions hand positions in, and what makes them is tested by itself"
_RESIZES = "makes another table of a learned one; a check sees an encoding as it is"
_TELLS = "tells something about frequencies; nothing turns by it"
_NO_SPEC = "frequencies that no spec can name"
_RESOLVED = "runs when a class is made, before any check"

# Functions that no convention can call: their mutants are not counted.
UNCALLED: dict[str, str] = {
    "positions/images.py mrope": _MAKES,
    "positions/images.py unit_grid": _MAKES,
    "positions/text.py tree": _MAKES,
    "encodings/graphormer.py tree": "makes distances of an example's graph",
    "encodings/cape.py CAPE.augment": "draws at random while a model trains; checks run in evaluation",
    "frequencies/scaling.py first_negative": _TELLS,
    "frequencies/scaling.py critical_dim": _TELLS,
    "frequencies/scaling.py resonance": _NO_SPEC,
    "families/windows.py resized_table": _RESIZES,
    "encodings/decomposed_2d.py Decomposed2D.resized": _RESIZES,
    "encodings/learned.py Learned.resized": _RESIZES,
    "encodings/learned_2d.py Learned2D.resized": _RESIZES,
    "encodings/beit.py BEiT.resized": _RESIZES,
    "families/rotary.py Rotary.__init_subclass__": _RESOLVED,
    "families/numbers.py number": "validation: says whether a number is finite",
    "families/score_map.py ScoreMap": "a declaration that hosts read, and no arithmetic",
}

_DTYPE = EQUIVALENT + "both tables have one dtype"
_SORTED = EQUIVALENT + "places of equal keys may change, and they are equal"
_WIDTH = EQUIVALENT + "any rows that are longer than the image and the kernel's reach keep places apart"
_REFUSED = "not reached: validation before it has refused what this would let through"
_MORE_ROWS = EQUIVALENT + "more rows are multiplied than are looked up"
_OPTION = "outside: what the constructor keeps of an option, not what is computed"

# Changes that mean the same wherever they stand, by a pattern that all of the change must fit.
COMMON: tuple[tuple[str, str], ...] = (
    (r"(\w+)\.to\(cos\.dtype\) -> \1\.to\(sin\.dtype\)", _DTYPE),
    (r"(\S+)\.sort\(dim=-1, stable=True\) -> \1\.sort\(dim=-1, stable=False\)", _SORTED),
)

SURVIVORS: dict[str, dict[str, str]] = {
    "encodings/alibi.py ALiBi": {
        "True -> False": "declared: keeps_float32 is read by casts, and slopes lose no more by bfloat16 than a table",
    },
    "encodings/alibi.py ALiBi._slope_number": {
        "torch.zeros_like(place, dtype=dtype) -> torch.ones_like(place, dtype=dtype)": EQUIVALENT
        + "every place gets its slope below",
    },
    "encodings/binary.py Binary.vectors": dict.fromkeys(
        (
            "min(self.d_model, 63) -> min(self.d_model, 62)",
            "pos <= end - 1 -> pos < end - 1",
            "end - 1 -> end - 2",
        ),
        _REFUSED,
    ),
    "encodings/cope.py CoPE.counts": {
        "k_placed.parts[0].sort(dim=-1, stable=True) -> k_placed.parts[0].sort(dim=-1, stable=False)": _SORTED,
    },
    "encodings/cpvt.py CPVT._neighbours": {
        "2 * column.abs().amax(-1, keepdim=True) -> 3 * column.abs().amax(-1, keepdim=True)": _WIDTH,
        "place.sort(dim=-1, stable=True) -> place.sort(dim=-1, stable=False)": _SORTED,
    },
    "encodings/dape.py DAPE.rescore": {
        "self.encoding.bias(q, k, placed.parts[0], k_placed.parts[0]) -> "
        "self.encoding.bias(q, q, placed.parts[0], k_placed.parts[0])": EQUIVALENT + "a bias by position reads no keys",
    },
    "encodings/dape.py DAPE.__init__": {
        "encoding if isinstance(encoding, str) else None -> "
        "encoding if not isinstance(encoding, str) else None": _OPTION,
    },
    "encodings/deberta.py DeBERTa.row": {
        "(0, *range(1, self.n_buckets // 2 + 1), *self._edges) -> "
        "(1, *range(1, self.n_buckets // 2 + 1), *self._edges)": EQUIVALENT
        + "the first start is cut off before it is used",
    },
    "encodings/deberta.py _products": {
        "queries[:, first:last + 1] -> queries[:, first:]": _MORE_ROWS,
        "queries[:, first:last + 1] -> queries[:, first:last + 1 + 1]": _MORE_ROWS,
        "last + 1 -> last + 2": _MORE_ROWS,
    },
    "encodings/deberta.py _edges": dict.fromkeys(
        (
            "max(exact, int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2) -> "
            "min(exact, int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2)",
            "int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2 -> "
            "int(exact * ((max_distance - 1) / exact) ** (m / width)) - 3",
            "int(exact * ((max_distance - 1) / exact) ** (m / width)) - 2 -> "
            "int(exact * ((max_distance - 1) / exact) ** (m / width)) - 1",
            "exact * ((max_distance - 1) / exact) ** (m / width) -> "
            "exact / ((max_distance - 1) / exact) ** (m / width)",
        ),
        EQUIVALENT + "where the search begins; it goes on to the same whole number",
    ),
    "families/networks.py tabulated": {
        "math.prod(counts) >= torch.broadcast_shapes(*(d.shape for d in along)).numel() -> "
        "math.prod(counts) > torch.broadcast_shapes(*(d.shape for d in along)).numel()": EQUIVALENT
        + "whether a table is worth making; the numbers are the same with it and without",
    },
    "families/options.py OwnFrequencies._set_frequencies": {
        "torch.arange(n, dtype=torch.float64, device='cpu') -> "
        "torch.arange(n, dtype=torch.bfloat16, device='cpu')": "not visible: bfloat16 can number up to 256 pairs",
    },
}
