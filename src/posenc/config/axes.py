"""The division of pairs of head dimensions among the axes of a position (M-RoPE): time, row and column."""

from collections.abc import Sequence
from typing import Any

from posenc.config import values
from posenc.config.model import WHO, Model
from posenc.config.models import SECTIONS, TYPES, Layout
from posenc.config.widths import Widths, implied


def axes_of_pairs(sections: Sequence[int], layout: str, n_pairs: int) -> list[int]:
    """Return the axis that each pair reads; interleaved layouts cannot realise all sections.

    >>> axes_of_pairs((4, 2, 2), "interleaved", 8), axes_of_pairs((2, 3, 3), "time_last", 8)
    ([0, 1, 2, 0, 1, 2, 0, 0], [1, 2, 1, 2, 1, 2, 0, 0])
    """
    n = len(sections)
    if layout == "blocks":
        return [axis for axis, size in enumerate(sections) for _ in range(size)]
    if layout == "time_last":
        return [1 + k % (n - 1) if k < sum(sections[1:]) else 0 for k in range(n_pairs)]
    return [k % n if k < n * sections[k % n] else 0 for k in range(n_pairs)]


def dealt(sections: Sequence[int], layout: str, n_pairs: int) -> tuple[int, ...]:
    """Return the number of pairs of each axis in fact, which differs from sections that a layout cannot realise.

    >>> dealt((16, 24, 24), "interleaved", 64)
    (22, 21, 21)
    """
    of_pairs = axes_of_pairs(sections, layout, n_pairs)
    return tuple(of_pairs.count(axis) for axis in range(len(sections)))


def has_axes(model: Model, own: dict[str, Any]) -> bool:
    """Return whether positions of a model may have several axes, and so may not count tokens."""
    return model.name in SECTIONS or (model.name not in TYPES and own.get("mrope_section") is not None)


def axes(model: Model, own: dict[str, Any], width: Widths) -> tuple[tuple[int, ...], Layout] | tuple[None, None]:
    """Return the pairs of each axis, time first, and their layout; (None, None) if positions have one axis.

    Args:
        model: The model, which collects warnings.
        own: The parameters of the kind of layer.
        width: The head dimensions that rotate.

    Raises:
        TypeError: mrope_section is not a list of integers.
        ValueError: It does not add up to the pairs that rotate.
    """
    n_pairs, listed = width.rotary_dim // 2, own.get("mrope_section")
    if model.name in TYPES and model.name not in SECTIONS:
        if listed is not None:
            text = f"{model.name} in transformers does not read mrope_section: all pairs read one position."
            fix = "Remove it, or write a model_type that reads it."
            _warn(model, "sections_unread", text, listed, "the key left out", fix)
        return None, None
    usual: Layout = "interleaved" if own.get("mrope_interleaved") is True else "blocks"
    layout, default = SECTIONS.get(model.name, (usual, None))
    sizes = default if listed is None else _checked(model, listed, width, None if default is None else len(default))
    if sizes is None:
        return None, None
    if layout == "interleaved":
        kept = dealt(sizes, layout, n_pairs)
        if listed is not None and kept != sizes:
            text = (
                f"mrope_section {list(sizes)} cannot be realised in the interleaved layout: {model.name or 'the code'} "
                f"gives the axes {list(kept)} pairs."
            )
            _warn(model, "sections_misfit", text, listed, f"{list(kept)}", f"Write {list(kept)}.")
        return kept, layout
    if sum(sizes) != n_pairs:
        text = f"mrope_section is missing, and the default {sizes} of {model.name} does not add up to {n_pairs} pairs."
        _warn(model, "sections_misfit", text, None, f"numbers that add up to {n_pairs}", "Add mrope_section.")
        return None, None
    if layout != "time_last":
        return sizes, layout
    sizes = sizes[-1:] + sizes[:-1]  # files of this layout write time last
    if (kept := dealt(sizes, layout, n_pairs)) != sizes:
        text = f"mrope_section {listed} cannot be realised: rows and columns alternate, so their numbers must be equal."
        allowed = [*kept[1:], kept[0]]
        _warn(model, "sections_misfit", text, listed, f"{allowed}", f"Write {allowed}.")
    return kept, layout


def _warn(model: Model, code: str, message: str, value: Any, allowed: str, fix: str) -> None:
    read = "the numbers of pairs that read time, row and column"
    one = "all pairs read one position, as for text"
    meanings = (("mrope_section", read), ("left out", one))
    model.warn(code, "mrope_section", message, value=value, allowed=allowed, meanings=meanings, fix=fix)


def _checked(model: Model, listed: object, width: Widths, n_axes: int | None) -> tuple[int, ...]:
    """Return a file's mrope_section, the pairs of each axis; `n_axes` is that of the type, if known."""
    n_pairs, entries = width.rotary_dim // 2, values.sequence(WHO, "mrope_section", listed, longest=64)
    sizes = tuple(values.integer(WHO, "mrope_section's entry", size, low=0, high=4096) for size in entries)
    if n_axes is not None and len(sizes) != n_axes:
        text = f"{n_axes} numbers, one for each axis"
        message = f"{WHO}: mrope_section must have {text}; got {len(sizes)}. Correct it."
        raise values.out_of_range(message, "mrope_section", entries, text)
    if sum(sizes) != n_pairs:
        doubled = sum(sizes) == 2 * n_pairs
        fits = None if doubled else implied(model, width, sum(sizes))
        hint = "Make the numbers add up to the pairs that rotate" + (f", or write {fits}." if fits else ".")
        raise values.out_of_range(
            f"{WHO}: mrope_section must add up to the {n_pairs} pairs that rotate; got {sum(sizes)}. "
            f"{'Correct it.' if not fits else hint}",
            "mrope_section",
            entries,
            f"whole numbers that add up to {n_pairs}",
            meanings=(
                ("pairs", f"of time, height and width, {n_pairs} together"),
                (
                    "head dimensions",
                    f"twice as many, {2 * n_pairs} together{', as here' if doubled else ''}: not the unit of this key",
                ),
            ),
            fix="Halve each number." if doubled else hint,
        )
    return sizes
