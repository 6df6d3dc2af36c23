"""What convert_pairing refuses, in one sentence each: silence would leave a model that runs and is wrong."""

import pytest
import torch

pytest.importorskip("transformers")

from interop.models import build, configuration, weights
from interop.plain import ATTENTION, LLAMA, llama, renamed
from posenc.interop import convert_pairing
from strategies import refuses

UNKNOWN = {
    "keys under another name": (renamed(k_proj="key_proj"), r"self_attn.key_proj.weight \(is not known in the att"),
    "keys outside attention": (
        llama(**{"model.layers.0.k_proj.weight": torch.zeros(6, 3)}), r"model.layers.0.k_proj.weight \(is not in the a"
    ),
    "keys outside layers": (llama(**{"model.wk.weight": torch.zeros(6, 3)}), r"model.wk.weight \(is not in a layer"),
    "another stack": (
        llama(**{"model.draft.layers.0.self_attn.q_proj.weight": torch.zeros(12, 3)}), "this type does not have: draft"
    ),
    "another module of attention": (
        llama(**{f"{ATTENTION}.indexer.wk.weight": torch.zeros(6, 3)}), "indexer.wk.weight .is not known in the"
    ),
    "a cross-attention": (
        llama(**{"model.layers.0.cross_attn.q_proj.weight": torch.zeros(6, 3)}), "cross_attn.q_proj.weight .is not in"
    ),
    "another factor": (
        llama(**{f"{ATTENTION}.q_proj.vera_lambda_b": torch.zeros(12)}), "vera_lambda_b .is not known below a proj"
    ),
    "another part of a norm": (
        llama(**{f"{ATTENTION}.q_norm.alpha": torch.zeros(6)}), "q_norm.alpha .is not known below a norm"
    ),
    "a norm of another width": (
        llama(**{f"{ATTENTION}.q_norm.weight": torch.zeros(5)}), "has 5 entries where heads have 6"
    ),
    "rows of another width": (
        llama(**{f"{ATTENTION}.q_proj.bias": torch.zeros(24)}), "has 24 rows, but 12 by the configuration"
    ),
    "convolution": (llama(**{f"{ATTENTION}.q_proj.bias": torch.zeros(12, 3, 3)}), "has 3 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_understood_is_listed(case):
    given, said = UNKNOWN[case]
    with pytest.raises(ValueError, match=f"^convert_pairing: tensors that look like queries or keys .*{said}"):
        convert_pairing(given, LLAMA, "interleaved")


QUANTIZED = {
    "GPTQ": {"q_proj.qweight": torch.zeros(2, 12, dtype=torch.int32), "q_proj.qzeros": torch.zeros(1, 2)},
    "AWQ": {"k_proj.scales": torch.zeros(1, 6)},
    "FP8 by blocks": {"q_proj.weight_scale_inv": torch.zeros(1, 1)},
    "bitsandbytes": {"q_proj.weight.absmax": torch.zeros(4), "k_proj.SCB": torch.zeros(6)},
    "integers": {"q_proj.weight": torch.zeros(12, 3, dtype=torch.int8)},
    "float8": {"q_proj.weight": torch.zeros(12, 3).to(torch.float8_e4m3fn)},
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_quantized_weights_are_refused(case):
    given = llama(**{f"{ATTENTION}.{name}": tensor for name, tensor in QUANTIZED[case].items()})
    with pytest.raises(
        ValueError, match="quantized queries and keys cannot be permuted, because blocks of rows share scales"
    ):
        convert_pairing(given, LLAMA, "interleaved")


def test_quantized_experts_beside_plain_attention_are_none_of_its_business():
    experts = {"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(4, dtype=torch.uint8)}
    out = convert_pairing(llama(**experts), LLAMA, "interleaved")
    assert out[next(iter(experts))] is next(iter(experts.values()))


class Packed(torch.Tensor):
    pass


REFUSED = {
    "the same pairing": (llama(), LLAMA, {"to": "half"}, ValueError, "these weights are half already"),
    "the same, said": (llama(), LLAMA, {"to": "interleaved", "of": "interleaved"}, ValueError, "interleaved already"),
    "no pairing": (llama(), LLAMA, {"to": "neox"}, ValueError, "to must be 'half' or 'interleaved'; got 'neox'."),
    "no present one": (llama(), LLAMA, {"to": "half", "of": "gptj"}, ValueError, "of must be 'half' or"),
    "queries alone": (
        {f"{ATTENTION}.q_proj.weight": torch.zeros(12, 3)}, LLAMA, {"to": "interleaved"}, ValueError,
        "queries and keys must be converted together; got only one of them in model.layers.0.self_attn. Pass the whole",
    ),
    "nothing": ({"lm_head.weight": torch.zeros(3)}, LLAMA, {"to": "interleaved"}, ValueError, "none of these tensors"),
    "an indexer": (
        {}, LLAMA | {"model_type": "deepseek_v32"}, {"to": "half"}, ValueError, "deepseek_v32 cannot be converted, bec"
    ),
    "convolved": ({}, LLAMA | {"model_type": "zaya"}, {"to": "interleaved"}, ValueError, "zaya cannot be converted"),
    "values that turn": (
        {}, LLAMA | {"model_type": "roformer", "rotary_value": True}, {"to": "half"}, ValueError, "values rotate too"
    ),
    "several stacks": (
        {}, LLAMA | {"model_type": "csm"}, {"to": "interleaved"}, ValueError, "layout of queries and keys in csm is not"
    ),
    "no rotation": (
        {}, LLAMA | {"model_type": "falcon", "alibi": True}, {"to": "interleaved"}, ValueError, "no layer of this model"
    ),
    "no heads": (
        {}, {k: v for k, v in LLAMA.items() if k != "num_attention_heads"}, {"to": "interleaved"}, ValueError,
        "num_attention_heads is missing",
    ),
    "no tensor": ({"x": [1.0]}, LLAMA, {"to": "interleaved"}, TypeError, "values must be tensors; got list for 'x'"),
    "no name": ({1: torch.zeros(1)}, LLAMA, {"to": "interleaved"}, TypeError, "names of tensors must be strings"),
    "a class of its own": (
        llama(**{f"{ATTENTION}.q_proj.bias": torch.zeros(12).as_subclass(Packed)}), LLAMA, {"to": "interleaved"},
        ValueError, "q_proj.bias",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses_in_one_sentence(case):
    given, config, options, kind, said = REFUSED[case]
    with refuses(kind, "convert_pairing: ", said):
        convert_pairing(given, config, **options)


def test_another_stack_is_not_excused_by_a_layer_that_does_not_turn():
    smollm3 = configuration("smollm3", no_rope_layers=[1, 0, 1])
    given = weights(build(smollm3)) | {"model.draft.layers.1.self_attn.q_proj.weight": torch.zeros(32, 32)}
    with pytest.raises(ValueError, match="in a part that this type does not have: draft"):
        convert_pairing(given, smollm3.to_dict(), "interleaved")


def test_a_long_list_of_names_is_cut():
    given = {f"model.layers.{i}.self_attn.{'q' * 300}.weight": torch.zeros(1) for i in range(2000)}
    with pytest.raises(ValueError, match="do not match .* and 1994 more") as caught:
        convert_pairing(given, LLAMA | {"num_hidden_layers": 2000}, "interleaved")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_heads_of_another_number_than_the_configuration_has_are_refused():
    # 24 rows could be 4 heads of 6 or 2 of 12: the lanes would go astray
    given = {name: torch.zeros(2 * len(tensor), 3) for name, tensor in llama().items()}
    with pytest.raises(ValueError, match="has 24 rows, but 12 by the configuration"):
        convert_pairing(given, LLAMA, "interleaved")
