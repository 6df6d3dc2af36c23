"""The child's side of a check: load the subject, find its convention, check it, and answer in JSON.

Whatever the user's code does, except ending the process, ends up in a report.
"""

import contextlib
import dis
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Never

from posenc.verify.child.target import Target, load, spec_of
from posenc.verify.guard import SubjectError
from posenc.verify.identity.identify import of_module
from posenc.verify.report import Report
from posenc.verify.sentences import finding, string

Answers = Callable[[dict[str, Any]], None]
_MACHINERY = {"posenc", "torch", "numpy", "functools", "contextlib", "importlib", "runpy"}


def examine(
    target: Target,
    convention: str | None,
    spec: Mapping[str, Any] | None,
    task: str = "check",
    say: Answers = lambda doing: None,
) -> dict[str, Any]:
    """Check or identify a target in this process.

    Args:
        target: Where the subject is.
        convention: How to call it; None to find out.
        spec: What it should compute; None for the target's own SPEC.
        task: "check", or "identify", which reads only the width from the spec.
        say: Called with the current step and, once known, the convention.

    Returns:
        {"report": its fields}, {"identified": its fields} or {"refused": what was wrong with the request}.
    """
    from posenc import verify
    from posenc.verify import conventions

    known = ""

    def step(doing: str, function: Callable[[], Any], code: str = "") -> Any:
        say({"doing": doing, "convention": known})
        return _users(function, doing, code)

    try:
        make, style, own = step("its import", lambda: load(target), "subject.import_fails")
        asked = spec_of({} if own is None else own) if spec is None else dict(spec)
        if convention is not None or style is not None:
            where = "STYLE" if convention is None else "--convention"
            known = conventions.named(style if convention is None else convention, where)
        try:
            subject = step("build()", make, "subject.build_fails")
        except SubjectError as found:  # a family may know the fault
            raise SubjectError(verify.unbuilt(known, asked, found.cause)) from None
        width = asked.get("head_dim") if type(asked.get("head_dim")) is int else None
        if task == "identify" and not known:
            read = step("the identification", lambda: of_module(subject, width))
            if read is not None:
                return {"identified": plain(read.to_dict())}
        if guessed := not known:
            trial = "a trial call to find its convention"
            fits, tried = step(trial, lambda: conventions.fitting(subject, asked))
            if tried:
                subject = step("build(), the second time,", make, "subject.build_fails")
            known = conventions.only(fits, subject)
        if why := conventions.misfit(subject, known):
            raise SubjectError(finding("subject.kind", why, type=type(subject).__name__))
        if task == "identify":
            seen = step("the identification", lambda: verify.identify(subject, known, head_dim=width))
            return {"identified": plain(seen.to_dict())}
        report: Report = step("the check", lambda: verify.check(subject, convention=known, spec=asked))
        if guessed and report.causes and report.causes[0].code == "subject.raises":  # the guess may be wrong
            because = (
                f"{known} was guessed from the signature and does not fit: {report.causes[0].message}. Name the "
                f"convention by --convention or STYLE; if {known} is named, this is a finding"
            )
            report = Report("cannot_tell", known, because=because, not_judged=report.not_judged)
    except SubjectError as found:
        report = Report("fail", known, (found.cause,))
    except Exception as error:
        if _is_refusal(error):
            return {"refused": str(error)}
        *_, last = traceback.extract_tb(error.__traceback__)
        said, where = string(error, type(error).__name__), f"{Path(last.filename).name}:{last.lineno}"
        because = f"the check itself failed with {said} at {where}; this is a bug in posenc"
        report = Report("cannot_tell", known, because=because)
    return {"report": plain(report.to_dict())}


def serve() -> Never:
    """Serve the request on stdin, write the answer to the original stdout, and exit."""
    leave, requests, answers = os._exit, os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # the user's prints are not answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.dont_write_bytecode = True
    import torch  # noqa: F401  before the limit, so that torch's memory does not count

    import posenc.verify  # noqa: F401

    os.write(answers, b"\n")
    request = json.loads(requests.readline())
    answer = _answering(request["token"], answers)
    path, module, name = request["target"]
    try:
        target = Target(path and Path(path), module, name)
        found = examine(target, request["convention"], request["spec"], request["task"], answer)
    except BaseException as error:  # nothing sends Ctrl-C here
        said = string(error, type(error).__name__)
        cause = finding("subject.exits", f"the code raised {said}, which exits the program that uses it")
        found = {"report": Report("fail", "", (cause,)).to_dict()}
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    answer(found)
    leave(0)  # at once, without the exit handlers of the user's code


def _answering(token: str, answers: int) -> Answers:
    """Return a function that writes an answer as one line, with its own copies of what user code may change."""
    leave, write, getpid, pid = os._exit, os.write, os.getpid, os.getpid()
    encode = json.JSONEncoder(allow_nan=False).encode

    def answer(fields: dict[str, Any]) -> None:
        if getpid() != pid:  # a fork of the user's code
            leave(0)
        line = b"\n" + encode({"token": token, **fields}).encode() + b"\n"  # the first newline ends any unfinished line
        while line:
            line = line[write(answers, line) :]

    return answer


def _users(function: Callable[[], Any], doing: str, code: str = "") -> Any:
    """Run the user's code; exiting, exhausting memory and, with a code, raising become findings.

    Errors by which posenc refuses the request stay errors, but its refusals of what the user's code does are findings.
    """
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = string(error, type(error).__name__)
        if isinstance(error, SystemExit):
            code = "subject.exits"
            message = f"{doing} raised SystemExit({string(error.code)}), which exits the program that uses it"
        elif isinstance(error, MemoryError) or "can't allocate memory" in said:
            code, message = "subject.memory", f"{doing} exceeded the memory limit: {said}{_users_line(error)}"
        elif not code or _is_refusal(error, "posenc.verify.child.target"):
            raise
        else:
            message = f"{doing} raised {said}{_users_line(error)}"
        raise SubjectError(finding(code, message, during=doing)) from None


def _users_line(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as " (FILE:LINE)"; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if root not in _MACHINERY and root not in sys.stdlib_module_names:
            return f" ({Path(frame.f_code.co_filename).name}:{line})"
    return ""


def _is_refusal(error: BaseException, by: str = "posenc") -> bool:
    """Return whether posenc, or one module of it, raised the error by its own `raise` statement."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, ValueError | TypeError | NotImplementedError):
        return False
    frame = trace.tb_frame
    ours = f"{frame.f_globals.get('__name__', '')}.".startswith(f"{by}.")
    return ours and dis.opname[frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def plain(value: Any) -> Any:
    """Return a value ready for JSON: tensors as lists, non-finite numbers as None, other objects in words.

    >>> plain({"shape": (2, 3), "error": float("nan")})
    {'shape': [2, 3], 'error': None}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple | set) else string(value)
