"""The child's side of a check: load the subject, find out how to call it, check it, and say so in JSON.

Whatever the user's code does on the way, short of ending the process, comes out as a report.
"""

import contextlib
import dis
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, Never

from posenc.verify.child.plain import plain, string
from posenc.verify.child.target import Loaded, Target, load, spec_of
from posenc.verify.identity.identify import Identification
from posenc.verify.report import Cause, Report

Say = Callable[[str, str], None]
Task = Literal["check", "identify"]
_MACHINERY = {"posenc", "torch", "numpy", "functools", "contextlib", "importlib", "runpy"}


class FoundError(Exception):
    """What the user's code did before there was anything to check."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def examine(
    target: Target, convention: str | None, spec: Mapping[str, Any] | None, say: Say, task: Task = "check"
) -> dict[str, Any]:
    """Check or identify a target in this process.

    Args:
        target: Where the subject stands.
        convention: How it is called; None to find out.
        spec: What it should be; None for the target's own SPEC.
        say: Told what is being done and, once known, the convention.
        task: "check", or "identify", which asks the spec for the width alone.

    Returns:
        {"report": its fields}, {"identified": its fields} or {"refused": what was wrong with the use}.
    """
    known = ""
    try:
        say("import", known)
        loaded: Loaded = _users(lambda: load(target), "subject.import_fails", "its import")
        asked = spec_of(loaded.spec if loaded.spec is not None else {}) if spec is None else dict(spec)
        known = _named(convention, loaded.style)
        guessed = not known
        say("build", known)
        subject = _built(loaded, known, asked)
        if guessed:
            say("trial", known)
            known, subject = _inferred(subject, loaded, asked)
        say(task, known)
        if task == "identify":
            return {"identified": plain(_measured(subject, known, asked, _identified).to_dict())}
        report: Report = _measured(subject, known, asked, _checked)
        if guessed and report.causes and report.causes[0].code == "subject.raises":
            report = _misfit(report)
    except FoundError as found:
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


def _built(loaded: Loaded, convention: str, spec: Mapping[str, Any]) -> Any:
    """Return what build() returns; where it raises, a family may know why."""
    from posenc import verify

    try:
        return _users(loaded.make, "subject.build_fails", "build()")
    except FoundError as found:
        raise FoundError(verify.unbuilt(convention, spec, found.cause)) from None


def serve() -> Never:
    """Do what the request on stdin asks, answer on what was stdout, and leave."""
    leave = os._exit
    requests, answers = _apart()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(requests.readline())
    threading.Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    answer = _answering(request.pop("token"), answers)
    for entry in request["search"]:
        if entry not in sys.path:
            sys.path.append(entry)
    sys.dont_write_bytecode = True
    import torch  # noqa: F401  before the limit, which leaves what it maps out

    import posenc.verify  # noqa: F401

    _limit_memory(request["memory_limit"])
    found = _found(request, answer)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    answer(found)
    leave(0)  # at once: what the user's code left to be done at the end is not waited for


def _apart() -> tuple[BinaryIO, int]:
    """Take stdin and stdout away from the user's code; return where requests come from, and where answers go."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.dup(1)
    os.dup2(2, 1)  # the user's prints are no answers
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests, answers


def _answering(token: str, answers: int) -> Callable[[dict[str, Any]], None]:
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


