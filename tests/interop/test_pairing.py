"""What convert_pairing does with factors, shared tensors and other parts of a model."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from interop.models import OWN, build, configuration, turned, weights
from interop.plain import ATTENTION, LLAMA, llama, renamed
from posenc.interop import convert_pairing

# Where lane i of a head of 6 comes from, written out.
HALF_TO_INTERLEAVED = [0, 3, 1, 4, 2, 5]
INTERLEAVED_TO_HALF = [0, 2, 4, 1, 3, 5]


def test_rows_move_as_the_definition_says():
    out = convert_pairing(llama(), LLAMA, "interleaved")
    second = [6 + i for i in HALF_TO_INTERLEAVED]
    assert out[f"{ATTENTION}.q_proj.weight"][:, 0].tolist() == HALF_TO_INTERLEAVED + second
    assert out[f"{ATTENTION}.k_proj.weight"][:, 0].tolist() == HALF_TO_INTERLEAVED
    back = convert_pairing(llama(), LLAMA, "half", of="interleaved")
    assert back[f"{ATTENTION}.k_proj.weight"][:, 0].tolist() == INTERLEAVED_TO_HALF


def test_the_callers_dict_and_tensors_stay():
    other = torch.ones(3)
    given = llama(**{"lm_head.weight": other, "model.norm.weight": other})
    copies = {name: tensor.clone() for name, tensor in given.items()}
    out = convert_pairing(given, LLAMA, "interleaved")
    assert list(out) == list(given)
    assert out is not given
    assert all(torch.equal(given[name], copies[name]) for name in given)
    assert out["lm_head.weight"] is other
    assert out["model.norm.weight"] is other


def test_what_was_shared_is_shared():
    given = llama()
    given |= {name.replace("layers.0", "layers.1"): tensor for name, tensor in given.items()}
    out = convert_pairing(given, LLAMA, "interleaved")
    for name in llama():
        assert out[name] is out[name.replace("layers.0", "layers.1")]
    square = torch.randn(12, 12)  # one memory, read in two orders
    both = {
        name.replace("layers.0", f"layers.{i}"): (square, square.T)[i]
        for i in (0, 1)
        for name in given
        if "0.self" in name
    }
    both = {name: tensor if "q_proj" in name else tensor[:6] for name, tensor in both.items()}
    turned_once = convert_pairing(both, LLAMA, "interleaved")
    assert torch.equal(turned_once["model.layers.1.self_attn.q_proj.weight"][1], square.T[HALF_TO_INTERLEAVED[1]])
    # one memory, read as queries and, its first rows, as keys: these are two tensors, and stay two
    assert not torch.equal(out[f"{ATTENTION}.q_proj.weight"][:6], given[f"{ATTENTION}.q_proj.weight"][:6])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_bits_stay_in_every_dtype_and_layout_in_memory(dtype):
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    odd = torch.randint(torch.iinfo(bits).min, torch.iinfo(bits).max, (3, 12), dtype=bits).view(dtype).T  # NaN too
    given = {f"{ATTENTION}.q_proj.weight": odd, f"{ATTENTION}.k_proj.weight": odd[:6]}
    out = convert_pairing(convert_pairing(given, LLAMA, "interleaved"), LLAMA, "half", of="interleaved")
    for name, tensor in given.items():
        assert out[name].dtype == dtype
        assert torch.equal(out[name].contiguous().view(bits), tensor.contiguous().view(bits))


def test_a_parameter_with_a_gradient_gives_a_plain_tensor():
    given = {name: torch.nn.Parameter(tensor) for name, tensor in llama().items()}
    assert not any(tensor.requires_grad for tensor in convert_pairing(given, LLAMA, "interleaved").values())


FACTORS = {
    "llama": ("llama", {}, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "GPT-NeoX, fused": ("gpt_neox", {"rotary_pct": 0.5}, ("attention.query_key_value",)),
    "Phi-3, fused": ("phi3", {}, ("self_attn.qkv_proj",)),
    "DeepSeek-V3": (
        "deepseek_v3", {"head_dim": OWN, "num_key_value_heads": 4},
        ("self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.q_a_proj", "self_attn.kv_b_proj"),
    ),
    "Gemma 4, where keys are values and o_proj reads them": (
        "gemma4_text", {"layer_types": ["full_attention"] * 3, "attention_k_eq_v": True},
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_factors_move_with_what_they_are_added_to(name):
    model_type, fields, targets = FACTORS[name]
    config = configuration(model_type, **fields)
    base, source = weights(build(config)), config.to_dict()
    to = "half" if model_type == "deepseek_v3" else "interleaved"
    factors, adapted = {}, dict(base)
    for key, tensor in base.items():
        if not key.endswith(tuple(f"{target}.weight" for target in targets)):
            continue
        a, b = torch.randn(2, tensor.shape[1]), torch.randn(tensor.shape[0], 2)
        stem = "base_model.model." + key.removesuffix(".weight")
        factors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.default.weight": b}
        factors[f"{stem}.lora_magnitude_vector"] = tensor.norm(dim=1)
        adapted[key] = tensor + b @ a
    out = convert_pairing(factors, source, to)
    wanted, plain = convert_pairing(adapted, source, to), convert_pairing(base, source, to)
    n_moved, touched = 0, {name.replace(".lora_A", "") for name in factors}
    for key in (key for key in factors if key.endswith("lora_A.weight")):
        assert (out[key] is factors[key]) == ("o_proj" not in key)
        stem = key.removesuffix(".lora_A.weight")
        weight = stem.removeprefix("base_model.model.") + ".weight"
        b = out[f"{stem}.lora_B.default.weight"]
        torch.testing.assert_close(plain[weight] + b @ out[key], wanted[weight])
        torch.testing.assert_close(out[f"{stem}.lora_magnitude_vector"], plain[weight].norm(dim=1))
        n_moved += b is not factors[f"{stem}.lora_B.default.weight"] or out[key] is not factors[key]
    assert n_moved == sum(
        not torch.equal(plain[key], base[key]) for key in base if f"base_model.model.{key}" in touched
    )
    with_base = {f"base_model.model.{key}": tensor for key, tensor in base.items()} | factors
    assert torch.equal(convert_pairing(with_base, source, to)[f"{stem}.lora_B.default.weight"], b)


def chatglm(rows):  # ChatGLM2 and later: all queries, then the keys and the values of each group
    return rows[:4].unbind(0), rows[4:6].unbind(0)


def internlm2(rows):  # for each key: its queries, it, and its value
    return (rows[0], rows[1], rows[4], rows[5]), (rows[2], rows[6])


def qwen(rows):  # all queries, all keys, all values
    return rows[:4].unbind(0), rows[4:8].unbind(0)


REMOTE = {
    "chatglm": (
        {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 8, "num_layers": 1},
        "transformer.encoder.layers.0.self_attention.query_key_value", chatglm, 8, "interleaved", 4,
    ),
    "internlm2": (
        {"num_key_value_heads": 2, "num_hidden_layers": 1}, "model.layers.0.attention.wqkv", internlm2, 8, "half", 8,
    ),
    "qwen": ({"kv_channels": 8, "num_hidden_layers": 1}, "transformer.h.0.attn.c_attn", qwen, 12, "half", 8),
}  # fmt: skip


@pytest.mark.parametrize("model_type", REMOTE)
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_scores_of_types_with_code_of_their_own_stay(model_type, part):
    fields, path, split, n_rows, of, n_turning = REMOTE[model_type]
    to = {"half": "interleaved", "interleaved": "half"}[of]
    config = {"model_type": model_type, "hidden_size": 32, "num_attention_heads": 4} | fields
    fused = torch.randn((8 * n_rows, 5)[: 2 if part == "weight" else 1], dtype=torch.float64)
    angles = torch.arange(7.0)[:, None].double() * torch.tensor([1.0, 0.3, 0.1, 0.03])[: n_turning // 2]

    def scores(tensor, pairing):
        heads = (
            (tensor @ torch.arange(1.0, 6.0).double() if part == "weight" else tensor)
            .view(n_rows, 1, 8)
            .expand(-1, 7, -1)
        )
        queries, keys = (
            [
                torch.cat((turned(h[:, :n_turning], angles.cos(), angles.sin(), pairing), h[:, n_turning:]), -1)
                for h in one
            ]
            for one in split(heads)
        )
        return torch.stack([q @ k.T for q in queries for k in keys])

    out = convert_pairing({f"{path}.{part}": fused}, config, to)[f"{path}.{part}"]
    torch.testing.assert_close(scores(out, to), scores(fused, of))
    assert not torch.allclose(scores(fused, to), scores(fused, of))
    values = (fused - out).view(n_rows, 8, -1).abs().amax((1, 2)) == 0
    assert values.sum() == n_rows - sum(map(len, split(torch.arange(n_rows))))  # values stay


def test_layers_for_several_tokens_turn_like_the_others():
    deepseek = configuration("deepseek_v3", head_dim=OWN, num_key_value_heads=4)
    given = weights(build(deepseek))
    given |= {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in given.items()}
    out = convert_pairing(given, deepseek.to_dict(), "half")
    name = "model.layers.3.self_attn.q_b_proj.weight"
    assert torch.equal(out[name], out[name.replace("3", "2")])
    assert not torch.equal(out[name], given[name])
    mixed = {"layer_types": ["linear_attention", "full_attention", "full_attention"]}
    qwen3_next = configuration("qwen3_next", **mixed)
    given = weights(build(qwen3_next))
    apart = {name.replace("model.layers.2", "mtp.layers.0"): t for name, t in given.items() if "layers.2.self" in name}
    out = convert_pairing(given | apart, qwen3_next.to_dict(), "interleaved")
    assert all(torch.equal(out[name], out[name.replace("mtp.layers.0", "model.layers.2")]) for name in apart)
    smollm3 = configuration("smollm3", no_rope_layers=[1, 0, 1])
    behind = {"model.layers.3.self_attn.q_proj.bias": torch.zeros(32)}
    with pytest.raises(ValueError, match="is of a layer after the last, and the layers of this model differ"):
        convert_pairing(weights(build(smollm3)) | behind, smollm3.to_dict(), "interleaved")


def test_towers_stay_and_the_text_turns():
    config = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}}
    tower = torch.randn(12, 12)
    given = {f"language_model.{name}": tensor for name, tensor in llama().items()}
    given["vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight"] = tower
    given["model.visual.blocks.0.attn.qkv.weight"] = tower
    out = convert_pairing(given, config, "interleaved")
    kept = [name for name in given if out[name] is given[name]]
    assert kept == list(given)[2:]


def test_a_model_with_towers_and_factors_by_name():
    # too large to run: its language model is Phi-3's, and here its names are read
    config = configuration("phi4_multimodal")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    given = model.state_dict()
    factors = "model.layers.1.self_attn.qkv_proj"
    given |= {
        f"{factors}.lora_A.vision.weight": torch.empty(2, 32, device="meta"),
        f"{factors}.lora_B.vision.weight": torch.empty(64, 2, device="meta"),
    }
    out = convert_pairing(given, config.to_dict(), "interleaved")
    moved = {name for name in given if out[name] is not given[name]}
    assert moved == {f"model.layers.{i}.self_attn.qkv_proj.weight" for i in range(3)} | {
        f"{factors}.lora_B.vision.weight"
    }


def test_a_type_nobody_knows_needs_its_pairing_and_plain_names():
    config = LLAMA | {"model_type": "brandnew"}
    with pytest.raises(ValueError, match="model_type must be one of"):
        convert_pairing(llama(), config, "interleaved")
    out = convert_pairing(llama(), config, "interleaved", of="half")
    assert out[f"{ATTENTION}.k_proj.weight"][:, 0].tolist() == HALF_TO_INTERLEAVED
    with pytest.raises(ValueError, match="do not match the layout of brandnew"):
        convert_pairing(renamed(q_proj="query"), config, "interleaved", of="half")


def test_the_last_lanes_turn_where_compressed_ones_do_not():
    latent = {"qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "kv_lora_rank": 3}
    given = {
        f"{ATTENTION}.q_proj.weight": torch.arange(12.0)[:, None].repeat(1, 5),
        f"{ATTENTION}.kv_a_proj_with_mqa.weight": torch.arange(7.0)[:, None].repeat(1, 5),
        f"{ATTENTION}.q_norm.weight": torch.arange(6.0),
    }
    out = convert_pairing(given, LLAMA | latent | {"model_type": "brandnew"}, "half", of="interleaved")
    queries, keys, norm = (tensor.reshape(len(tensor), -1)[:, 0].tolist() for tensor in out.values())
    assert queries == [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]
    assert keys == [0, 1, 2, 3, 5, 4, 6]
    assert norm == [0, 1, 2, 4, 3, 5]
