"""The closed list of exceptions: (class, law) and the reason. Anything else that fails, fails."""

from posenc.encoding import Encoding

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("XPos", "far positions"): (
        "lane sizes are powers of the position, so float32 ends 35,000 positions from the centre; "
        "the law holds at a centre of 100,000, which a test of its own shows"
    ),
}


def exemption(encoding: Encoding, law: str) -> str | None:
    """Return why the encoding need not keep the law, or None."""
    return EXCEPTIONS.get((type(encoding).__name__, law))
