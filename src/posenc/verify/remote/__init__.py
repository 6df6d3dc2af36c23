"""Subjects outside Python: a program that answers JSON lines, or a recording of such answers."""

from posenc.verify.remote.calls import Program, subject
from posenc.verify.remote.recording import Recording, write_questions

__all__ = ["Program", "Recording", "subject", "write_questions"]
