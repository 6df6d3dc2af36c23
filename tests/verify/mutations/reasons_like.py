"""Why survivors survive that are changed in one manner, by "file function" and a pattern that the whole change fits."""

EQUIVALENT = "equivalent: "  # the same numbers for everything that may be asked: no check can tell
_WAY = EQUIVALENT + "which of two ways is taken; the numbers are the same"
_DISTANCE = EQUIVALENT + "without the promise attention forms each pair by itself, and the numbers are the same"
_AHEAD = EQUIVALENT + "without the promise attention leaves factors aside where keys are ahead"
_FIRST = EQUIVALENT + "the first piece takes map 0 of both, whatever stands there"
_SMALL = "not visible: what is learned loses no more by bfloat16 than a table does"
_NEARER = EQUIVALENT + "fewer keys are taken as far, and near ones get the same numbers"
_FEWER = EQUIVALENT + "more is tabulated than is looked up, or no table is made; the numbers are the same"
_LAST = EQUIVALENT + "tensors have so many dimensions there that both are the last"
_SEARCH = EQUIVALENT + "where a search begins; it goes on to the same whole number"
_KEPT = "outside: what the constructor keeps of an option, which nothing is computed by"
_LIMIT = "outside: the validation that follows, or how far out it begins"
_MODEL = EQUIVALENT + "the same sums of whole numbers"

PIECES = {"dual_chunk DualChunk", "rerope ReRoPE", "leaky_rerope LeakyReRoPE", "self_extend SelfExtend"}
DISTANCES = (
    "alibi ALiBi,dynamic_position_bias DynamicPositionBias,kerple KERPLE,kerple_power KERPLEPower,relative_bias "
    "RelativeBias,sandwich Sandwich,shaw Shaw,t5 T5,transformer_xl TransformerXL"
)


def _encoding(name: str) -> str:
    file, _, function = name.partition(" ")
    return f"encodings/{file}.py {function}"


_TABLES = EQUIVALENT + "one table for all heads at once, or head by head; the numbers are the same"
_NEVER = EQUIVALENT + "it is never None there"
_TOGETHER = EQUIVALENT + "both are there or neither is"
_LOOKED = EQUIVALENT + "a place that is not there was refused before, wherever it can be looked at"
_ONE_DTYPE = EQUIVALENT + "both have one dtype"
_ONE_DEVICE = EQUIVALENT + "both are on one device"
_CUT = EQUIVALENT + "lanes beyond the width are cut off"
_ZERO_WEIGHT = "not visible: weights that are drawn are not zero"
_BELOW = "not visible: positions before the first, which the paper does not have"
_ROUNDING = "not visible: what float32 leaves of a sum, 1e-8 of it"
_EXAMPLE = "not visible: laws resolve for 1,024 positions"
_DEFAULT = "outside: a default, which options() tells as if it had been given"
_TIE = "not visible: no number lies on the bound"
_CLOCKWISE = (
    "equivalent for scores: queries and keys both turn the other way, which check says and does not count as a fault"
)
_TYPES = EQUIVALENT + "types of scaling that read it are refused without it"
_MEMORY = EQUIVALENT + "memory to write into, which torch resizes where it does not fit"
_EVEN = EQUIVALENT + "the two lists have one length"
_TURN = "not visible: whole turns more, which cosines do not see, and which cost float32 digits far out alone"
_DIGITS = "not visible: digits that float32 may not hold exactly, which far positions alone would show"
_FAR_OFF = "not visible: positions beyond 2^24, where no convention of a device without float64 looks"
_CLASS_PLACES = "makes places of class tokens, which no convention hands in"
_PIECES = EQUIVALENT + "how many are formed at once"
_FROM_ALL = "not visible: every caller passes it"

