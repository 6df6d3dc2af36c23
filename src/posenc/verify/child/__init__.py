"""Checks in a process of their own: code that hangs, dies, prints or takes all memory becomes a finding."""

from posenc.verify.child.answers import Outcome, as_identified, identified_of, report_of
from posenc.verify.child.process import MARK, MEMORY_LIMIT, TIME_LIMIT, run

__all__ = ["MARK", "MEMORY_LIMIT", "TIME_LIMIT", "Outcome", "as_identified", "identified_of", "report_of", "run"]
