"""`posenc convert`: weights for code that pairs lanes the other way."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.interop import Conversion

_SHOWN = 8


@click.command()
@click.argument("directory", metavar="DIR", help="A model: config.json and *.safetensors.")
@click.option("--pairing", required=True, metavar="PAIRING", help="The new one: half or interleaved.")
@click.option("--out", required=True, metavar="DIR", help="A new or empty directory.")
@click.option("--of", metavar="PAIRING", help="The present one.", show_default="what the model type has")
@click.option("--config", metavar="FILE", help="The model's config.json, for LoRA factors alone.")
@click.option("--json", "as_json", is_flag=True, help="What was done, as JSON.")
def convert_weights(directory: str, pairing: str, out: str, of: str | None, config: str | None, as_json: bool) -> None:
    """Permute queries and keys, so that code which pairs lanes the other way gives the same."""
    for option, value in (("--pairing", pairing), ("--of", of)):
        if value not in (None, "half", "interleaved"):
            raise ValueError(f"convert: {option} must be half or interleaved; got {value}.")
    from posenc import interop

    try:
        done = interop.convert_checkpoint(directory, out, pairing, of=of, source=config)  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise ValueError(f"convert: there is no configuration at {config!r}. Name a config.json.") from error
    if as_json:
        output.write_json(_report(done))
    else:
        output.write("\n".join(_describe(done)))


def _report(done: "Conversion") -> dict[str, object]:
    return {
        "out": str(done.out),
        "model_type": done.plan.model_type,
        "from": done.plan.of,
        "to": done.plan.to,
        "tensors": done.n_tensors,
        "permuted": list(done.plan.turns),
        "left": dict(done.plan.left),
        "copied": list(done.copied),
        "not_copied": list(done.left_out),
        "rope_interleave": done.flag,
    }


def _describe(done: "Conversion") -> list[str]:
    """Say what was done, and what the reader must do."""
    plan = done.plan
    n_turned = len(plan.turns)
    lines = [
        f"{done.out}: {n_turned} tensors of {plan.model_type} permuted from {plan.of} to {plan.to}; "
        f"{done.n_tensors - n_turned} stay as they were"
    ]
    lines += [f"  {count} of these hold queries or keys {why}" for why, count in plan.counts().items()]
    if done.left_out:
        shown = [name if name.isprintable() else ascii(name) for name in done.left_out[:_SHOWN]]
        more = f" and {len(done.left_out) - _SHOWN} more" if len(done.left_out) > _SHOWN else ""
        lines.append(f"  not copied: {', '.join(shown)}{more}")
    if done.flag is None:
        usual = _usual(plan.model_type)
        need = f"these weights need code that turns as {plan.to}"
        if usual is not None:
            as_theirs = usual == plan.to
            need = f"transformers turns it as {usual}, " + ("as these weights have it" if as_theirs else f"and {need}")
        lines.append(f"  config.json has no key for the pairing of {plan.model_type}: {need}")
    else:
        lines.append(f"  config.json now says rope_interleave {str(done.flag).lower()}, which transformers follows")
    return lines


def _usual(model_type: str) -> str | None:
    """Return how transformers pairs lanes for a type, None where that is not known."""
    from posenc.config.models import facts

    try:
        return facts(model_type, None).pairing
    except ValueError:
        return None
