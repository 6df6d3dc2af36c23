"""Where an error was raised, for messages about code that a user wrote."""

import sys
import traceback
from pathlib import Path

_NOT_OWN = {"posenc", "torch", "numpy", "jaxtyping", "click", "rich_click", *sys.stdlib_module_names}


def own_line(error: BaseException) -> str | None:
    """Return FILE:LINE of the innermost call in a user's code; None if the error has passed through none."""
    calls = traceback.walk_tb(error.__traceback__)
    own = [at for at in calls if at[0].f_globals.get("__name__", "").partition(".")[0] not in _NOT_OWN]
    return f"{Path(own[-1][0].f_code.co_filename).name}:{own[-1][1]}" if own else None


def describe(error: BaseException) -> str:
    """Return an exception's type, message and line: the user's, or that which raised it."""
    where = own_line(error)
    if where is None and (calls := traceback.extract_tb(error.__traceback__)):
        where = f"{Path(calls[-1].filename).name}:{calls[-1].lineno}"
    return f"{type(error).__name__}: {str(error).rstrip('.')}" + (f" (in {where})" if where else "")
