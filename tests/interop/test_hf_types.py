"""Every rotary type of model that can be built small: used by posenc.hf, with equal outputs."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import posenc
from interop.rotary_models import contents, counting, shaken
from small_models import build, small
from test_configured import OPTIONS, RUN

OFTEN = {"bamba", "cohere_compass_text", "deepseek_v2", "gemma4_text", "glm4v_text", "mimo_v2_flash", "molmo2_text"}
LATENT = {
    *("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"),
    *("longcat_flash", "minicpm3", "mistral4", "mistral_large4_text", "unlimited_ocr_text", "youtu"),
}
# which test_configured does not run, since their attention is in their own code, and which run here
MORE = ["codegen", "deepseek_v4", "falcon", "gpt_neox_japanese", "gptj", "recurrent_gemma"]
NAMES = [*RUN, *MORE]
OWN = OPTIONS | {key: {"rotary_dim": 8} for key in ("codegen", "gptj")}
OFTEN |= {*MORE}
LENGTH = 9


def output(model: Any, pos: Any, **inputs: Any) -> torch.Tensor:
    torch.manual_seed(0)
    ids = torch.arange(7, 7 + LENGTH).expand(2, -1)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, position_ids=pos, use_cache=False, **inputs)[0]


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_every_type_is_used(name):
    transformers.logging.set_verbosity_error()
    heads = {"num_key_value_heads": 4} if name in LATENT else {}  # which transformers' own attention wants
    model = build(small(name, **OWN.get(name, {}) | heads))
    model.set_attn_implementation("eager")
    shaken(model, std=0.15)
    pos = torch.randint(0, 60, (2, LENGTH), generator=torch.Generator().manual_seed(0)).sort(-1).values
    wanted, turns = output(model, pos), []
    rounding = 2e-5 * float(wanted.abs().max()) + 3 * touched(model, pos, wanted)
    before = contents(model)
    posenc.hf.use(model)
    with counting(turns):
        got = output(model, pos)
    assert turns
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding)
    assert (output(model, pos * 0) - got).abs().max() > max(3 * rounding, 1e-3 * float(got.abs().max()))
    assert contents(posenc.hf.restore(model)).keys() == before.keys()
    assert torch.equal(output(model, pos), wanted)


def touched(model: Any, pos: Any, wanted: Any) -> float:
    """Return how far outputs move where weights are multiplied by 1 + 1e-6: some models choose experts by a hair."""
    weights = [parameter.clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-6)
        moved = float((output(model, pos) - wanted).abs().max())
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return moved


def test_the_page_counts_what_is_tested():
    page = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
    assert int(re.search(r"<!-- counted: (\d+) -->", page)[1]) == len(NAMES)
    assert f"{len(NAMES)} are built small" in page
