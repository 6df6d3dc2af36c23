"""Find the position code of a module by the tensors that it holds, and the line that replaces each."""

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Encoding
from posenc.encodings import ALiBi, Sinusoidal, SinusoidalND
from posenc.verify import conventions
from posenc.verify.families.rotation_calls import REACH
from posenc.verify.identity.cells import of_cells, of_mixed
from posenc.verify.identity.held import NEAR, WIDTH, Held, base_of, functions, repeats, turns
from posenc.verify.identity.identify import Identification, called
from posenc.verify.identity.lines import Code, assumed, call, line_of, unless
from posenc.verify.identity.rules import fit

AXES = "axes_dim axes_dims axes_dims_rope rope_axes_dim rope_dim_list rope_dim"  # of each axis, in diffusion models
NARROW = "head_dim, which no module shows: the rotated width is taken; pass head_dim if heads are wider"


def read(module: nn.Module, head_dim: int | None = None) -> dict[str, Identification]:
    """Return what the tensors of a module are, by path; those that repeat in numbered layers once."""
    found = {path: one for path, part in module.named_modules() if (one := _of_widths(part)) is not None}
    first: dict[str, Held] = {}
    for held in _tensors(module, "", ()):
        path = re.sub(r"(?<![^.])\d+(?![^.])", "*", held.path)
        reader = next((of for name, of in READERS if re.search(name, held.path)), None)
        if reader is None or (path in first and held.same_as(first[path])):
            continue
        if (one := _by(reader, replace(held, width=head_dim))) is not None and (one.line or one.unknown):
            first.setdefault(path, held)
            if path not in found:
                found[path] = one
            elif found[path].line != one.line:
                found[held.path] = one
    return found


def _by(reader: "Reader", held: Held) -> Identification | None:
    """Return what a reader finds; None if a module of the name is another than it knows."""
    with suppress(Exception):  # whatever modules of others hold
        one = reader(held)
        one = Identification("module", "table", line=one) if isinstance(one, str) else one
        if one is not None and "posenc.RoPE(" in (one.line or "") and held.head_dim() is None:
            return replace(one, unknown=(*one.unknown, NARROW))
        return one
    return None


def _tensors(owner: nn.Module, path: str, around: tuple[nn.Module, ...]) -> Iterator[Held]:
    """Yield parameters, buffers and plain tensors; encodings of posenc have been replaced already."""
    plain = {name: value for name, value in vars(owner).items() if isinstance(value, Tensor)}
    for name, tensor in (plain | owner._parameters | owner._buffers).items():
        if tensor is not None and not tensor.is_meta:
            yield Held(path + name, tensor, (owner, *around))
    for name, child in owner._modules.items():
        if child is not None and not isinstance(child, Encoding):
            yield from _tensors(child, f"{path}{name}.", (owner, *around))


def _of_widths(module: nn.Module) -> Identification | None:
    """Read the rotation of a diffusion model, which holds the widths of its axes and no tables."""
    widths = next((vars(module)[name] for name in AXES.split() if name in vars(module)), None)
    base = next((vars(module)[name] for name in ("theta", "rope_theta", "base") if name in vars(module)), None)
    if not isinstance(widths, (list, tuple)) or len(widths) < 2 or not isinstance(base, (int, float)):
        return None
    own = {"widths": tuple(widths), "base": float(base), "pairing": "interleaved"}
    return Identification("module", "table", line=call("AxialRoPE", head_dim=sum(widths), **own))


def of_methods(module: nn.Module, head_dim: int | None) -> Identification | None:
    """Return what a rotation among a module's methods computes, or its forward(q, k) if heads come before tokens."""
    own = [name for name in dir(type(module)) if re.search("rot|rope", name, re.IGNORECASE) and name[0] != "_"]
    methods = [getattr(module, name) for name in own if inspect.isroutine(getattr(type(module), name))]

    def heads_first(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.transpose(1, 2) for x in module(q.transpose(1, 2), k.transpose(1, 2)))

    return _only([*((method, None) for method in methods), (heads_first, "bshd_module")], head_dim)