LIKE: dict[str, tuple[tuple[str, str], ...]] = {
    **{_encoding(name): ((r"True -> False", _DISTANCE),) for name in DISTANCES.split(",")},
    **{_encoding(name): ((r"\(\(0, 0\), .* -> \(\((1, 0|0, 1)\), .*", _FIRST),) for name in PIECES},
    **{_encoding(name): ((r"True -> False", _AHEAD),) for name in ("fox FoX", "tupe TUPE")},
    **{_encoding(name): ((r"True -> False", _SMALL),) for name in ("fope FoPE", "pope PoPE", "time2vec Time2Vec")},
    "encodings/alibi.py ALiBi.at": (
        (r".*, q\) -> .*, k\)", "not visible: without a row for each query it broadcasts, which bias_fn allows"),
    ),
    "encodings/binary.py Binary.vectors": ((r".*clamp\(max=6[24]\)", "not visible: positions beyond 2^62"),),
    "encodings/cope.py CoPE": ((r"True -> False", "declared: what hosts read of it, and nothing here computes by"),),
    "encodings/cpvt.py CPVT.mix": ((r".*\.sum\(-2\) -> .*\.sum\(2\)", _LAST),),
    "encodings/cpvt.py CPVT._neighbours": (
        (r"2 \* column.* -> 1 \* column.*", EQUIVALENT + "rows are still longer than the image and the kernel's reach"),
    ),
    "encodings/dape.py DAPE.resolve": (
        (
            r".* is self\.encoding -> .* is not self\.encoding",
            EQUIVALENT + "a copy is made or not, of the same numbers",
        ),
    ),
    "encodings/deberta.py DeBERTa.bias": (
        (r"self\._near\(placed\.pos, .* -> self\._near\(k_placed\.pos, .*", _NEARER),
        (r"k\[:, :, first:last\] -> .*", EQUIVALENT + "more keys are multiplied than are looked up"),
    ),
    "encodings/deberta.py DeBERTa._near": (
        (r"side\.shape\[-1\] -> side\.shape\[-0\]", _NEARER),
        (r".*q_pos\.(min|max)\(\) -> k_pos\.\1\(\)", _NEARER),
        (r"k_pos [<>]= q_pos\..* -> q_pos [<>]= q_pos\..*", _NEARER),
        (r"k_pos\.shape\[-1\] - int.* -> k_pos\.shape\[-1\] \+ int.*", _NEARER),
    ),
    "encodings/deberta.py _by_row": ((r"zip.* if positions\.may_look\(row\) else .* -> .* if not .*", _WAY),),
    "encodings/deberta.py _edges": ((r"max_distance - 1 -> max_distance (\+ 1|- [02])", _SEARCH),),
    "encodings/dynamic_position_bias.py DynamicPositionBias.__init__": (
        (r"n_axes == 1 -> n_axes == 0", _DISTANCE),
        (r"depth > 1 -> depth (>= 1|> 0)", EQUIVALENT + "an empty table of layers instead of none"),
    ),
    "encodings/dynamic_position_bias.py DynamicPositionBias._tabulated": (
        (r"h\.ndim < 2 -> .*", _FEWER),
        (r"beside_heads\(.*\) is None -> .* is not None", _FEWER),
    ),
    "encodings/dynamic_position_bias.py DynamicPositionBias._network": (
        (r"(h\.ndim and )?beside_heads.* -> .*", _TABLES),
        (r"self\.ln_g is not None and .* -> self\.ln_g is not None or .*", _TOGETHER),
        (r"x\[\.\.\., 0\] -> x\[\.\.\., 1\]", EQUIVALENT + "its shape alone is read"),
        (r".*\.sum\(-1\) -> .*\.sum\(-0\)", _LAST),
    ),
    "encodings/fire.py beside_heads": ((r".*", _TABLES),),
    "encodings/fire.py FIRE.lines": (
        (r"self\.width \+ 1 -> self\.width \+ 2", EQUIVALENT + "a segment more, which nothing looks up"),
        (r"w1 == 0 -> w1 == 1|b1 > 0 -> .*|~rises & ~falls -> rises & ~falls", _ZERO_WEIGHT),
    ),
    "encodings/fope.py FoPE.__init__": ((r"self\.init_gain -> not self\.init_gain", _LIMIT),),
    "encodings/fope.py FoPE.frequencies": (
        (r"self\.head_dim // 2 -> self\.head_dim (\* 2|// 1)", EQUIVALENT + "pairs that turn too slowly are left out"),
        (r"every > .* -> every >= .*", _TIE),
    ),
    "encodings/fox.py _whole": ((r"kept.*", _ROUNDING),),
    "encodings/fox.py FoX.at": ((r"q\[0\] - k\[0\] .*|q\[1\].*|k\[1\].*", _ROUNDING),),
    "encodings/fox.py FoX.parts": (
        (r"torch\.float64 if .* -> .*", _ROUNDING),
        (r"x\.masked_fill\(~real, 0\.0\) -> .*", EQUIVALENT + "the gate of such a token is replaced"),
        (r"gate\.masked_fill.*", "not visible: padding stands before all tokens, and is in both sums"),
        (r"past\.parts\[0\] -> past\.parts\[1\]", EQUIVALENT + "its shape alone is read"),
    ),
    "encodings/fox.py FoX.factors": (
        (r"torch\.float64 if .* -> .*", _ROUNDING),
        (r"has_float64\(placed.* -> .*", _ONE_DEVICE),
        (r"placed\.parts\[0\] -> .*", _ONE_DTYPE),
        (r"placed\.pos\.shape\[-1\] -> placed\.pos\.shape\[1\]", _LAST),
        (r"b\.new_ones\(1, .* -> b\.new_ones\(2, .*", "not visible: laws have batches of two"),
    ),
    "encodings/fox.py FoX.score_mod": ((r".*part\.shape.*", "not visible: laws have batches of two"),),
    "encodings/grape_m.py GRAPEM.basis": ((r"q \* .* -> q / .*", EQUIVALENT + "signs are 1 and -1"),),
    "encodings/grape_m.py GRAPEM.__init__": (
        (r"self\.rotary_dim // 2 -> .*", _KEPT),
        (r"'interleaved' -> 'half'", _KEPT),
    ),
    "encodings/grape_m.py GRAPEM._turn": (
        (r"self\.n_kv_heads or 1 -> .*", _NEVER),
        (r".*cos\.dtype.* -> .*sin\.dtype.*", _ONE_DTYPE),
    ),
    "encodings/graphormer.py Graphormer.at": (
        (r".*self\.max_distance \+ 2 -> .*|\(distance >= -1\) & .*|distance >= -1 -> distance >= -2", _LOOKED),
        (r".*\.to\(q\.device\) -> .*\.to\(k\.device\)", _ONE_DEVICE),
    ),
    "encodings/graphormer.py Graphormer._set": (
        (r"distances is None or .*", "not visible: laws need a graph, and an array of distances is taken again"),
    ),
    "encodings/graphormer.py Graphormer.max_len": (
        (r".*shape\[-1\] -> .*shape\[-?[12]\]", EQUIVALENT + "it is square"),
    ),
    "encodings/graphormer.py Graphormer.parts": (
        (r".*shape\[-self\.n_axes:\] -> .*shape\[self\.n_axes:\]", EQUIVALENT + "the table of one graph is square"),
    ),
    "encodings/learned.py Learned.vectors": (
        (r"self\.weight\.shape\[0\] -> self\.weight\.shape\[1\]", _LOOKED),
        (r"-1 if self\.offset else 0 -> -2 if .*", _BELOW),
    ),
    "encodings/learned_2d.py Learned2D.vectors": (
        (r"self\.weight\.shape\[0\] -> self\.weight\.shape\[1\]", _LOOKED),
        (r"\(row == -1\) & .* -> \(row == -1\) \| .*", _BELOW),
    ),
    "encodings/longrope.py LongRoPE.__init__": ((r"\{'short_factors'.*", _LIMIT),),
    "encodings/mrope.py MRoPE._axes": (
        (r"k < n \* .* -> k <= n \* .*", EQUIVALENT + "a pair on the bound is one of axis 0, as those beyond it are"),
    ),
    "encodings/nerf_fourier.py NeRFFourier.__init__": ((r".*", _DEFAULT),),
    "encodings/nerf_fourier.py NeRFFourier.vectors": ((r"2 \* self\.n_octaves -> 3 \* self\.n_octaves", _CUT),),
    "encodings/normalised.py Normalised.vectors": ((r"max\(self\.given_length.*", _EXAMPLE),),
    "encodings/pope.py PoPE.rotate_k": (
        (r"-2 \* math\.pi -> -3 \* math\.pi", "not visible: phases that are drawn from N(0, 1) do not reach it"),
        (r".*cos\.dtype.* -> .*sin\.dtype.*", _ONE_DTYPE),
    ),
    "encodings/query_temperature.py QueryTemperature._unrotate": ((r".*q\.dtype\) -> .*k\.dtype\)", _ONE_DTYPE),),
    "encodings/query_temperature.py QueryTemperature.parts": ((r"\(p \+ 1\)\.clamp.*", _BELOW),),
    "encodings/retnet.py RetNet.amplitude": (
        (
            r"pos - self\.centre -> pos \+ self\.centre",
            "equivalent for scores: what another centre multiplies queries by divides keys",
        ),
        (r"self\.n_kv_heads or 1 -> .*", _NEVER),
        (r"away\.abs\(\) <= reach -> .*", _TIE),
    ),
    "encodings/rope.py RoPE.from_config": (
        (r"-found\.inv_freq if .*", _CLOCKWISE),
        (r"rotary\.(original_max_len|factor) or .*", _TYPES),
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
    "encodings/shaw.py Shaw.bias": ((r"placed\.parts\[0\] -> k_placed\.parts\[0\]", _ONE_DTYPE),),
    "encodings/sinusoidal.py Sinusoidal.formula": (
        (r"max\(2 \* .*, 1\) -> max\(2 \* .*, 2\)", EQUIVALENT + "0 by 1 or by 2"),
    ),
    "encodings/swin.py Swin.at": ((r"self\.weight\.shape\[0\] -> .*", _LOOKED),),
    "encodings/swin_v2.py SwinV2._tabulated": (
        (r".*numel\(\) -> .*numel\(\)", _FEWER),
        (r"\(bottom - top \+ 1\).*", _FEWER),
        (r"bottom \+ 1 -> bottom \+ 2", _FEWER),
        (r"bottom - top.* -> .*", _FEWER),
        (r"down -> right", _ONE_DEVICE),
    ),
    "encodings/swin_v2.py SwinV2._network": (
        (r"h\..*|hidden\..*", _TABLES),
        (r"floating\(down\) -> floating\(right\)", _ONE_DTYPE),
        (r".*\.sum\(-1\) -> .*\.sum\(-0\)", _LAST),
    ),
    "encodings/t5.py _edges": (
        (r"max\(exact.* -> min\(exact.*", _SEARCH),
        (r"int\(exact \*.* - 2 -> .* - [13]", _SEARCH),
        (r"exact \* \(max_distance / exact\).* -> exact / .*", _SEARCH),
    ),
    "encodings/transformer_xl.py TransformerXL.bias": (
        (r"sin\.dtype -> cos\.dtype", _ONE_DTYPE),
        (r"k\.transpose\(-1, -2\) -> k\.transpose\(-1, 2\)", _LAST),
    ),
    "encodings/transformer_xl.py TransformerXL.vectors": ((r".*, -1\) -> .*, 1\)", _LAST),),
    "encodings/tupe.py TUPE.at": (
        (r"self\.cls_to is None or .*", _TOGETHER),
        (r"q\.dtype -> k\.dtype", _ONE_DTYPE),
        (r".*\.sum\(-1\) -> .*\.sum\(-0\)", _LAST),
    ),
    "encodings/tupe.py TUPE.factors": (
        (r".*\.to\(a\.dtype\) -> .*\.to\(b\.dtype\)", _ONE_DTYPE),
        (r"self\.cls_to is not None -> .*", EQUIVALENT + "it adds zeros"),
        (r"lane \+ 0\.0 .* -> lane - 0\.0 .*", EQUIVALENT + "it adds zeros"),
        (r"placed\.parts\[0\] -> k_placed\.parts\[0\]", _ONE_DTYPE),
    ),
    "encodings/tupe.py TUPE._broadcast": ((r"placed\.parts\[0\] if placed\.seq_dim.*", _LAST),),
    "encodings/tupe.py TUPE._wide": (
        (r"kind == torch\.float64 -> .*", "not visible: laws in float64 have float64 weights"),
    ),
    "families/angles.py tabulate": ((r"n_axes == 1 -> .*", _WAY),),
    "families/angles.py cos_sin": (
        (r"1\.0 -> [02]\.0", _FROM_ALL),
        (r"pos\.div.*", EQUIVALENT + "where a position is cut; the two angles add up to the same"),
    ),
    "families/angles.py _of_angle": (
        (r"gain == 1\.0 -> gain == [02]\.0", EQUIVALENT + "a gain of 1 is multiplied or left out"),
    ),
    "families/angles.py _runs": ((r".*", _WAY),),
    "families/angles.py _fill_runs": (
        (r"len\(starts\) -> len\(stops\)", _EVEN),
        (r"near\[0\] -> .*|room\[.*|end - done -> .*", _MEMORY),
        (
            r"stops\[i\].*|starts\[i\].*|min\(done \+ most.*|done \+ most -> .*",
            EQUIVALENT + "how many blocks are formed at once",
        ),
    ),
    "families/angles.py _without_float64": (
        (r".*- .*\.round\(\) -> .*\+ .*\.round\(\)", _TURN),
        (r"axes\.floor\(\) -> .*", "not visible: real positions on a device without float64"),
        (r"axes\.is_floating_point\(\) -> .*", EQUIVALENT + "whole positions have no rest to add"),
        (r"torch\.zeros\(\(\).* -> torch\.ones\(\(\).*|turns \+ axis -> .*", _TURN),
        (r"digits\.unsqueeze\(-1\) -> .*", _LAST),
    ),
    "families/angles.py _digits_of": ((r"whole >> 24 -> .*", _FAR_OFF),),
    "families/angles.py _digits_per_turn": (
        (r"2 \*\* 24 -> .*", _FAR_OFF),
        (r"\(inv_freq.*remainder\(1\.0\) -> .*remainder\(2\.0\)", _TURN),
        (r".*", _DIGITS),
    ),
    "families/bias.py Bias.over": ((r"distance\[:1\] -> distance\[:\]", EQUIVALENT + "zeros, which broadcast"),),
    "families/bias.py Bias.parts": (
        (r"dtype == torch\.float64 -> .*", "not visible: whole distances below 2^24 are exact in float32"),
    ),
    "families/bias.py Bias._broadcast": ((r"len\(rows\) -> len\(columns\)", _EVEN),),
    "frequencies/configured.py Frequencies": ((r"field\(.*", "outside: how results compare, and no number of theirs"),),
    "frequencies/configured.py _llama3": (
        (r"high <= low -> high < low", EQUIVALENT + "a ramp without width is a step"),
        (r".* < low -> .* <= low", _TIE),
    ),
    "frequencies/configured.py _inv_freq": ((r"rotary\.(original_max_len|factor) or .*", _TYPES),),
    "frequencies/configured.py _gain": ((r"rotary\.(original_max_len|factor) or .*", _TYPES),),
    "frequencies/scaling.py yarn_bounds": ((r"(32\.0|1\.0|True) -> .*", _FROM_ALL),),
    "frequencies/scaling.py mscale": (
        (r"factor > 1 -> .*", EQUIVALENT + "log 1 is 0, and a smaller factor is refused"),
    ),
    "frequencies/scaling.py longrope_gain": (
        (r"factor > 1 -> .*", EQUIVALENT + "log 1 is 0, and a smaller factor is refused"),
    ),
    "positions/text.py packed": (
        (r"cu_seqlens is not None and .*", _LIMIT),
        (r"torch\.ones_like.*", EQUIVALENT + "the first token begins at index 0, changed or not"),
    ),
    "positions/text.py padded": ((r".*cumsum\(-1\) -> .*cumsum\(1\)", _LAST),),
    "positions/text.py left_padded": ((r".*cumsum\(-1\) -> .*cumsum\(1\)", _LAST),),
    "positions/images.py grid": ((r".*n_prefix.*", _CLASS_PLACES),),
    "encodings/xpos.py XPos.amplitude": (
        (r"pos - self\.centre -> .*", "equivalent for scores: what another centre multiplies queries by divides keys"),
        (r"away\.abs\(\) <= reach -> .*", _TIE),
    ),
    "encodings/liere.py _exponentials": ((r"matrices\.numel\(\) <= .*", _WAY), (r".*", _PIECES)),
    "families/rotary.py Rotary": ((r"False -> True", "not visible: who cannot turn with norms or a backend says so"),),
    "families/rotary.py Rotary.rotate": (
        (r"as_norm\(.*, [qk]\) -> .*", EQUIVALENT + "q and k have one dtype and one width"),
        (r"k_norm is not None -> k_norm is None", EQUIVALENT + "no norm is made of none"),
        (r"len\(placed\.parts\).* -> .*", EQUIVALENT + "tables are made once or twice"),
        (r"out\[.\].*", "not visible: one of the two in place, and the other not"),
        (r"\(out\[0\]\.dtype.* -> .*", _ONE_DTYPE),
    ),
    "families/rotary.py Rotary.rotate_": ((r"backend == 'auto' -> .*", _WAY),),
    "families/rotary.py Rotary._tables": (
        (r"cos\.ndim == 2 -> cos\.ndim == 1", EQUIVALENT + "a dimension of one more, which broadcasts"),
        (r"cos\.ndim == 2 -> sin\.ndim == 2", EQUIVALENT + "both tables have one shape"),
    ),
    "families/rotary.py Rotary.of_slice": ((r".*'first'.*", EQUIVALENT + "all lanes of a slice turn"),),
    "families/options.py OwnFrequencies._set_frequencies": (
        (r"torch\.arange\(n, .*", "not visible: up to 256 pairs, which bfloat16 can number"),
    ),
    "frequencies/scaling.py ntk_base": ((r"width > 2 -> .*|float\(base\) -> .*", "not visible: heads of two lanes"),),
    "frequencies/configured.py _score_factor": (
        (r".*", "DeepSeek's factor of scores: no convention sees both scores and a file"),
    ),
    "families/bias.py Bias": ((r"False -> True", EQUIVALENT + "every encoding that has factors says so itself"),),
    "families/bias.py ContentBias": (
        (r"True -> False", "declared: what hosts read of it, and nothing here computes by"),
        (r"False -> True", "not reached: who runs anything of this class says so itself"),
    ),
    "families/bias.py Bias.dense": (
        (r"dtype == torch\.float64 -> .*", "not visible: whole distances below 2^24 are exact in float32"),
        (r"bias\.shape\[-2:\] -> bias\.shape\[2:\]", _LAST),
    ),
    "families/embedded.py Embedded.forward": (
        (r"x if self\.reads_x else None -> .*", "not visible: nothing that is added reads tokens when it is placed"),
    ),
    "families/windows.py rows_and_columns": ((r"size\[[01]\] -> .*", _DEFAULT),),
    "encodings/tupe.py TUPE._rows": (
        (r"row\.diff\(\) == 1 -> row\.diff\(\) == [02]", "not visible: tokens that share one position"),
        (r".*", EQUIVALENT + "rows are cut out or looked up"),
    ),
    "kernels/eager.py turn": (
        (r"x\.ndim > 2 -> .*|len\(parts\) > 1 -> .*", _WAY),
        (r".*cos\.(shape\[-[13]\]|ndim > 2) -> .*sin\..*", EQUIVALENT + "both tables have one shape"),
        (r"lanes\[\.\.\., 0::2\] -> lanes\[\.\.\., ::2\]", EQUIVALENT + "a slice begins at 0"),
        (r"x\.shape\[-3\] -> x\.shape\[(3|-4)\]", EQUIVALENT + "a group of one head for each table, or no groups"),
    ),
    "families/numbers.py no_autocast": (
        (r".*enabled=False.* -> .*", "not visible: plain attention under autocast rounds its products as well"),
    ),
}
