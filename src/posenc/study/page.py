"""A self-contained HTML page in the study's style: it loads nothing; style, script and data are inline."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from posenc import languages

from .marks import colour_rules


def write_page(template: str, context: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return a page as one string of HTML.

    Args:
        template: A Jinja2 template that uses `style`, `script`, the hashes `style_hash` and `script_hash`, and `data`;
            `tr` translates its texts to the current `language`.
        context: The template's other variables; texts in it are escaped.
        data: Embedded as JSON; numbers that are not finite become null.
    """
    style, script = colour_rules() + asset("posenc.study", "report.css"), asset("posenc.study", "report.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        **context,
        tr=_tr,
        language=languages.current(),
        data=_embedded(data),
        style=Markup(style),
        script=Markup(script),
        style_hash=_digest(style),
        script_hash=_digest(script),
    )


def _tr(text: str, /, **values: object) -> Markup:
    """Return a template's text in the current language; HTML in the text stays, and values are escaped."""
    return Markup(languages.template(text)).format(**values)


def asset(package: str, name: str) -> str:
    """Return a text file of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _digest(content: str) -> Markup:
    """Return the hash with which the page's content policy admits only this inline style or script."""
    digest = hashlib.sha256(content.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")  # base64 has nothing to escape


def _finite(value: Any) -> Any:
    """Return the value with None for every float that JSON cannot represent."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _embedded(data: Mapping[str, Any]) -> Markup:
    """Return the data as JSON that can neither end its script element nor start a comment in it."""
    text = json.dumps(_finite(data), allow_nan=False, default=str)
    escapes = (
        ("&", "\\u0026"),
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    )
    for character, escape in escapes:
        text = text.replace(character, escape)
    return Markup(text)
