"""Typeset the formulas of cards, which are lines of Unicode, as MathML: no script, no font, no request.

`ω_k = base^(-2k/d)` has a subscript k and a superscript -2k/d. A subscript is `{...}`, `[...]` or what follows up to a
space or an operator; a superscript is `(...)`, `{...}` or one symbol. Words of two letters and more are text unless a
subscript or a superscript follows them.
"""

import re
from html import escape

_TOKEN = re.compile(r"\s+|leaky_relu|[A-Za-z][A-Za-z0-9]*|\d[\d,]*(?:\.\d+)?|\.\.|.", re.S)
_RAISED = {"ᵀ": "T", "¹": "1", "²": "2", "³": "3", "⁻": "-"}
_CLOSED = {"(": ")", "{": "}", "[": "]"}
_SPELT = {"-": "−", "..": "…"}


def to_mathml(formula: str, *, block: bool = True) -> str:
    """Return a formula as a MathML element."""
    display = ' display="block"' if block else ""
    return f"<math{display}><mrow>{_row(_TOKEN.findall(formula))}</mrow></math>"


def _row(tokens: list[str]) -> str:
    """Typeset tokens from left to right, each with its scripts."""
    found, at = [], 0
    while at < len(tokens):
        base, at = _symbol(tokens[at]), at + 1
        lower = upper = ""
        while at < len(tokens) - 1 and tokens[at] in ("_", "^"):
            if tokens[at] == "_":
                lower, at = _script(tokens, at + 1, "{")
            else:
                upper, at = _script(tokens, at + 1, "({")
        while at < len(tokens) and tokens[at] in _RAISED:
            upper, at = upper + _symbol(_RAISED[tokens[at]]), at + 1
        if lower and upper:
            base = f"<msubsup>{base}<mrow>{lower}</mrow><mrow>{upper}</mrow></msubsup>"
        elif lower:
            base = f"<msub>{base}<mrow>{lower}</mrow></msub>"
        elif upper:
            base = f"<msup>{base}<mrow>{upper}</mrow></msup>"
        found.append(base)
    return "".join(found)


def _script(tokens: list[str], at: int, hidden: str) -> tuple[str, int]:
    """Typeset the script that starts at a token; return it and where the row goes on."""
    opening = tokens[at]
    if opening in _CLOSED and opening in hidden:
        end = _closing(tokens, at)
        return _row(tokens[at + 1 : end]), end + 1
    end = at + 1 + (opening == "-")
    indices = opening if set(opening) <= set("hijkmnt") else ""  # s_ij has two of them
    return _row(list(indices) or tokens[at:end]), end


def _closing(tokens: list[str], at: int) -> int:
    """Return where the bracket that opens at a token closes."""
    depth = 0
    for end in range(at, len(tokens)):
        depth += (tokens[end] == tokens[at]) - (tokens[end] == _CLOSED[tokens[at]])
        if depth == 0:
            return end
    raise ValueError(f"a bracket is not closed in {''.join(tokens)!r}")


def _symbol(token: str) -> str:
    """Typeset one token: a name, a number, words or an operator."""
    if token.isspace():
        return '<mspace width="0.9em"/>' if len(token) > 1 else '<mspace width="0.28em"/>'
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token in "ΣΠ":
        return f'<mi mathvariant="normal">{token}</mi>'
    if token[0].isalpha():
        return f"<mi>{escape(token)}</mi>"
    stretchy = ' stretchy="false"' if token in "()[]{}|" else ""
    return f"<mo{stretchy}>{escape(_SPELT.get(token, token))}</mo>"
