"""Checks in a separate process: code that hangs, crashes, prints or exhausts memory becomes a finding."""

from posenc.verify.child.process import MARK, MEMORY_LIMIT, TIME_LIMIT, Outcome, outcome_of, run

__all__ = ["MARK", "MEMORY_LIMIT", "TIME_LIMIT", "Outcome", "outcome_of", "run"]
