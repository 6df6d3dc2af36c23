"""`posenc rule`: what a code of `posenc verify` means, why it hurts, and how to fix it."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.verify.rules import Rule

_WIDTH = 80


@click.command()
@click.argument("code", required=False, help="As rope.layout.mixed, or a family as rope.  [default: (list them)]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain_rule(code: str | None, as_json: bool) -> None:
    """Say what a code is, why it hurts, where it was met, and how to fix it; without one, list all."""
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
    parts += [output.wrap(said, _WIDTH, "  ", f"  {label} ") for label, said in
              (("Why it hurts:", rule.why), ("How to fix it:", rule.fix))]  # fmt: skip
    parts += [f"  {'A real report' if len(rule.reports) == 1 else 'Real reports'}:"] if rule.reports else []
    return "\n".join([*parts, *(f"    {link}" for link in rule.reports)])


def _list(family: str, rules: "list[Rule]") -> str:
    """Write a family's codes with their titles, each on lines that fit."""
    lines = [family]
    for rule in rules:
        lines += [f"  {rule.code}", output.wrap(rule.title, _WIDTH, "      ")]
    return "\n".join(lines)
