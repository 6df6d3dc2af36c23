"""Checks in a process of their own: code that hangs, dies, prints or takes all memory becomes a finding."""

from posenc.verify.child.process import MARK, MEMORY_LIMIT, TIME_LIMIT, Outcome, outcome_of, run

__all__ = ["MARK", "MEMORY_LIMIT", "TIME_LIMIT", "Outcome", "outcome_of", "run"]
