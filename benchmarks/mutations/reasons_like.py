"""Why survivors survive that are changed in one manner, by "file function" and a pattern that the whole change fits."""

EQUIVALENT = "equivalent: "  # the same numbers for everything that may be asked: no check can tell
_WAY = EQUIVALENT + "which of two ways is taken; the numbers are the same"
_SMALL = "not visible: what is learned loses no more by bfloat16 than a table does"
_LAST = EQUIVALENT + "tensors have so many dimensions there that both are the last"
_SEARCH = EQUIVALENT + "where a search begins; it goes on to the same whole number"


def _encoding(name: str) -> str:
    file, _, function = name.partition(" ")
    return f"encodings/{file}.py {function}"


_TOGETHER = EQUIVALENT + "both are there or neither is"
_LOOKED = EQUIVALENT + "a place that is not there was refused before, wherever it can be looked at"
_ONE_DTYPE = EQUIVALENT + "both have one dtype"
_BY_HEAD = EQUIVALENT + "one product for all heads at once, or head by head; the numbers are the same"
_CUT = EQUIVALENT + "lanes beyond the width are cut off"
_ZERO_WEIGHT = "not visible: weights that are drawn are not zero"
_BELOW = "not visible: positions before the first, which the paper does not have"
_DEFAULT = "outside: a default, which options() tells as if it had been given"
_TIE = "not visible: no number lies on the bound"
_CLOCKWISE = (
    "equivalent for scores: queries and keys both turn the other way, which check says and does not count as a fault"
)
_NO_SMALLER = EQUIVALENT + "a factor below 1 is refused"
_CLASS_PLACES = "makes places of class tokens, which no convention hands in"

