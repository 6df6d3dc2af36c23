"""`posenc convert`: permute weights for code with the other pairing of dimensions."""

from typing import TYPE_CHECKING

import click

from posenc.cli import output

if TYPE_CHECKING:
    from posenc.interop import Conversion

_SHOWN = 8


@click.command()
@click.argument("directory", metavar="DIR", help="A model's directory, with config.json and *.safetensors.")
@click.option("--pairing", required=True, metavar="PAIRING", help="The new pairing: half or interleaved.")
@click.option("--out", required=True, metavar="DIR", help="A new or empty directory.")
@click.option("--of", metavar="PAIRING", help="The present pairing.", show_default="that of the model type")
@click.option("--config", metavar="FILE", help="The model's config.json, for a directory that holds only LoRA factors.")
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
def convert_weights(directory: str, pairing: str, out: str, of: str | None, config: str | None, as_json: bool) -> None:
    """Permute the weights of queries and keys, so that code with the other pairing computes the same scores."""
    for option, value in (("--pairing", pairing), ("--of", of)):
        if value not in (None, "half", "interleaved"):
            raise ValueError(f"convert: {option} must be half or interleaved; got {value}.")
    from posenc import interop

    try:
        done = interop.convert_checkpoint(directory, out, pairing, of=of, source=config)  # type: ignore[arg-type]
    except FileNotFoundError as error:
        raise ValueError(
            f"convert: there is no configuration at {config!r}. Give the path of a config.json."
        ) from error
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
    """Describe the conversion, and what the reader must do."""
    plan = done.plan
    n_permuted = len(plan.turns)
    lines = [
        f"{done.out}: {n_permuted} tensors of {plan.model_type} permuted from {plan.of} to {plan.to}; "
        f"{done.n_tensors - n_permuted} unchanged"
    ]
    lines += [f"  {count} of these hold queries or keys {why}" for why, count in plan.counts().items()]
    if done.left_out:
        shown = [name if name.isprintable() else ascii(name) for name in done.left_out[:_SHOWN]]
        more = f" and {len(done.left_out) - _SHOWN} more" if len(done.left_out) > _SHOWN else ""
        lines.append(f"  not copied: {', '.join(shown)}{more}")
    if done.flag is None:
        usual = _usual(plan.model_type)
        need = f"these weights need code whose pairing is {plan.to}"
        if usual is not None:
            as_theirs = usual == plan.to
            need = f"transformers uses {usual}, " + ("as these weights do" if as_theirs else f"and {need}")
        lines.append(f"  config.json has no key for the pairing of {plan.model_type}: {need}")
    else:
        lines.append(f"  config.json now says rope_interleave {str(done.flag).lower()}, which transformers follows")
    return lines


def _usual(model_type: str) -> str | None:
    """Return the pairing of a model type in transformers, None if it is unknown."""
    from posenc.config.models import facts

    try:
        return facts(model_type, None).pairing
    except ValueError:
        return None
