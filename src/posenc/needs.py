"""Errors for missing optional packages."""

from collections.abc import Iterator
from contextlib import contextmanager

_OF_TORCH = {"torch", "jaxtyping"}  # the extra "torch"


def lacks_torch(error: BaseException) -> bool:
    """Return whether an import failed because a package of the extra `torch` is missing."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_TORCH


def no_torch(who: str) -> ModuleNotFoundError:
    """Return the error for missing torch.

    >>> print(no_torch("posenc.RoPE"))
    posenc.RoPE needs torch: pip install 'posenc[torch]'
    """
    return ModuleNotFoundError(f"{who} needs torch: pip install 'posenc[torch]'", name="torch")


@contextmanager
def needs_torch(who: str) -> Iterator[None]:
    """Replace the error of an import of torch in this context by one line that names the package to install.

    Args:
        who: The name at the start of the message.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not lacks_torch(error):
            raise
        raise no_torch(who) from None
