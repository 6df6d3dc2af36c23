"""`posenc rule`: what an error code of `posenc verify` means, why it matters, and how to fix it."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.verify.rules import Rule

_WIDTH = 80


@click.command()
@click.argument(
    "code", required=False, help="A code such as rope.layout.mixed, or a family such as rope.  [default: (list all)]"
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def explain_rule(code: str | None, as_json: bool) -> None:
    """Explain an error code: what it means, why it matters, how to fix it, and real reports; without CODE, list all."""
    from posenc.verify import rules

    families = rules.families()
    if code is None or code in families:
        shown = families if code is None else {code: families[code]}
        if as_json:
            output.write_json({family: [rule.to_dict() for rule in own] for family, own in shown.items()})
        else:
            output.write("\n\n".join(_list(family, own) for family, own in shown.items()))
        return
    rule = rules.find(code)
    if as_json:
        output.write_json(rule.to_dict())
    else:
        output.write(_describe(rule))


def _describe(rule: "Rule") -> str:
    parts = [rule.code, output.wrap(rule.title, _WIDTH, "  ")]
    parts += [output.wrap(text, _WIDTH, "  ", f"  {label} ") for label, text in
              (("Why it matters:", rule.why), ("How to fix it:", rule.fix))]  # fmt: skip
    parts += [f"  {'A real report' if len(rule.reports) == 1 else 'Real reports'}:"] if rule.reports else []
    return "\n".join([*parts, *(f"    {link}" for link in rule.reports)])


def _list(family: str, rules: "list[Rule]") -> str:
    """List a family's codes with their titles, wrapped."""
    lines = [family]
    for rule in rules:
        lines += [f"  {rule.code}", output.wrap(rule.title, _WIDTH, "      ")]
    return "\n".join(lines)
