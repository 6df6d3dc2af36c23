"""Which pictures an encoding has, told from what it is made of: nothing is run, so that the page is there sooner.

Each function returns True or False as the measurement behind the picture would answer, or None where only asking it
tells: a class of one's own may do what ours do not.
"""

from posenc.compose import Compose, PerLayer
from posenc.encoding import Encoding
from posenc.encodings import ComplexOrder, Graphormer, LearnableFourier, PoPE, Time2Vec
from posenc.explorer.cells.lanes import looks_around
from posenc.families import Additive, OwnFrequencies, Rotary, ValueRotary
from posenc.mapped import Wrapper
from posenc.piecewise import Piecewise

_STILL = Encoding.rotate_q, Encoding.rotate_k


def members(encoding: Encoding) -> list[Encoding] | None:
    """Return what the first layer's encoding is made of, as `Encoding.leaves` does; None of a class of one's own.

    >>> from posenc import ALiBi, RoPE
    >>> [one.name for one in members(Compose(RoPE(head_dim=4), ALiBi(n_heads=2)))]
    ['RoPE', 'ALiBi']
    """
    if not type(encoding).__module__.startswith("posenc."):
        return None
    if isinstance(encoding, PerLayer):
        return members(encoding.distinct[encoding.index[0]])  # type: ignore[arg-type]
    if isinstance(encoding, Wrapper):
        return members(encoding.encoding)
    if not isinstance(encoding, Compose):
        return [encoding]
    inside = [members(one) for one in encoding.encodings]  # type: ignore[arg-type]
    return None if None in inside else [one for found in inside for one in found or []]


def has_lanes(encoding: Encoding) -> bool | None:
    """Say whether a position has numbers of its own: vectors that are added, or one turn of pairs."""
    if (found := members(encoding)) is None:
        return None
    if encoding.reads_x:
        return False
    if any(type(one).embed is not Encoding.embed for one in found):
        return True
    if maps_distances(encoding):
        return False
    turning = [one for one in found if (type(one).rotate_q, type(one).rotate_k) != _STILL]
    turning = turning or [one.rope for one in found if isinstance(one, ValueRotary)]
    return sum(isinstance(one, Rotary | PoPE) for one in turning) == 1


def has_vectors(encoding: Encoding) -> bool | None:
    """Say the same, where those beside a position may not count."""
    return False if looks_around(encoding) else has_lanes(encoding)


def has_waves(encoding: Encoding) -> bool | None:
    """Say that there are no wavelengths where nothing could have any, or where a network stands behind the sines."""
    could = hasattr(encoding, "frequencies") or isinstance(encoding, OwnFrequencies | ComplexOrder | Time2Vec)
    could = could or (isinstance(encoding, Additive) and encoding.accepts_real)
    return None if could and not isinstance(encoding, LearnableFourier) else False


def has_profile(encoding: Encoding) -> bool | None:
    """Say whether scores have distances: all but those of a graph's nodes, and of what looks around."""
    if members(encoding) is None:
        return None
    return not (looks_around(encoding) or _is_of_graphs(encoding))


def has_bias(encoding: Encoding) -> bool | None:
    """Say whether something joins the scores, and does not stand in the place of products."""
    if (found := members(encoding)) is None:
        return None
    return not maps_distances(encoding) and any(type(one).bias is not Encoding.bias for one in found)


def has_bias_curve(encoding: Encoding) -> bool | None:
    """Say whether that has distances."""
    return False if _is_of_graphs(encoding) else has_bias(encoding)


def maps_distances(encoding: Encoding) -> bool | None:
    """Say whether scores see other distances than those that there are."""
    found = members(encoding)
    return None if found is None else any(isinstance(one, Piecewise) for one in found)


def has_distances(encoding: Encoding) -> bool | None:
    """Say whether there are mapped distances, or products of the vectors of positions."""
    return maps_distances(encoding) or has_vectors(encoding)


def _is_of_graphs(encoding: Encoding) -> bool:
    return any(isinstance(one, Graphormer) for one in encoding.modules())
