"""All warnings about a file, as `posenc inspect` prints them."""

from contextlib import suppress

from posenc.config import kinds, places, published, unrotated
from posenc.config.model import ConfigWarning, open_model, stacks
from posenc.config.models import Pairing
from posenc.config.reading import Checked, Source, checked
from posenc.config.rotation import rotary

_COMPARED = ("base", "rotary_dim", "rope_type", "factor", "beta_fast", "beta_slow")


def noted(source: Source, *, pairing: Pairing | None = None) -> list[ConfigWarning]:
    """Return the warnings about a configuration, each once.

    Args:
        source: A configuration, as for `read`.
        pairing: The pairing of head dimensions, for an unknown model type.

    Raises:
        ValueError: As for `rotary`.
        TypeError: As for `rotary`.
    """
    source = checked(source)
    found, parts = two_files(source), stacks(source)
    if len(parts) > 1:
        found += places.of_stacks(source.fields, parts)
    for part in parts.values():
        if unrotated.kind(model := open_model(part)) is not None:
            found += places.of_unrotated(model)
            continue
        for kind in filter(kinds.rotates, kinds.distinct(kinds.layers(model, unknown=24))):
            found += rotary(part, kind, pairing=pairing).warnings
    return [one for i, one in enumerate(found) if one not in found[:i]]


def two_files(source: Checked) -> list[ConfigWarning]:
    """Return a warning about a directory whose config.json and params.json rotate differently."""
    if source.path is None or not source.path.is_dir() or not (source.path / published.PARAMS).is_file():
        return []
    with suppress(ValueError, TypeError, OSError):
        other = checked(source.path / published.PARAMS)
        mine, theirs = _rotations(source), _rotations(other)
        if open_model(other).native and mine and theirs and mine != theirs:
            text = f"{published.PARAMS} next to config.json has other rotations; config.json is read."
            meanings = (("config.json", f"{mine}"), (published.PARAMS, f"{theirs}"))
            fix = "Correct the file that is wrong, or remove it."
            return [ConfigWarning("two_files", published.PARAMS, text, None, "those of config.json", meanings, fix)]
    return []


def _rotations(source: Checked) -> str:
    """Return the rotations of a file in one line."""
    order = kinds.distinct(kinds.layers(open_model(source), unknown=24))
    found = (rotary(source, kind, pairing="half") for kind in filter(kinds.rotates, order))
    rows = {
        ", ".join(
            f"{key} {value}" for key in _COMPARED if (value := {**one.parameters, **vars(one)}.get(key)) is not None
        )
        for one in found
    }
    return "; ".join(sorted(rows))
