"""posenc's own implementations, as `check` calls them: one subject for each convention, option and encoding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import unusual
import wrapped
from configurations import CONFIGS, DEEPSEEK_V3, LLAMA, YARN

from posenc import frequencies, positions, registry
from posenc.encodings import T5, ALiBi, RoPE, Sinusoidal, SinusoidalND, XPos


@dataclass(frozen=True)
class Subject:
    """What is handed to `check`: how it is called, what it should be, and how it is made anew."""

    convention: str
    spec: dict[str, Any]
    build: Callable[[], Any]


def subjects() -> dict[str, Subject]:
    """Return all, by name."""
    found = {}
    for part in (_rotations, _configured, _by_scaling, _pictures, _additive, _biases, _tokens, _models, _encodings):
        for name, subject in part():
            assert name not in found, name
            found[name] = subject
    return found


def _rope_spec(**options: Any) -> dict[str, Any]:
    spec = {"encoding": "rope", "head_dim": options["head_dim"], "base": options.get("base", 10000.0)}
    spec["layout"] = options.get("pairing", "half")
    return spec | {name: options[name] for name in ("rotary_dim", "rotary_side") if name in options}


ROPES = {
    "half": {"head_dim": 32},
    "interleaved": {"head_dim": 24, "base": 123456.0, "pairing": "interleaved"},
    "partial": {"head_dim": 40, "rotary_dim": 16, "base": 5e5},
    "last": {"head_dim": 24, "rotary_dim": 8, "rotary_side": "last"},
    "last, interleaved": {"head_dim": 20, "rotary_dim": 12, "rotary_side": "last", "pairing": "interleaved"},
}


XPOS = {"authors": {"head_dim": 32}, "half": {"head_dim": 16, "pairing": "half", "gamma": 0.6}}


def _rotations() -> Iterator[tuple[str, Subject]]:
    for name, options in ROPES.items():
        spec = _rope_spec(**options)
        yield f"rope_fn: {name}", Subject("rope_fn", spec, lambda o=options: wrapped.turned(RoPE(**o)))
        yield f"rope_fn: eager, {name}", Subject("rope_fn", spec, lambda o=options: wrapped.eager_turn(**o))
    half, pairs = ROPES["half"], ROPES["interleaved"]
    declared = _rope_spec(**half) | {"activation_dtype": "bfloat16"}
    yield "rope_fn: bfloat16", Subject("rope_fn", declared, lambda: wrapped.turned(RoPE(**half)))
    for start in (0, -300):
        spec = _rope_spec(**half)
        yield f"rope_fn: long, {start}", Subject("rope_fn", spec, lambda s=start: wrapped.far(s, **half))
    yield "rope_fn: scattered", Subject("rope_fn", _rope_spec(**half), lambda: wrapped.scattered(RoPE(**half)))
    yield "rope_fn: in pieces", Subject("rope_fn", _rope_spec(**half), lambda: wrapped.in_pieces(RoPE(**half)))
    made = {"no float64": unusual.without_float64, "in place": unusual.in_place}
    made["in place, by a backend"] = lambda encoding: unusual.in_place(encoding, backend="formula")
    for name, wrap in made.items():
        yield f"rope_fn: {name}", Subject("rope_fn", _rope_spec(**half), lambda w=wrap: w(RoPE(**half)))
    far_off = {"encoding": "rope", "head_dim": 32, "layout": "half", "config": CONFIGS["yarn, stated gain"]}
    make = RoPE.from_config(far_off["config"]).resolve
    build = lambda: wrapped.hf_pair(lambda seq_len: unusual.Unwide(make(seq_len)))  # noqa: E731
    yield "hf_rope: no float64, a gain", Subject("hf_rope", far_off, build)
    falling = lambda k: 10000.0 ** (-k / 16)  # noqa: E731
    given = {"of a function": lambda: falling, "given": lambda: frequencies.given(falling, 16, "RoPE")}
    for name, of in given.items():
        build = lambda f=of: wrapped.turned(RoPE(head_dim=32, inv_freq=f()))  # noqa: E731
        yield f"rope_fn: frequencies {name}", Subject("rope_fn", _rope_spec(**half), build)
    yield "rope_fn: by its keys", Subject("rope_fn", _rope_spec(**half), lambda: wrapped.by_keys(RoPE(**half)))
    yield "rope_offset_fn", Subject("rope_offset_fn", _rope_spec(**pairs), lambda: wrapped.by_offset(RoPE(**pairs)))
    yield "lucidrains", Subject("lucidrains", _rope_spec(**pairs), lambda: wrapped.lucid(RoPE(**pairs)))
    yield "bshd_module", Subject("bshd_module", _rope_spec(**half), lambda: wrapped.Bshd(RoPE(**half)))
    yield "meta_complex", Subject("meta_complex", _rope_spec(**pairs), lambda: wrapped.complex_pair(**pairs))
    for name, options in XPOS.items():
        spec = {"encoding": "xpos", "head_dim": options["head_dim"], "base": 10000.0, "scale_base": 512}
        spec |= {"gamma": options.get("gamma", 0.4), "layout": options.get("pairing", "interleaved")}
        yield f"xpos_fn: {name}", Subject("xpos_fn", spec, lambda o=options: wrapped.both_turned(XPos(**o)))


ATTENDED = {  # by head_dim: scores of a whole attention, its factor among them
    "last lanes, and a factor": (16, DEEPSEEK_V3),
    "a gain of some lanes": (16, DEEPSEEK_V3 | {"rope_scaling": YARN}),
    "no factor": (32, CONFIGS["yarn, mscale"]),
}


def _configured() -> Iterator[tuple[str, Subject]]:
    for name, config in CONFIGS.items():
        spec = {"encoding": "rope", "head_dim": 32, "layout": "half", "config": config}
        yield (
            f"hf_rope: {name}",
            Subject("hf_rope", spec, lambda c=config: wrapped.hf_pair(RoPE.from_config(c).resolve)),
        )
        yield (
            f"hf_rope: by frequencies, {name}",
            Subject("hf_rope", spec, lambda c=config: wrapped.hf_pair(wrapped.of_length(c))),
        )

    pair = LLAMA | {"head_dim": 2, "max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    spec = {"encoding": "rope", "head_dim": 2, "layout": "half", "config": pair}
    yield "hf_rope: one pair", Subject("hf_rope", spec, lambda: wrapped.hf_pair(RoPE.from_config(pair).resolve))
    for name, (width, config) in ATTENDED.items():
        spec = {"encoding": "rope", "heads": 4, "head_dim": width, "causal": True, "config": config}
        build = lambda c=config: wrapped.plain_attention(RoPE.from_config(c))  # noqa: E731
        yield f"attention: {name}", Subject("attention", spec, build)


def _by_scaling() -> Iterator[tuple[str, Subject]]:
    ramp = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 32.0, "factor": 8.0}
    yarn = {"rope_type": "yarn", "factor": 8.0}
    made = {"yarn": (yarn, 256), "by parts": (ramp, 256)}
    made |= {
        "yarn, a bound above": (yarn, 235),
        "yarn, a bound below": (yarn, 229),
    }  # which rounding to whole pairs sees
    for name, (scaling, trained) in made.items():
        config = LLAMA | {"head_dim": 128, "rope_scaling": scaling | {"original_max_position_embeddings": trained}}
        spec = {"encoding": "rope", "head_dim": 128, "layout": "half", "config": config}
        build = lambda n=name, m=trained: wrapped.hf_pair(unusual.by_scaling(n, m))  # noqa: E731
        yield f"hf_rope: by scalings, {name}", Subject("hf_rope", spec, build)


def _pictures() -> Iterator[tuple[str, Subject]]:
    for base in (10000.0, 100.0):
        spec = {"encoding": "rope2d", "head_dim": 32, "base": base}
        yield f"rope2d_table_fn: {base:g}", Subject("rope2d_table_fn", spec, lambda b=base: wrapped.angles_2d(b))
    for layout, sections in {"blocks": (16, 24, 24), "interleaved": (24, 20, 20)}.items():
        spec = {"encoding": "mrope", "head_dim": 128, "base": 1e6, "section": list(sections)}
        spec["interleaved"] = layout == "interleaved"
        yield f"mrope_fn: {layout}", Subject("mrope_fn", spec, lambda s=sections, o=layout: wrapped.mrope_angles(s, o))
    for window in ((5, 7), (4, 4)):
        spec = {"encoding": "swin_bias", "window": list(window)}
        yield f"relative_index_fn: {window}", Subject("relative_index_fn", spec, lambda: wrapped.window_index)


SINUSOIDS = {
    "paper": ({"d_model": 64}, {"layout": "interleaved"}),
    "odd": ({"d_model": 37}, {"layout": "interleaved"}),
    "concatenated": ({"d_model": 40, "order": "concatenated"}, {"layout": "half"}),
    "tensor2tensor": (
        {"d_model": 30, "order": "concatenated", "exponent": "tensor2tensor"},
        {"layout": "half", "variant": "tensor2tensor"},
    ),
}


def _additive() -> Iterator[tuple[str, Subject]]:
    for name, (options, words) in SINUSOIDS.items():
        spec = {"encoding": "sinusoidal", "dim": options["d_model"], "base": 10000.0, **words}
        yield (
            f"additive_module: {name}",
            Subject("additive_module", spec, lambda o=options: wrapped.Added(Sinusoidal(**o))),
        )
    spec = {"encoding": "sinusoidal2d", "dim": 32, "base": 10000.0, "variant": "detr", "start": 0}
    yield "additive_2d_module", Subject("additive_2d_module", spec, lambda: wrapped.Added2d(SinusoidalND(d_model=32)))
    spec = {"encoding": "relative_sinusoid", "dim": 32, "base": 10000.0}
    made = {"interleaved": lambda: wrapped.relative_rows(Sinusoidal(d_model=32)), "half": wrapped.relative_rows_xl}
    for layout, build in made.items():
        yield f"relative_table_fn: {layout}", Subject("relative_table_fn", spec | {"layout": layout}, build)


def _biases() -> Iterator[tuple[str, Subject]]:
    for heads in (8, 12):
        spec = {"encoding": "alibi", "heads": heads}
        yield f"slopes_fn: {heads}", Subject("slopes_fn", spec, lambda: wrapped.slopes)
        yield f"slopes_fn: learned, {heads}", Subject("slopes_fn", spec, lambda: wrapped.learned_slopes)
        spec = {"encoding": "alibi", "heads": heads, "causal": True}
        yield f"bias_fn: {heads}", Subject("bias_fn", spec, lambda: wrapped.alibi_bias)
        yield f"bias_fn: of heads, {heads}", Subject("bias_fn", spec, lambda: wrapped.alibi_of_heads)
        yield f"score_mod: {heads}", Subject("score_mod", spec, lambda n=heads: wrapped.score_mod(n))
        yield f"score_mod: of heads, {heads}", Subject("score_mod", spec, lambda n=heads: wrapped.score_mod_of_heads(n))
    spec = {"encoding": "alibi", "heads": 8, "causal": True}
    yield "bias_fn: of keys", Subject("bias_fn", spec, lambda: lambda *sizes: wrapped.alibi_bias(*sizes, sides="key"))
    yield (
        "bias_fn: one side",
        Subject("bias_fn", spec, lambda: lambda *sizes: wrapped.alibi_bias(*sizes, sides="one-sided")),
    )
    yield (
        "bias_fn: ahead",
        Subject("bias_fn", {"encoding": "alibi", "heads": 4, "causal": False}, lambda: wrapped.alibi_bias),
    )
    for both, n, far in ((True, 32, 128), (False, 32, 128), (True, 20, 50), (False, 24, 100)):
        spec = {"encoding": "t5", "num_buckets": n, "max_distance": far, "bidirectional": both}
        yield f"bucket_fn: {both}, {n}", Subject("bucket_fn", spec, lambda o=(both, n, far): wrapped.buckets(*o))


def _tokens() -> Iterator[tuple[str, Subject]]:
    for side, count in {"left": positions.left_padded, "right": positions.left_padded}.items():
        spec = {"kind": "positions", "padding": side}
        yield f"position_fn: {side}", Subject("position_fn", spec, lambda c=count.__name__: wrapped.counted(c))
    spec = {"kind": "positions", "padding": "left"}
    yield "position_fn: row by row", Subject("position_fn", spec, lambda: wrapped.counted_by_row)
    spec = {"kind": "positions", "packed": True}
    yield "packed_position_fn: lengths", Subject("packed_position_fn", spec, lambda: wrapped.packed)
    yield "packed_position_fn: documents", Subject("packed_position_fn", spec, lambda: wrapped.packed_by_document)
    spec = {"encoding": "learned", "offset": 2, "table_rows": 130, "max_positions": 128, "padding": "left"}
    yield "learned_rows_fn", Subject("learned_rows_fn", spec, wrapped.learned_rows)
    yield "learned_rows_fn: row by row", Subject("learned_rows_fn", spec, lambda: wrapped.learned_rows(apart=True))


def _models() -> Iterator[tuple[str, Subject]]:
    made = {
        "rope": (lambda: RoPE(head_dim=8), {"base": 10000.0, "layout": "half"}),
        "xpos": (lambda: XPos(head_dim=8, scale_base=8.0), {"base": 10000.0, "layout": "interleaved", "scale_base": 8}),
        "alibi": (lambda: ALiBi(n_heads=4), {}),
        "t5": (lambda: T5(n_heads=4, n_buckets=8, max_distance=16), {"num_buckets": 8, "max_distance": 16}),
    }
    kind = {"kind": "decode_equivalence", "dim": 32, "heads": 4, "head_dim": 8, "layers": 1, "causal": True}
    for name, (make, words) in made.items():
        spec = kind | {"encoding": name, **words} | ({"bidirectional": False} if name == "t5" else {})
        yield f"cached_model: {name}", Subject("cached_model", spec, lambda m=make: wrapped.Cached(m()))
        if name in ("rope", "alibi"):
            spec = {"encoding": name, "heads": 4, "head_dim": 8, "causal": True, **words}
            yield f"attention: {name}", Subject("attention", spec, lambda m=make: wrapped.plain_attention(m()))
    spec = {"encoding": "alibi", "heads": 4, "head_dim": 8, "causal": True}
    for name, options in {"of keys": {}, "Falcon": {"precision": "falcon-bfloat16"}}.items():  # exact for short texts
        make = lambda o=options: ALiBi(n_heads=4, sides="key", **o)  # noqa: E731
        yield f"attention: alibi, {name}", Subject("attention", spec, lambda m=make: wrapped.library_attention(m()))


def graphs(n: int) -> torch.Tensor:
    """Return the distances in n graphs of 64 nodes, each a ring with some of its ends cut off."""
    around = torch.arange(64)[:, None] - torch.arange(64)
    ring = torch.minimum(around % 64, -around % 64) % 13
    apart = (torch.arange(64)[:, None] % 5 == 0) ^ (torch.arange(64) % 5 == 0)
    return torch.stack([ring.roll(i + 1, 0).masked_fill(apart & (ring > i % 4), -1) for i in range(n)])


# options that no example of the registry has: sides that differ, sizes at an end, one axis more or less, both choices
MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "alibi": (
        {"n_heads": 6, "heads": 3},
        {"n_heads": 6, "slopes": "learned", "heads": (4, 1)},
        {"n_heads": 6, "slopes": "learned", "heads": 3},
    ),
    "beit": ({"window": (64, 66)},),
    "binary": ({"d_model": 66},),
    "cape": ({"d_model": 33},),
    "cope": ({"max_count": 3},),
    "cpvt": ({"kernel_size": 5},),
    "deberta": ({"n_buckets": 6, "max_distance": 9, "terms": ("p2c", "c2p")}, {"n_buckets": 8, "max_distance": 6}),
    "decomposed_2d": ({"size": (64, 70)}, {"size": (70, 64)}),
    "dynamic_position_bias": ({"depth": 1}, {"norm": False, "activation": "silu"}, {"n_axes": 2, "log_distance": True}),
    "fire": ({"width": 32, "init_c": 0.5},),
    "fope": ({"n_kv_heads": 2, "head_dim": 10, "original_max_len": 40},),
    "gaussian_fourier": ({"d_model": 6},),
    "graphormer": ({"distances": graphs(66)}, {"distances": graphs(1)[0]}, {"max_distance": 63}),
    "hierarchical": (
        {"axes": ("sinusoidal",)},
        {"axes": ("binary", "sinusoidal", "sine")},
        {"axes": ("tape", "sinusoidal")},
    ),
    "learnable_fourier": ({"d_model": 33}, {"n_axes": 3, "d_model": 7}),
    "learned": ({"max_len": 70}, {"max_len": 90, "offset": 3}),
    "learned_2d": ({"height": 64, "width": 70}, {"height": 70, "width": 64, "n_prefix": 3}),
    "liere": ({"head_dim": 12, "n_axes": 2, "block": 4}, {"head_dim": 8, "n_axes": 1, "block": 2}),
    "longrope": ({"attention_factor": 1.1, "length": 10000},),
    "mrope": ({"trainable": True}, {"sections": (11, 11, 10), "layout": "interleaved", "trainable": True}),
    "nerf_fourier": ({"d_model": 18}, {"d_model": 64, "extent": 300.0}, {"n_axes": 2, "d_model": 27}),
    "normalised": tuple({"over": "last", "length": n} for n in (1, 2, 3)),
    "relative_bias": ({"max_distance": 5}, {"max_distance": 1}),
    "sandwich": ({"width": 2},),
    "self_extend": ({"window": 7, "group": 5},),
    "shaw": ({"max_distance": 3, "max_ahead": 7}, {"max_distance": 1}),
    "sine": ({"d_model": 2, "spectrum": "geometric"},),
    "sinusoidal": ({"d_model": 33}, {"d_model": 2, "order": "concatenated", "exponent": "tensor2tensor"}),
    "sinusoidal_nd": ({"n_axes": 1}, {"n_axes": 2, "d_model": 34}),
    "swin": ({"window": (64, 66)}, {"window": (70, 64)}),
    "swin_v2": ({"window": (2, 3)}, {"window": (1, 9)}, {"window": (9, 1), "pretrained_window": (2, 1)}),
    "t5": (
        {"n_buckets": 8, "max_distance": 64},
        {"n_buckets": 10, "max_distance": 9},
        {"bidirectional": True, "n_buckets": 6, "max_distance": 40},
    ),
    "tupe": ({"max_len": 70},),
}


def _encodings() -> Iterator[tuple[str, Subject]]:
    """Each encoding by its laws, as the registry shows it and in its variants."""
    for name in registry.names():
        card = registry.card(name)
        for i, options in enumerate(({}, *card.variants, *MORE.get(name, ()))):
            made = {**card.example, **options}
            yield f"encoding: {name}, {i}", Subject("encoding", {"encoding": name}, lambda c=card, o=made: c.cls(**o))
