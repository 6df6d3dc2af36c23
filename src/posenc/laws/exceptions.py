"""The complete list of exceptions to the laws: (class, law) and the reason."""

from posenc.encoding import Encoding
from posenc.encodings.cpvt import CPVT
from posenc.encodings.fox import FoX
from posenc.encodings.retnet import RetNet
from posenc.encodings.selective_rope import SelectiveRoPE
from posenc.encodings.xpos import XPos

_NEIGHBOURS = "the convolution reads neighbours in the image, "
EXCEPTIONS: dict[tuple[type[Encoding], str], str] = {
    (CPVT, "cache"): _NEIGHBOURS + "so a later token changes earlier ones",
    (CPVT, "packing"): _NEIGHBOURS
    + "and two images in one row have the same positions; give each image its own row of the batch",
    (CPVT, "left padding"): (
        _NEIGHBOURS
        + "and padding at position 0 has the position of a token; give it a negative row, as a separate test does"
    ),
    (FoX, "permutation"): (
        "forgetting is summed along the sequence, in the order of the causal mask; positions are not used, as a "
        "separate test shows"
    ),
    (RetNet, "far positions"): (
        "its amplitudes are powers of the position, which overflow float32 at 2,600 positions from the centre; "
        "the law holds for a centre near the far positions, as a separate test shows"
    ),
    (SelectiveRoPE, "permutation"): (
        "angles are summed along the sequence, in the order of the causal mask; positions only show where a text "
        "begins, as a separate test shows"
    ),
    (SelectiveRoPE, "left padding"): (
        "the convolution reads the three tokens before, so padding within a text separates what follows from what came "
        "before; padding on the left has no effect, as a separate test shows"
    ),
    (XPos, "far positions"): (
        "its amplitudes are powers of the position, which overflow float32 at 34,000 positions from the centre; "
        "the law holds for a centre of 100,000, as a separate test shows"
    ),
}


def exemption(encoding: Encoding, law: str) -> str | None:
    """Return the reason why the encoding, or one of its members, is exempt from the law; None if none is."""
    reasons = (EXCEPTIONS.get((type(member), law)) for member in encoding.modules() if isinstance(member, Encoding))
    return next((reason for reason in reasons if reason), None)
