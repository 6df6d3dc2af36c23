"""The closed list of exceptions: (class, law) and the reason. Anything else that fails, fails."""

from posenc.encoding import Encoding
from posenc.encodings.cpvt import CPVT
from posenc.encodings.fox import FoX
from posenc.encodings.retnet import RetNet
from posenc.encodings.selective_rope import SelectiveRoPE
from posenc.encodings.xpos import XPos

_NEIGHBOURS = "a convolution sees the neighbours in the image, "
EXCEPTIONS: dict[tuple[type[Encoding], str], str] = {
    (CPVT, "cache"): _NEIGHBOURS + "so a token changes when a later one arrives",
    (CPVT, "packing"): _NEIGHBOURS + "and two images in one row stand in the same places; give each a row of the batch",
    (CPVT, "left padding"): (
        _NEIGHBOURS
        + "and padding at position 0 stands where a token does; give it a negative row, as a test of its own shows"
    ),
    (FoX, "permutation"): (
        "what tokens forget is summed along the sequence, in whose order causal masks are read, too; positions are not "
        "looked at, as a test of its own shows"
    ),
    (RetNet, "far positions"): (
        "sizes are powers of the position, so float32 ends 2,600 positions from the centre; "
        "the law holds at a centre among the far positions, which a test of its own shows"
    ),
    (SelectiveRoPE, "permutation"): (
        "angles are summed along the sequence, in whose order causal masks are read, too; positions only show where "
        "a text begins, as a test of its own shows"
    ),
    (SelectiveRoPE, "left padding"): (
        "a convolution sees the three tokens before, so padding within a text parts what follows from what came "
        "before; padding on the left changes nothing, as a test of its own shows"
    ),
    (XPos, "far positions"): (
        "lane sizes are powers of the position, so float32 ends 34,000 positions from the centre; "
        "the law holds at a centre of 100,000, which a test of its own shows"
    ),
}


def exemption(encoding: Encoding, law: str) -> str | None:
    """Return why the encoding, or one of its members, need not keep the law, or None."""
    reasons = (EXCEPTIONS.get((type(member), law)) for member in encoding.modules() if isinstance(member, Encoding))
    return next((reason for reason in reasons if reason), None)