LIKE: dict[str, tuple[tuple[str, str], ...]] = {
    **{_encoding(name): ((r"True -> False", _SMALL),) for name in ("fope FoPE", "pope PoPE", "time2vec Time2Vec")},
    "encodings/alibi.py ALiBi.at": (
        (r".*, q\) -> .*, k\)", "not visible: without a row for each query it broadcasts, which bias_fn allows"),
    ),
    "encodings/binary.py Binary.vectors": ((r".*clamp\(max=6[24]\)", "not visible: positions beyond 2^62"),),
    "encodings/cpvt.py CPVT._neighbours": (
        (r"2 \* column.* -> 1 \* column.*", EQUIVALENT + "rows are still longer than the image and the kernel's reach"),
    ),
    "encodings/dape.py DAPE.resolve": (
        (
            r".* is self\.encoding -> .* is not self\.encoding",
            EQUIVALENT + "a copy is made or not, of the same numbers",
        ),
    ),
    "encodings/deberta.py _edges": ((r"max_distance - 1 -> max_distance (\+ 1|- [02])", _SEARCH),),
    "encodings/dynamic_position_bias.py DynamicPositionBias._network": (
        (r"self\.ln_g is not None and .* -> self\.ln_g is not None or .*", _TOGETHER),
    ),
    "encodings/fire.py FIRE.lines": (
        (r"self\.width \+ 1 -> self\.width \+ 2", EQUIVALENT + "a segment more, which nothing looks up"),
        (r"w1 == 0 -> w1 == 1|b1 > 0 -> .*|~rises & ~falls -> rises & ~falls", _ZERO_WEIGHT),
    ),
    "encodings/fope.py FoPE.frequencies": (
        (r"self\.head_dim // 2 -> self\.head_dim (\* 2|// 1)", EQUIVALENT + "pairs that turn too slowly are left out"),
        (r"every > .* -> every >= .*", _TIE),
    ),
    "encodings/fox.py FoX.parts": (
        (r"x\.masked_fill\(~real, 0\.0\) -> .*", EQUIVALENT + "the gate of such a token is replaced"),
    ),
    "encodings/grape_m.py GRAPEM.basis": ((r"q \* .* -> q / .*", EQUIVALENT + "signs are 1 and -1"),),
    "encodings/grape_m.py GRAPEM._rotate": ((r".*cos\.dtype.* -> .*sin\.dtype.*", _ONE_DTYPE),),
    "encodings/graphormer.py Graphormer.at": (
        (r".*self\.max_distance \+ 2 -> .*|\(distance >= -1\) & .*|distance >= -1 -> distance >= -2", _LOOKED),
    ),
    "encodings/graphormer.py Graphormer.max_len": (
        (r".*shape\[-1\] -> .*shape\[-?[12]\]", EQUIVALENT + "it is square"),
    ),
    "encodings/learned.py Learned.vectors": ((r"-1 if self\.offset else 0 -> -2 if .*", _BELOW),),
    "encodings/liere.py _exponentials": ((r"torch\.compiler\.is_compiling\(\) -> .*", _WAY),),
    "encodings/mrope.py MRoPE._axes": (
        (r"k < n \* .* -> k <= n \* .*", EQUIVALENT + "a pair on the bound is one of axis 0, as those beyond it are"),
    ),
    "encodings/nerf_fourier.py NeRFFourier.__init__": ((r".*", _DEFAULT),),
    "encodings/nerf_fourier.py NeRFFourier.vectors": ((r"2 \* self\.n_octaves -> 3 \* self\.n_octaves", _CUT),),
    "encodings/pope.py PoPE.rotate_k": (
        (r"-2 \* math\.pi -> -3 \* math\.pi", "not visible: phases that are drawn from N(0, 1) do not reach it"),
        (r".*cos\.dtype.* -> .*sin\.dtype.*", _ONE_DTYPE),
    ),
    "encodings/query_temperature.py QueryTemperature._unrotate": ((r".*q\.dtype\) -> .*k\.dtype\)", _ONE_DTYPE),),
    "encodings/query_temperature.py QueryTemperature.parts": ((r"\(p \+ 1\)\.clamp.*", _BELOW),),
    "encodings/retnet.py RetNet.amplitude": ((r"away\.abs\(\) <= reach -> .*", _TIE),),
    "encodings/rope.py RoPE.from_config": (
        (r"-found\.inv_freq if .*", _CLOCKWISE),
        (
            r"1 -> 2|trained \+ 1 -> trained \+ 2",
            EQUIVALENT + "one gain for all that is short, and one for all that is long",
        ),
    ),
    "encodings/sandwich.py Sandwich.over": (
        (r"int\(distance\.(min|max)\(\)\) // _NEAR.*", EQUIVALENT + "more is tabulated than is looked up"),
    ),
    "encodings/sandwich.py Sandwich.at": (
        (r"torch\.zeros_like.*", EQUIVALENT + "zeros, which the first sum makes float64"),
        (r"h\.double\(\) -> h\.bfloat16\(\)", "not visible: more than 256 heads, which bfloat16 cannot number"),
    ),
    "encodings/sinusoidal.py Sinusoidal.formula": (
        (r"max\(2 \* .*, 1\) -> max\(2 \* .*, 2\)", EQUIVALENT + "0 by 1 or by 2"),
    ),
    "encodings/t5.py _edges": (
        (r"max\(exact.* -> min\(exact.*", _SEARCH),
        (r"int\(exact \*.* - 2 -> .* - [13]", _SEARCH),
        (r"exact \* \(max_distance / exact\).* -> exact / .*", _SEARCH),
    ),
    "encodings/transformer_xl.py TransformerXL.bias": ((r"sin\.dtype -> cos\.dtype", _ONE_DTYPE),),
    "encodings/tupe.py TUPE.at": (
        (r"self\.cls_to is None or .*", _TOGETHER),
        (r"q\.dtype -> k\.dtype", _ONE_DTYPE),
    ),
    "encodings/tupe.py TUPE._broadcast": ((r"placed\.parts\[0\] if placed\.seq_dim.*", _LAST),),
    "encodings/tupe.py TUPE._wide": (
        (r"kind == torch\.float64 -> .*", "not visible: laws in float64 have float64 weights"),
    ),
    "families/angles.py _of_angle": (
        (r"gain == 1\.0 -> gain == [02]\.0", EQUIVALENT + "a gain of 1 is multiplied or left out"),
    ),
    "families/angles.py _runs": ((r".*", _WAY),),
    "families/angles.py _without_float64": (
        (
            r"axes\.floor\(\) -> axes\.ceil\(\)",
            EQUIVALENT + "where a position is cut; the two parts add up to the same",
        ),
    ),
    "families/angles.py _digits_of_frequencies": (
        (
            r".*\(rest - high\).*|rest\.floor\(\) -> .*|2 \*\* 12 -> .*",  # digits are cut elsewhere, and add up
            "not visible: digits that float32 rounds by 6e-8 of a turn, a thirtieth of what is allowed",
        ),
    ),
    "frequencies/scaling.py mscale": ((r"max\(factor, 1\.0\) -> max\(factor, 0\.0\)", _NO_SMALLER),),
    "frequencies/scaling.py longrope_gain": ((r"max\(factor, 1\.0\) -> max\(factor, 0\.0\)", _NO_SMALLER),),
    "positions/images.py grid": ((r".*n_prefix.*", _CLASS_PLACES),),
    "encodings/xpos.py XPos.amplitude": ((r"away\.abs\(\) <= reach -> .*", _TIE),),
    "families/rotary.py Rotary.rotate": (
        (r"as_norm\(.*, [qk]\) -> .*", EQUIVALENT + "q and k have one dtype and one width"),
        (r"len\(placed\.parts\).* -> .*", EQUIVALENT + "tables are made once or twice"),
        (r"backend == 'auto' -> backend != 'auto'", _WAY),
        (r"[qk]_norm is None -> .*", "not visible: who turns with norms; no convention hands them in"),
        (r"\(out\[0\]\.dtype.* -> .*", _ONE_DTYPE),
    ),
    "families/rotary.py Rotary.rotate_": ((r"backend == 'auto' -> .*", _WAY),),
    "families/rotary.py Rotary._tables": (
        (r"cos\.ndim == 2 -> cos\.ndim == 1", EQUIVALENT + "a dimension of one more, which broadcasts"),
        (r"cos\.ndim == 2 -> sin\.ndim == 2", EQUIVALENT + "both tables have one shape"),
    ),
    "families/rotary.py Rotary.of_slice": ((r".*'first'.*", EQUIVALENT + "all lanes of a slice turn"),),
    "frequencies/scaling.py ntk_base": (
        (r"max\(width - 2, 1\) -> max\(width - 2, 2\)", EQUIVALENT + "widths are even"),
    ),
    "families/bias.py ContentBias": (
        (r"True -> False", "declared: what hosts read of it, and nothing here computes by"),
        (r"False -> True", "not reached: who runs anything of this class says so itself"),
    ),
    "families/windows.py rows_and_columns": ((r"size\[[01]\] -> .*", _DEFAULT),),
    "encodings/tupe.py TUPE._rows": (
        (r"row\.diff\(\) == 1 -> row\.diff\(\) == [02]", "not visible: tokens that share one position"),
        (r".*", EQUIVALENT + "rows are cut out or looked up"),
    ),
    "kernels/eager.py rotate": (
        (r"len\(parts\) == 1 -> len\(parts\) == 0", _WAY),
        (r".*cos\.(shape\[-[13]\]|ndim > 2) -> .*sin\..*", EQUIVALENT + "both tables have one shape"),
    ),
    "families/networks.py of_heads": ((r".*trailing=1\) -> .*trailing=0\)", _BY_HEAD),),
    "families/networks.py without_head_dim": (
        (r"h\.numel\(\) != .*|-h\.ndim - trailing -> .*|t\.shape\[.* == 1 -> .* == [02]", _BY_HEAD),
    ),
    "families/numbers.py no_autocast": (
        (r".*enabled=False.* -> .*", "not visible: plain attention under autocast rounds its products as well"),
    ),
}
