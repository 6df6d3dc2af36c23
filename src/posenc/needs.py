"""What the extra packages are for, where one of them is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

_OF_TORCH = {"torch", "jaxtyping"}  # the extra "torch"


def lacks_torch(error: BaseException) -> bool:
    """Return whether an import failed because what the extra `torch` brings is not there."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_TORCH


def no_torch(who: str) -> ModuleNotFoundError:
    """Return the error that says what to install.

    >>> print(no_torch("posenc.RoPE"))
    posenc.RoPE needs torch: pip install 'posenc[torch]'
    """
    return ModuleNotFoundError(f"{who} needs torch: pip install 'posenc[torch]'", name="torch")


@contextmanager
def needs_torch(who: str) -> Iterator[None]:
    """Raise one line that says what to install, where an import in this context finds no torch.

    Args:
        who: What needs it.

    Raises:
        ModuleNotFoundError: There is no torch.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not lacks_torch(error):
            raise
        raise no_torch(who) from None
