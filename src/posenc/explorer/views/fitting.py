"""Find the views that apply to an encoding from its type, without running it, so that the page starts sooner.

Each function returns whether the measurement behind the view would succeed. For a user class, which may do what ours do
not, it returns None: then only the measurement decides.
"""

from posenc.compose import Compose, PerLayer
from posenc.encoding import Encoding
from posenc.encodings import ComplexOrder, Graphormer, LearnableFourier, PoPE, Time2Vec
from posenc.explorer.cells.lanes import looks_around
from posenc.families import Additive, OwnFrequencies, Rotary, ValueRotary
from posenc.mapped import Wrapper
from posenc.piecewise import Piecewise

_IDENTITY = Encoding.rotate_q, Encoding.rotate_k


def members(encoding: Encoding) -> list[Encoding] | None:
    """Return the members of the first layer's encoding, as `Encoding.leaves` does; None for a user class.

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
    """Return whether a position has numbers of its own: an added vector, or exactly one rotation of pairs."""
    if (found := members(encoding)) is None:
        return None
    if encoding.reads_x:
        return False
    if any(type(one).embed is not Encoding.embed for one in found):
        return True
    if maps_distances(encoding):
        return False
    rotating = [one for one in found if (type(one).rotate_q, type(one).rotate_k) != _IDENTITY]
    rotating = rotating or [one.rope for one in found if isinstance(one, ValueRotary)]
    return sum(isinstance(one, Rotary | PoPE) for one in rotating) == 1


def has_vectors(encoding: Encoding) -> bool | None:
    """Return whether a position has a vector that does not depend on its neighbours."""
    return False if looks_around(encoding) else has_lanes(encoding)


def has_waves(encoding: Encoding) -> bool | None:
    """Return False if nothing has a frequency, or if a network follows the sines; else None."""
    could = hasattr(encoding, "frequencies") or isinstance(encoding, OwnFrequencies | ComplexOrder | Time2Vec)
    could = could or (isinstance(encoding, Additive) and encoding.accepts_real)
    return None if could and not isinstance(encoding, LearnableFourier) else False


def has_profile(encoding: Encoding) -> bool | None:
    """Return whether scores depend on distances: not for a graph's nodes, nor if neighbours matter."""
    if members(encoding) is None:
        return None
    return not (looks_around(encoding) or _is_of_graphs(encoding))


def has_bias(encoding: Encoding) -> bool | None:
    """Return whether a term is added to the scores."""
    if (found := members(encoding)) is None:
        return None
    return not maps_distances(encoding) and any(type(one).bias is not Encoding.bias for one in found)


def has_bias_curve(encoding: Encoding) -> bool | None:
    """Return whether the bias depends on a distance."""
    return False if _is_of_graphs(encoding) else has_bias(encoding)


def maps_distances(encoding: Encoding) -> bool | None:
    """Return whether the encoding maps distances before it rotates."""
    found = members(encoding)
    return None if found is None else any(isinstance(one, Piecewise) for one in found)


def has_distances(encoding: Encoding) -> bool | None:
    """Return whether there are mapped distances, or position vectors with dot products."""
    return maps_distances(encoding) or has_vectors(encoding)


def _is_of_graphs(encoding: Encoding) -> bool:
    return any(isinstance(one, Graphormer) for one in encoding.modules())