def _found(request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return what an examination found, also where the code ends the program."""
    target = Target(request["path"] and Path(request["path"]), request["module"], request["name"])
    try:
        return examine(
            target,
            request["convention"],
            request["spec"],
            lambda phase, convention: answer({"phase": phase, "convention": convention}),
            request["task"],
        )
    except BaseException as error:  # nobody presses Ctrl-C here
        message = f"the code raised {string(error, type(error).__name__)}, which ends the program that uses it"
        cause = Cause("subject.exits", message, 1.0, {}, "Raise an Exception instead.")
        return {"report": Report("fail", "", (cause,)).to_dict()}


def _named(convention: str | None, style: Any) -> str:
    """Return the convention that was named, by option or STYLE; empty if neither."""
    from posenc.verify import conventions

    if convention is not None:
        return conventions.named(convention, "--convention")
    return "" if style is None else conventions.named(style, "STYLE")


def _inferred(subject: Any, loaded: Loaded, spec: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the convention that fits, and a subject that no trial has touched."""
    from posenc.verify import conventions

    fits, named = conventions.by_signature(subject, spec)
    if len(fits) != 1 or not named:
        fits = conventions.by_trial(subject, fits, spec) or (fits if named else [])
        subject = _users(loaded.make, "subject.build_fails", "build(), the second time,")
    return conventions.only(fits, subject), subject


def _checked(subject: Any, convention: str, spec: Mapping[str, Any]) -> Report:
    import posenc.verify

    return posenc.verify.check(subject, convention=convention, spec=spec)


def _identified(subject: Any, convention: str, spec: Mapping[str, Any]) -> Identification:
    import posenc.verify

    width = spec.get("head_dim")
    known = isinstance(width, int) and not isinstance(width, bool)
    return posenc.verify.identify(subject, convention, head_dim=width if known else None)


def _measured(
    subject: Any, convention: str, spec: Mapping[str, Any], run: Callable[[Any, str, Mapping[str, Any]], Any]
) -> Any:
    """Return what a task says; what the subject does to it is a finding as well."""
    from posenc.verify import conventions

    if why := conventions.misfit(subject, convention):
        case, help_ = {"type": type(subject).__name__}, "Return that from build(), or name the right convention."
        raise FoundError(Cause("subject.kind", why, 1.0, case, help_))
    try:
        return run(subject, convention, spec)
    except SystemExit as error:
        raise FoundError(_exits("the check", error)) from None
    except MemoryError as error:
        raise FoundError(_memory("the check", error)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(cause := getattr(error, "cause", None), Cause):  # of the guard, which nobody caught
            raise FoundError(cause) from None
        if where := _users_line(error):
            message = f"the subject raised {string(error, type(error).__name__)}{where} while it was measured"
            raise FoundError(Cause("subject.raises", message, 1.0, help="Make the call run.")) from None
        raise


def _users(function: Callable[[], Any], code: str, doing: str) -> Any:
    """Run the user's code; whatever it raises is a finding, but our own refusals stay errors."""
    try:
        return function()
    except SystemExit as error:
        raise FoundError(_exits(doing, error)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_refusal(error, "posenc.verify.child.target"):  # not posenc's refusals of what the user's code does
            raise
        said = string(error, type(error).__name__)
        if isinstance(error, MemoryError) or "can't allocate memory" in said:
            raise FoundError(_memory(doing, error)) from None
        message = f"{doing} raised {said}{_users_line(error)}"
        help_ = "Make it run without arguments." if "build" in code else "Make the file run alone: python FILE.py."
        if isinstance(error, ImportError) and "relative import" in said:
            help_ = "It belongs to a package: name it as package.module:OBJECT."
        raise FoundError(Cause(code, message, 1.0, {"during": doing}, help_)) from None


def _exits(doing: str, error: SystemExit) -> Cause:
    message = f"{doing} raised SystemExit({string(error.code)}), which ends the program that uses it"
    help_ = "Raise an error instead, and keep what is a script under if __name__ == '__main__'."
    return Cause("subject.exits", message, 1.0, {"during": doing}, help_)


def _memory(doing: str, error: BaseException) -> Cause:
    message = f"{doing} wanted more memory than it may have: {string(error, type(error).__name__)}{_users_line(error)}"
    help_ = "Build tables for the length that is asked for, not for the longest there could be."
    return Cause("subject.memory", message, 1.0, {"during": doing}, help_)


def _users_line(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback, as " (FILE:LINE)"; empty if none took part."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if root not in _MACHINERY and root not in sys.stdlib_module_names:
            return f" ({Path(frame.f_code.co_filename).name}:{line})"
    return ""


def _is_refusal(error: BaseException, by: str = "posenc") -> bool:
    """Tell whether posenc, or one module of it, raised the error on purpose, by a `raise` statement of its own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, ValueError | TypeError | NotImplementedError):
        return False
    instruction = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    ours = f"{trace.tb_frame.f_globals.get('__name__', '')}.".startswith(f"{by}.")
    return ours and dis.opname[instruction] == "RAISE_VARARGS"


def _broken(error: BaseException) -> str:
    """Say that the check itself failed, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the check itself failed with {string(error, type(error).__name__)}{where}; this is a fault of posenc"


def _limit_memory(limit: int) -> None:
    """Let this process map so much more than it has now; a system without such limits goes without."""
    try:
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = mapped + limit if hard == resource.RLIM_INFINITY else min(mapped + limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        return


def _end_with_parent(requests: Any) -> None:
    """End the whole group once the parent is gone, or has enough: its end of the pipe is closed then."""
    with contextlib.suppress(OSError):
        requests.read()
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
