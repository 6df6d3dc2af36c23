"""Texts in Chinese: the code has English templates, and the tables in `posenc/zh` translate them.

    with languages.use("zh"):
        tr("head {head}", head=3)  # '头 3'

A text without an entry stays English.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import resources
from typing import Any

LANGUAGES = ("en", "zh")
_current: ContextVar[str] = ContextVar("language", default="en")


@contextmanager
def use(language: str) -> Iterator[None]:
    """Translate what runs inside to `language`, "en" or "zh"; a thread started inside is in English.

    Raises:
        ValueError: `language` is another one.
    """
    if language not in LANGUAGES:
        raise ValueError(f"languages.use: language must be one of {', '.join(LANGUAGES)}; got {language!r}.")
    token = _current.set(language)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    """Return the language in use."""
    return _current.get()


def tr(text: str, /, **values: Any) -> str:
    """Return a text in the current language, with `values` in the place of {their names}.

    `text` is a literal: tests read the calls and compare them with the tables.
    """
    return template(text).format(**values) if values else template(text)


def template(text: str) -> str:
    """Return a text in the current language, with its {names}; for functions that fill these in another way."""
    return table(current()).get(text, text)


@cache
def table(language: str) -> dict[str, str]:
    """Return every translation to a language by its English text; empty for English."""
    if language == "en":
        return {}
    found: dict[str, str] = {}
    for path in (resources.files("posenc") / language).iterdir():
        if path.name.endswith(".json") and not path.name.startswith("."):  # no file of an editor or a file manager
            found |= json.loads(path.read_text(encoding="utf-8"))
    return found
