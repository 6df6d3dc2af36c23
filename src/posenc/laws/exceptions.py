"""The closed list of exceptions: (class, law) and the reason. Anything else that fails, fails."""

from posenc.encoding import Encoding
from posenc.encodings.xpos import XPos

EXCEPTIONS: dict[tuple[type[Encoding], str], str] = {
    (XPos, "far positions"): (
        "lane sizes are powers of the position, so float32 ends 34,000 positions from the centre; "
        "the law holds at a centre of 100,000, which a test of its own shows"
    ),
}


def exemption(encoding: Encoding, law: str) -> str | None:
    """Return why the encoding, or one of its members, need not keep the law, or None."""
    reasons = (EXCEPTIONS.get((type(member), law)) for member in encoding.modules() if isinstance(member, Encoding))
    return next((reason for reason in reasons if reason), None)
