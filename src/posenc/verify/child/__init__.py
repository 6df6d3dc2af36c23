"""Checks in a process of their own: code that hangs, dies, prints or takes all memory becomes a finding."""

from posenc.verify.child.answers import Outcome, outcome_of
from posenc.verify.child.process import MEMORY_LIMIT, TIME_LIMIT, run
from posenc.verify.child.running import MARK

__all__ = ["MARK", "MEMORY_LIMIT", "TIME_LIMIT", "Outcome", "outcome_of", "run"]