def _inv_freq(held: Held) -> Identification:
    """Call the module by a convention that fits; if none does, read the buffer."""
    owner, n, layer = held.owners[0], held.table.numel(), held.layer_type
    own = partial(owner.forward, layer_type=layer) if layer else owner
    head_dim, rotations = held.head_dim() or 2 * n, functions(held)
    if isinstance(axes := getattr(owner, "axis", None), Tensor) and axes.shape == held.table.shape:  # timm
        layout = Code(f"old.{held.next_to('axis')}.tolist()")
        line = call("MRoPE", head_dim=2 * n, base=base_of(held.table.double().numpy()), layout=layout)
        return Identification("module", "table", line=line + "  # at positions (0, row, column)")

    def rotated(width: int) -> Identification | None:
        ways = [way for rotate in rotations for way in (_in_place(rotate, width, 2 * n), partial(_each, rotate))]
        return _only([((own, way), None) for way in ways], width)

    found = _only([(own, None)], head_dim) or rotated(head_dim) or (rotated(2 * n) if head_dim != 2 * n else None)
    with suppress(Exception):  # DeepSeek-V2 and Llama 4 compute complex numbers
        if found is None and (table := own(torch.zeros(1), torch.arange(8192)[None])[0]).is_complex():
            found = _only(_with_tables(rotations, table, (table.real, table.imag)), head_dim)
    return found or _ladder(held, held.table, _pairing(owner, n))


def _in_place(rotate: Callable[..., Any], head_dim: int, width: int) -> Callable[..., Any]:
    """Return a rotation that leaves dimensions where they are, for one that moves those of queries and keys alike."""
    start, one = torch.arange(float(head_dim)), torch.ones(1, 1, width)
    with suppress(Exception):
        moved = rotate(start.expand(1, 1, 1, -1), start.expand(1, 1, 1, -1), one, 0 * one)[0].flatten()
        if not moved.equal(start) and moved.sort().values.equal(start):
            return lambda q, k, cos, sin: tuple(x[..., moved.argsort()] for x in rotate(q, k, cos, sin))
    return rotate


