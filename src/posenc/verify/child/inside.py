"""The child's side of a check: load the subject, find out how to call it, check it, and say so in JSON.

Whatever the user's code does on the way, short of ending the process, comes out as a report.
"""

import contextlib
import dis
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Never

from posenc.verify.child.answers import Task, finding, plain, string
from posenc.verify.child.target import Loaded, Target, load, spec_of
from posenc.verify.guard import SubjectError
from posenc.verify.report import Report

Answers = Callable[[dict[str, Any]], None]
_MACHINERY = {"posenc", "torch", "numpy", "functools", "contextlib", "importlib", "runpy"}


def examine(
    target: Target,
    convention: str | None,
    spec: Mapping[str, Any] | None,
    task: Task = "check",
    say: Answers = lambda doing: None,
) -> dict[str, Any]:
    """Check or identify a target in this process.

    Args:
        target: Where the subject stands.
        convention: How it is called; None to find out.
        spec: What it should be; None for the target's own SPEC.
        task: "check", or "identify", which asks the spec for the width alone.
        say: Gets what is being done and, once known, the convention.

    Returns:
        {"report": its fields}, {"identified": its fields} or {"refused": what was wrong with the use}.
    """
    from posenc.verify import conventions, unbuilt

    known = ""

    def step(doing: str, function: Callable[[], Any], code: str = "") -> Any:
        say({"doing": doing, "convention": known})
        return _users(function, doing, code)

    try:
        loaded: Loaded = step("its import", lambda: load(target), "subject.import_fails")
        asked = spec_of({} if loaded.spec is None else loaded.spec) if spec is None else dict(spec)
        if convention is not None:
            known = conventions.named(convention, "--convention")
        elif loaded.style is not None:
            known = conventions.named(loaded.style, "STYLE")
        try:
            subject = step("build()", loaded.make, "subject.build_fails")
        except SubjectError as found:  # a family may know why
            raise SubjectError(unbuilt(known, asked, found.cause)) from None
        if guessed := not known:
            trial = "a trial call to find its convention"
            known, subject = step(trial, lambda: _inferred(subject, loaded, asked))
        if why := conventions.misfit(subject, known):
            raise SubjectError(finding("subject.kind", why, type=type(subject).__name__))
        measure = "the identification" if task == "identify" else "the check"
        report: Any = step(measure, lambda: _measured(task, subject, known, asked))
        if task == "identify":
            return {"identified": plain(report.to_dict())}
        if guessed and report.causes and report.causes[0].code == "subject.raises":
            report = _misfit(report)
    except SubjectError as found:
        report = Report("fail", known, (found.cause,))
    except Exception as error:
        if _is_refusal(error):
            return {"refused": str(error)}
        report = Report("cannot_tell", known, because=_broken(error))
    return {"report": plain(report.to_dict())}


def _misfit(report: Report) -> Report:
    """Return that a convention which was guessed does not fit: the call that fails was ours."""
    because = (
        f"{report.convention} was guessed from the signature and does not fit: {report.causes[0].message}. Name the "
        f"convention by --convention or STYLE; with {report.convention} named, this is a finding"
    )
    return Report("cannot_tell", report.convention, because=because, not_judged=report.not_judged)


def serve() -> Never:
    """Do what the request on stdin asks, answer on what was stdout, and leave."""
    leave, requests, answers = os._exit, os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # the user's prints are no answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.dont_write_bytecode = True
    import torch  # noqa: F401  before the limit, which leaves what it maps out

    import posenc.verify  # noqa: F401

    os.write(answers, b"\n")
    request = json.loads(requests.readline())
    answer = _answering(request.pop("token"), answers)
    (path, module, name), task = request.pop("target"), request.pop("task")
    target = Target(path and Path(path), module, name)
    try:
        found = examine(target, request["convention"], request["spec"], task, answer)
    except BaseException as error:  # no person presses Ctrl-C here
        said = string(error, type(error).__name__)
        cause = finding("subject.exits", f"the code raised {said}, which ends the program that uses it")
        found = {"report": Report("fail", "", (cause,)).to_dict()}
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    answer(found)
    leave(0)  # at once: what the user's code left to be done at the end is not waited for


def _answering(token: str, answers: int) -> Answers:
    """Return what writes an answer as a line of its own, with what it needs of modules that user code may change."""
    leave, write, getpid, pid = os._exit, os.write, os.getpid, os.getpid()
    encode = json.JSONEncoder(allow_nan=False).encode

    def answer(fields: dict[str, Any]) -> None:
        if getpid() != pid:  # a fork that came back here
            leave(0)
        line = b"\n" + encode({"token": token, **fields}).encode() + b"\n"  # first ends what others left there
        while line:
            line = line[write(answers, line) :]

    return answer


def _inferred(subject: Any, loaded: Loaded, spec: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the convention that fits, and a subject that no trial has touched."""
    from posenc.verify import conventions

    fits, named = conventions.by_signature(subject, spec)
    if len(fits) != 1 or not named:
        fits = conventions.by_trial(subject, fits, spec) or (fits if named else [])
        subject = _users(loaded.make, "build(), the second time,", "subject.build_fails")
    return conventions.only(fits, subject), subject


def _measured(task: Task, subject: Any, convention: str, spec: Mapping[str, Any]) -> Any:
    import posenc.verify

    if task == "check":
        return posenc.verify.check(subject, convention=convention, spec=spec)
    width = spec.get("head_dim")
    return posenc.verify.identify(subject, convention, head_dim=width if type(width) is int else None)


def _users(function: Callable[[], Any], doing: str, code: str = "") -> Any:
    """Run the user's code: that it exits, needs too much memory or, with a code, raises is a finding.

    Errors by which posenc refuses what it was asked stay errors, but not its refusals of what the user's code does.
    """
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = string(error, type(error).__name__)
        if isinstance(error, SystemExit):
            code = "subject.exits"
            message = f"{doing} raised SystemExit({string(error.code)}), which ends the program that uses it"
        elif isinstance(error, MemoryError) or "can't allocate memory" in said:
            code, message = "subject.memory", f"{doing} wanted more memory than it may have: {said}{_users_line(error)}"
        elif not code or _is_refusal(error, "posenc.verify.child.target"):
            raise
        else:
            message = f"{doing} raised {said}{_users_line(error)}"
        raise SubjectError(finding(code, message, during=doing)) from None


def _users_line(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as " (FILE:LINE)"; empty if none took part."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if root not in _MACHINERY and root not in sys.stdlib_module_names:
            return f" ({Path(frame.f_code.co_filename).name}:{line})"
    return ""


def _is_refusal(error: BaseException, by: str = "posenc") -> bool:
    """Return whether posenc, or one module of it, raised the error on purpose, by a `raise` statement of its own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, ValueError | TypeError | NotImplementedError):
        return False
    frame = trace.tb_frame
    ours = f"{frame.f_globals.get('__name__', '')}.".startswith(f"{by}.")
    return ours and dis.opname[frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _broken(error: BaseException) -> str:
    """Say that the check itself failed, and where."""
    *_, last = traceback.extract_tb(error.__traceback__)
    said, where = string(error, type(error).__name__), f"{Path(last.filename).name}:{last.lineno}"
    return f"the check itself failed with {said} at {where}; this is a fault of posenc"
