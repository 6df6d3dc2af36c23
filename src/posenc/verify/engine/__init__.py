"""One engine for every convention: call a subject, predict the answers of each fault, report the one that fits."""

from posenc.verify.engine.family import Family
from posenc.verify.engine.judge import judge
from posenc.verify.engine.records import CannotTellError, Case, Choice, Fault, Kind, Seen, Verdict

__all__ = ["CannotTellError", "Case", "Choice", "Family", "Fault", "Kind", "Seen", "Verdict", "judge"]