def _each(rotate: Callable[..., Tensor], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(q, cos, sin), rotate(k, cos, sin)  # Gemma 4's takes one tensor


def _only(subjects: Iterable[tuple[Any, str | None]], head_dim: int | None) -> Identification | None:
    """Return what subjects compute that are rotations by the convention named, or by one that fits, if they agree."""
    all_found: dict[str | None, Identification] = {}
    for subject, name in subjects:
        with suppress(Exception):  # whatever code of others raises
            fits = [name] if name else conventions.fitting(copy.deepcopy(subject), {"encoding": "rope"})[0]
            if len(fits) == 1 and fits[0] in REACH:
                found = called(copy.deepcopy(subject), fits[0], head_dim)
                if found.kind == "rotation" and (name is None or found.pairing):  # by name, a wrong call mixes pairs
                    all_found.setdefault(found.line, found)
    if len(all_found) < 2:
        return next(iter(all_found.values()), None)
    lines = ", ".join(line or "one without a line" for line in all_found)
    return Identification(
        "module", unknown=(f"which rotation is applied: several in its file fit, and differ ({lines})",)
    )


def _pairing(owner: nn.Module, n: int, shape: tuple[int, ...] = ()) -> str | None:
    """Return how a module repeats each of n numbers in its tables, "other" for positions of a shape; None if not."""
    x, ids = torch.zeros(1, 5, 2 * n), torch.arange(5)
    several = [(x, torch.arange(math.prod(shape)).reshape(shape))] if shape else []
    for args in several or ((x, ids[None]), (ids,), (x, 5), (x,), (5,)):
        with suppress(Exception):
            out = copy.deepcopy(owner)(*args)
            for t in out if isinstance(out, tuple) else (out,):
                row = t.reshape(-1, t.shape[-1])[-1] if isinstance(t, Tensor) else x
                if row.shape == (2 * n,) and row.any() and (named := repeats(row) or ("other" if shape else None)):
                    return named  # zeros are rotated zeros
    return None


def _ladder(held: Held, frequencies: Tensor, pairing: str | None, direction: str | None = None) -> Identification:
    """Return a rotation by its frequencies: one ladder, or one for each axis."""
    freq, n, seen = frequencies.double().numpy(), len(frequencies), turns(held, 2 * len(frequencies))
    direction = direction or (seen[1] if seen[0] == pairing else None)  # a file may hold rotations that it does not use
    shown = {"pairing": unless(pairing or "half", "half")}
    head_dim, name = held.head_dim() or 2 * n, type(held.owners[0]).__name__
    runs = np.split(freq, np.flatnonzero(np.diff(freq) > 0) + 1)
    if len(runs) > 1 or (head_dim == 4 * n and re.search("vision|vit|2d|axial", name, re.IGNORECASE)):
        base = base_of(runs[0])
        widths = None if len({len(run) for run in runs}) == 1 else tuple(2 * len(run) for run in runs)
        width = 2 * n if len(runs) > 1 else head_dim
        own: dict[str, Any] = {"n_axes": None if widths or len(runs) < 3 else len(runs), "widths": widths, "base": base}
        if "dinov3" in name.lower():
            own = {"inv_freq": Code(f"lambda k: 2 * math.pi * {base!r} ** (-4 * k / {head_dim})")}
        if len(runs) < 2 and _pairing(held.owners[0], 2 * n, (1, 5, 2)) == "other":  # Gemma 4
            return Identification("module", unknown=("the pairing: each axis pairs its own dimensions",))
        line = call("AxialRoPE", head_dim=width, **own, **shown)
        return assumed(Identification("module", "table", line=line), (pairing, direction))
    moving = int((freq > 0).sum())  # Gemma 4's slow pairs do not rotate
    rule = fit(freq[:moving], 1e-9, 2 * n)
    base = rule.base if rule.base is not None else base_of(freq)
    kind = rule.kind if rule.base is not None or base is None else "none"
    found = Identification(
        *("module", "rotation", head_dim, pairing or "half", 2 * moving, 0, base, kind),
        parameters=rule.parameters,
        gain=1.0,
        direction=direction or "counterclockwise",
        first_position=0.0,
        measured={"frequencies": freq[:moving].tolist(), "partner": n if pairing != "interleaved" else 1},
        unknown=rule.unknown if kind != "none" else (),
    )
    return assumed(replace(found, line=line_of(found)), (pairing, direction))


def _of_table(held: Held) -> Identification | str | None:
    """Read frequencies from the row of position 1 of a table of complex numbers, or of cosines next to sines."""
    name, table, owner = held.name, held.table, held.owners[0]
    if isinstance(held.tensor, nn.Parameter) and held.tensor.ndim in (3, 4) and len(held.tensor) == 2:
        return of_mixed(held)
    sines = getattr(owner, name.replace("cos", "sin"), None) if "cos" in name else None
    if table.ndim == 1 and name == "freqs" and not table.is_complex():  # rotary-embedding-torch
        return _inv_freq(held)
    parts = (table.real, table.imag) if table.is_complex() else (table, sines)
    if table.ndim != 2 or len(table) < 2 or not isinstance(sines := parts[1], Tensor):
        return None
    parts = parts[0], sines.squeeze()
    if (found := of_cells(held, *parts[::-1])) is not None:
        return found
    angles = torch.atan2(parts[1][1].float(), parts[0][1].float())
    pairing = "interleaved" if table.is_complex() else repeats(angles)
    if pairing and not table.is_complex():
        angles = angles[: len(angles) // 2] if pairing == "half" else angles[::2]
    rotated = _only(_with_tables(functions(held), table, parts), held.head_dim() or 2 * len(angles))
    if rotated is not None and (rotated.kind == "unknown" or (rotated.line and rotated.base is not None)):
        return rotated
    direction = "counterclockwise" if table.is_complex() else None
    direction, pairing = (rotated.direction, rotated.pairing) if rotated is not None else (direction, pairing)
    return _ladder(held, angles, pairing, direction) if bool((angles > 0).all()) else None


def _with_tables(rotations: list[Any], table: Tensor, parts: tuple[Tensor, Tensor]) -> Iterator[tuple[Any, str]]:
    """Yield rotations with tables of cosines and sines, or of complex numbers, by the ways in which they are called."""

    def by_heads(rotate: Callable[..., Tensor], x: Tensor, pos: Tensor) -> Tensor:
        return rotate(x, *(part[pos.long()].to(x.dtype) for part in parts))

    def by_tokens(rotate: Callable[..., Tensor], x: Tensor, pos: Tensor) -> Tensor:
        rows = (part[pos.long()].to(x.dtype)[None, :, None] for part in parts)
        return rotate(x.transpose(1, 2), *rows).transpose(1, 2)

    def batched(rotate: Callable[..., Any], q: Tensor, k: Tensor, rows: Tensor) -> Any:
        return rotate(q, k, rows[None])

    def batched_heads(rotate: Callable[..., Any], q: Tensor, k: Tensor, rows: Tensor) -> Any:
        return tuple(x.transpose(1, 2) for x in rotate(q.transpose(1, 2), k.transpose(1, 2), rows[None]))

    for rotate in rotations:
        if table.is_complex():
            for call_ in (rotate, partial(batched, rotate), partial(batched_heads, rotate)):
                yield ((lambda end: table[:end]), call_), "meta_complex"
        else:
            yield partial(by_heads, rotate), "rope_fn"
            yield partial(by_tokens, rotate), "rope_fn"


def _periods(held: Held) -> str:
    periods, n = held.table.double(), held.table.numel()
    base = float(periods[-1]) ** (n / (n - 1)) if n > 1 else 0.0
    formula = torch.allclose(periods, round(base) ** (torch.arange(n) / n).double(), rtol=1e-2) and base > 1
    own = (
        f"lambda k: 2 * math.pi * {round(base):.1f} ** (-4 * k / {4 * n})"
        if formula
        else f"2 * math.pi / old.{held.path}"
    )
    kept = {name: getattr(held.owners[0], name, None) for name in ("normalize_coords", "grid_indexing", "rotate_half")}
    pairing = "interleaved" if kept["rotate_half"] is False else None
    sides = {"max": ", sides='longer'", "min": ", sides='shorter'"}.get(str(kept["normalize_coords"]), "")
    words = f"positions.unit_grid(rows, columns{sides})" + ".flip(-1)" * (kept["grid_indexing"] == "xy")
    return call("AxialRoPE", head_dim=4 * n, inv_freq=Code(own), pairing=pairing) + f"  # at {words}"


def _window(given: Any, rows: int, more: int = 0) -> tuple[int, int] | None:
    """Return the window whose differences fill a table: the given one, or a square."""
    side = (math.isqrt(rows - more) + 1) // 2 if rows > more else 0
    for window in (given if isinstance(given, (tuple, list)) else (given, given), (side, side)):
        if all(isinstance(w, int) for w in window) and math.prod(2 * w - 1 for w in window) + more == rows:
            return int(window[0]), int(window[1])
    return None


def _swin(held: Held) -> str | None:
    rows, heads = held.tensor.shape
    for name, more in (("Swin", 0), ("BEiT", 3)):
        if window := _window(held.fact("window_size"), rows, more):
            return call(name, n_heads=heads, window=window)
    return None


def _swin_v2(held: Held) -> str:
    last, window = [*held.owners[1].children()][-1], held.fact("window_size")
    pair = tuple(window) if isinstance(window, (tuple, list)) else (window, window)
    trained = tuple(held.fact("pretrained_window_size") or (0, 0))
    if (table := getattr(held.owners[2], "relative_coords_table", None)) is not None:  # far = log8(8 far / trained + 1)
        far = 8 ** table.detach().double().reshape(-1, 2).amax(0) - 1
        trained = tuple(round(8 * (side - 1) / float(x)) + 1 for side, x in zip(pair, far, strict=True))
    options = {"pretrained_window": trained if any(trained) and trained != pair else None}
    width = unless(held.tensor.shape[0], 512)
    return call("SwinV2", n_heads=last.out_features, window=pair, **options, width=width) + "  # attend(scale=1.0)"


def _decomposed(held: Held) -> str:
    tables: tuple[Any, ...] = held.tensor, held.owners[0].rel_pos_w
    return call("Decomposed2D", head_dim=held.tensor.shape[1], size=tuple((len(t) + 1) // 2 for t in tables))


def _t5(held: Held) -> str:
    (n_buckets, heads), causal = held.tensor.shape, held.fact("is_decoder causal")
    bidirectional = held.fact("bidirectional") if causal is None else not causal
    own = {"n_buckets": unless(n_buckets, 32), "bidirectional": bidirectional or None}
    own["max_distance"] = unless(held.fact("relative_attention_max_distance max_distance max_dist") or 128, 128)
    times = (
        held.owners[1].scale
        if len(held.owners) > 1 and isinstance(getattr(held.owners[1], "scale", None), float)
        else None
    )
    return call("T5", n_heads=heads, **own, score_scale=1.0 if times is None else None) + (
        f"  # with weight * {times:.6g}" if times not in (None, 1.0) else ""
    )


def _transformer_xl(held: Held) -> str:
    (heads, head_dim), linear = held.tensor.shape, getattr(held.owners[0], "linear_pos", None)
    own = {"d_model": getattr(linear, "in_features", heads * head_dim), "n_heads": heads, "head_dim": head_dim}
    return call("TransformerXL", **own, order="alternating" if linear is not None else None)


def _alibi(held: Held) -> str | None:
    slopes, own = held.table.flatten().abs(), ".flatten()"
    if not held.name.endswith("slopes"):  # (heads, 1 or queries, keys): the bias of the last query, which sees all keys
        rows, own = held.tensor.detach().double().flatten(0, -3)[:, -1], ".flatten(0, -3)[:, -1].diff()[:, 0]"
        index = torch.arange(rows.shape[1])
        slopes = (rows[:, -1] - rows[:, 0]) / index[-1]
        if not (slopes > 0).all() or not torch.allclose(rows - rows[:, :1], slopes[:, None] * index, rtol=2e-2):
            return None
    near = 1e-3 if held.tensor.dtype in (torch.float32, torch.float64) else 1e-2
    for rule in ("authors", "geometric"):
        formula = ALiBi(n_heads=len(slopes), slopes=rule).over(torch.ones(1))[:, 0].abs()
        if torch.allclose(formula, slopes.float(), rtol=near):
            return call("ALiBi", n_heads=len(slopes), slopes=unless(rule, "authors"))
    return call("ALiBi", n_heads=len(slopes), slopes=Code(f"old.{held.path}{own}.tolist()"))


def _added(held: Held) -> Identification | str | None:
    """Read a table that is added to embeddings: sines, an image's cells, or text."""
    table, owner, fixed = held.table, held.owners[0], not isinstance(held.tensor, nn.Parameter)
    if held.path == "weight" and not isinstance(owner, nn.Embedding):
        return None
    if table.ndim == 3 and held.tensor.ndim == 4 and held.tensor.shape[0] == 1:
        height, width, d_model = table.shape
        return call("Learned2D", d_model=d_model, height=height, width=width)
    if table.ndim != 2 or not table.is_floating_point():
        return None
    rows, d_model = table.shape
    if rows <= 3 and ("gaussian" in held.path or (fixed and hasattr(owner, "scale"))):  # transformers renamed SAM's
        return call("GaussianFourier", d_model=2 * d_model, n_axes=rows, extent=1.0, matrix=Code(f"old.{held.path}"))
    text, prefix = _contents(held, rows)
    if sines := _sines(table, prefix):
        head_dim = held.head_dim() or d_model
        if "attention" in type(owner).__name__.lower() or d_model == head_dim != (held.fact(WIDTH) or d_model):
            own = {"rotary_dim": unless(d_model, head_dim), "pairing": "interleaved"}  # GPT-J, CodeGen and RoFormer
            found = Identification("module", "table", line=call("RoPE", head_dim=head_dim, **own))
            return assumed(found, turns(held, d_model), "interleaved")
        return sines
    if fixed:  # those of a rotation, or of another kind, such as a Conformer's sines
        return of_cells(held, *table.tensor_split(2, 1))
    if text and prefix is not None:
        return Identification("module", unknown=("whether its rows are cells of an image or places of a text",))
    if prefix is not None:
        side = math.isqrt(rows - prefix)
        return call("Learned2D", d_model=d_model, height=side, width=side, n_prefix=unless(prefix, 0))
    padding = getattr(owner, "padding_idx", None)  # RoBERTa counts from the row after it
    offset = getattr(owner, "offset", 0 if padding is None else padding + 1)
    offset = offset if isinstance(offset, int) else 0
    return call("Learned", d_model=d_model, max_len=rows - offset, offset=unless(offset, 0))


def _contents(held: Held, rows: int) -> tuple[bool, int | None]:
    """Return whether the nearest module that shows it has text, and the rows before the cells of an image, if any."""
    for owner, name in zip(held.owners, [*held.path.split(".")[-2::-1], ""], strict=True):
        own = " ".join((name, *owner._modules, *owner._parameters, type(owner).__name__)).lower()
        text = re.search("(?<!con)text|word|tokens?_(emb|type)|embed_tokens|tok_emb|wte", own) is not None
        if re.search("patch|cls|class_token|vit|vision|image", own):
            more = (2, 5, 3, 4) if re.search("cls|class|regis", " ".join(owner._parameters)) else ()
            fits = (p for p in (1, 0, *more) if rows > p and math.isqrt(rows - p) ** 2 == rows - p)
            prefix = next(fits, None)
            return text and not (more and prefix), prefix  # a class token is one of an image's
        if text:
            return text, None
    return False, None


def _sines(table: Tensor, prefix: int | None) -> str | None:
    """Return the formula that gives a table, along the text or over the cells of a square image."""
    (rows, d_model), side = table.shape, math.isqrt(len(table) - (prefix or 0))
    grid, few = positions.grid(side, side), torch.tensor([*range(min(rows, 64)), rows - 1])
    for order, exponent in ((o, e) for o in ("alternating", "concatenated") for e in ("paper", "tensor2tensor")):
        own = {"d_model": d_model, "order": unless(order, "alternating"), "exponent": unless(exponent, "paper")}
        given = {name: value for name, value in own.items() if value is not None}
        if torch.allclose(Sinusoidal(**given).vectors(few).to(table), table[few], atol=NEAR):
            return call("Sinusoidal", **own)
        for where, pos in (("", grid), (".flip(-1)", grid.flip(-1))) if prefix is not None and d_model % 4 == 0 else ():
            if torch.allclose(SinusoidalND(**given).vectors(pos).to(table), table[prefix:], atol=NEAR):
                return call("SinusoidalND", **own) + f"  # at positions.grid({side}, {side}){where}"
    return None


Reader = Callable[[Held], Identification | str | None]
READERS: tuple[tuple[str, Reader], ...] = (
    (r"((?<!\w)|(?<=_attention_))inv_freq$", _inv_freq),
    (r"(?<!\w)periods$", _periods),
    (r"(?<!\w)(freqs(_cis|_cos|_complex)?|cos(_cached?)?)$", _of_table),
    (r"relative_position_bias_table$", _swin),
    (r"(cpb_mlp|continuous_position_bias_mlp)\.0\.weight$", _swin_v2),
    (r"(?<!\w)pos_embed_sin$", lambda held: of_cells(held, held.table, held.owners[0].get_buffer("pos_embed_cos"))),
    (r"rel_pos_h$", _decomposed),
    (r"(relative_attention_bias|pos_embedding\.embedding)\.weight$", _t5),
    (r"pos_bias_u$", _transformer_xl),
    (r"(?<!\w)((alibi_)?slopes|alibi(_bias|_mask)?|attn_bias)$", _alibi),
    (
        r"^weight$|(?<![^._])(pe|wpe|embed_positions|gaussian_matrix|pos(ition(al)?)?_(emb|embed|embeddings?|encodings?))"
        r"(\.emb)?(\.weight)?$",
        _added,
    ),
)
