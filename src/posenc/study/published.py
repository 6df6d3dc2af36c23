"""Published outcomes as data: a paper's claim, and the number of a study that tests it."""

from __future__ import annotations

from dataclasses import dataclass

from .measures import BREAK, FLAT, SOLVED, TEXT

NEAR = 0.10  # bits per byte: a loss at most this much above another's counts as about as good
EVERY = "*"  # every sufficiently trained encoding, or every other one
EACH = "each"  # a claim for each encoding that was run with and without a variant


@dataclass(frozen=True)
class Rule:
    """The number of each seed (see `Measures.by_seed`) that must lie below, or `above`, a limit."""

    at: str
    limit: float = 0.0
    above: bool = False


STAYS, BREAKS = Rule("worst", FLAT), Rule("change", BREAK, above=True)
AHEAD, NEAR_IT, LOSES_LESS = Rule("trained"), Rule("longest", NEAR), Rule("change")
LEARNS_MORE, SOLVES_MORE, FAILS = Rule("trained", above=True), Rule("longest", above=True), Rule("longest", SOLVED)


@dataclass(frozen=True)
class Published:
    """One published outcome.

    Args:
        claim: The claim in words.
        source: Authors and year.
        arxiv: The paper's arXiv number.
        who: An encoding, EVERY, or EACH.
        rule: Applies to the number of `who`, minus that of the same seed of each of `than`.
        task: A label; for EACH the suffix of a label, compared with the same encoding on the label without the suffix.
        than: Encodings to compare with, on the label `plain`.
        plain: By default `task` with plain positions.
    """

    claim: str
    source: str
    arxiv: str
    who: str
    rule: Rule
    task: str = TEXT
    than: tuple[str, ...] = ()
    plain: str = ""


_PRESS = ("Press et al. 2021", "2108.12409")
_SU = "2104.09864"
_KAZEMNEJAD = ("Kazemnejad et al. 2023", "2305.19466")
_FAR = "beyond the trained length"
_ABACUS, _COUPLING = "addition:all_reversed@abacus", "addition:reversed@coupling"

PUBLISHED = (
    Published("ALiBi stays about flat past the trained length", *_PRESS, "alibi", STAYS),
    Published("KERPLE extrapolates about as well as ALiBi, or better", "Chi et al. 2022", "2205.09921",
              "kerple", NEAR_IT, than=("alibi",)),
    Published("Transformer-XL stays about flat past the trained length", "Dai et al. 2019", "1901.02860",
              "transformer_xl", STAYS),
    Published("Sinusoidal breaks past the trained length", *_PRESS, "sinusoidal", BREAKS),
    Published("Learned positions break past the trained length: those rows were never trained",
              "follows from the method; Vaswani et al. 2017 chose sinusoids for this reason", "1706.03762",
              "learned", BREAKS),
    Published("RoPE is ahead of absolute encodings inside the trained length", "Su et al. 2021", _SU,
              "rope", AHEAD, than=("sinusoidal", "learned")),
    Published("RoPE is the best of all inside the trained length",
              "common claim; Su et al. 2021 compare only absolute encodings", _SU, "rope", AHEAD, than=(EVERY,)),
    Published(f"RoPE is much worse {_FAR}", "Press et al. 2021; Chen et al. 2023", "2306.15595", "rope", BREAKS),
    Published(f"xPos loses less than RoPE {_FAR}", "Sun et al. 2022", "2212.10554",
              "xpos", LOSES_LESS, than=("rope",)),
    Published(f"The T5 bias loses less than sinusoidal and RoPE {_FAR}", *_PRESS,
              "t5", LOSES_LESS, than=("sinusoidal", "rope")),
    Published(f"NoPE copies {_FAR} better than RoPE and sinusoidal", *_KAZEMNEJAD,
              "nope", SOLVES_MORE, "copy", ("rope", "sinusoidal")),
    Published(f"The T5 bias copies {_FAR} better than RoPE and sinusoidal", *_KAZEMNEJAD,
              "t5", SOLVES_MORE, "copy", ("rope", "sinusoidal")),
    Published(f"NoPE copies {_FAR} better than ALiBi", *_KAZEMNEJAD, "nope", SOLVES_MORE, "copy", ("alibi",)),
    Published(f"No encoding solves parity {_FAR}", *_KAZEMNEJAD, EVERY, FAILS, "parity"),
    Published(f"Randomised positions help {_FAR}", "Ruoss et al. 2023", "2305.16843",
              EACH, SOLVES_MORE, "@randomised"),
    Published(f"Index hints help addition {_FAR}", "Zhou et al. 2023", "2310.16028", EACH, SOLVES_MORE, ":hints"),
    Published(f"Abacus positions add {_FAR} better than NoPE and RoPE", "McLeish et al. 2024", "2405.17399",
              "learned", SOLVES_MORE, _ABACUS, ("nope", "rope")),
    Published(f"Abacus positions add {_FAR} better than FIRE", "McLeish et al. 2024", "2405.17399",
              "learned", SOLVES_MORE, _ABACUS, ("fire",)),
    Published(f"Position coupling adds {_FAR} better than NoPE and plain learned positions", "Cho et al. 2024",
              "2405.20671", "learned", SOLVES_MORE, _COUPLING, ("nope", "learned")),
    Published("PoPE learns indirect indexing better than RoPE", "Gopalakrishnan et al. 2025", "2509.10534",
              "pope", LEARNS_MORE, "indirect", ("rope",)),
)  # fmt: skip
