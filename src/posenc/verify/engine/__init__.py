"""One engine for every convention: ask cases, predict what each fault would give, name the one that explains them."""

from posenc.verify.engine.family import Family
from posenc.verify.engine.judge import judge
from posenc.verify.engine.records import CannotTellError, Case, Choice, Fault, Kind, Seen, Verdict

__all__ = ["CannotTellError", "Case", "Choice", "Family", "Fault", "Kind", "Seen", "Verdict", "judge"]
