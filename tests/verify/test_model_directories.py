"""Directories that `verify-model` opens: weights are loaded or left out, and what is unsafe is refused by name."""

import json
import os
import re
import sys

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file, save_file

from posenc.interop import convert_checkpoint
from posenc.verify import models
from posenc.verify.models import loading
from small_models import build, small
from strategies import refuses


def test_files_marked_with_another_pairing_are_named(tmp_path):
    config = small("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "half")
    convert_checkpoint(tmp_path / "half", tmp_path / "interleaved", to="interleaved")
    assert models.verify_model(tmp_path / "half").status == "pass"
    found = models.verify_model(tmp_path / "interleaved")
    assert [cause.code for cause in found.causes] == ["model.rotation.pairing"]
    assert "marked with the pairing interleaved, but transformers rotates llama by half" in found.causes[0].message


def saved(folder):
    build(small("llama")).save_pretrained(folder)


def test_weights_are_loaded_and_no_code_that_comes_with_them(tmp_path, monkeypatch):
    saved(tmp_path)
    for name in ("modeling_llama.py", "configuration_llama.py"):
        (tmp_path / name).write_text("raise SystemExit('it ran')")
    before = {*sys.modules}
    report = models.verify_model(tmp_path)
    assert (report.status, report.measured["weights"], report.measured["weights_because"]) == ("pass", "loaded", "")
    assert not [name for name in {*sys.modules} - before if "transformers_modules" in name]
    report = models.verify_model(str(tmp_path), small=True)
    assert (report.status, report.measured["weights"]) == ("pass", "random")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter" in models.verify_model(tmp_path).measured["weights_because"]
    monkeypatch.setattr(loading, "LARGE", 1000)
    assert "over" in models.verify_model(tmp_path).measured["weights_because"]


UMT5 = {"model_type": "umt5", "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}
BERT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MARIAN = {"vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64}
MARIAN |= {"decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 95}


def without(folder, config, gone, model_type=""):
    """Save a model, remove the tensors whose name contains a word, and load the rest as a model of a type."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    kept = {name: t for name, t in load_file(folder / "model.safetensors").items() if not re.search(gone, name)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | ({"model_type": model_type} if model_type else {})))
    return models.verify_model(folder)


def test_tables_of_positions_that_the_files_lack_are_a_fault(tmp_path):
    umt5 = transformers.UMT5Config(**UMT5)
    assert without(tmp_path / "whole", umt5, "nothing").status == "pass"
    report = without(tmp_path / "first", umt5, r"block\.[12].*relative_attention_bias")
    assert (report.status, report.causes[0].code) == ("fail", "model.weights.positions_missing")
    assert "the files lack 4 tensors (decoder.block.1.layer.0.SelfAttention.rel" in report.causes[0].message
    report = without(tmp_path / "bert", transformers.BertConfig(**BERT), "position_embeddings")
    assert "the files lack 1 tensor (embeddings.position_embeddings.weight)" in report.causes[0].message


def test_other_tensors_that_only_one_side_has_are_not_judged(tmp_path):
    report = without(tmp_path / "pooler", transformers.BertConfig(**BERT), "pooler")
    left = "weights that the files lack, which transformers initialises: 2 tensors (pooler.dense.bias, pooler.dense"
    assert (report.causes, left in " ".join(report.not_judged)) == ((), True)
    report = without(tmp_path / "t5", transformers.UMT5Config(**UMT5), "nothing", "t5")
    assert "tensors of positions in the files that the model does not have: 4 tensors" in " ".join(report.not_judged)
    report = without(tmp_path / "computed", transformers.MarianConfig(**MARIAN), "embed_positions")
    assert report.causes == ()


# as files in the hub have them, with sizes that are not small
LARGE = {
    "gemma3": {"text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
               | {"intermediate_size": 10240, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
               | {"sliding_window": 1024, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
               | {"max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4}},
    "deepseek_v3": {"hidden_size": 7168, "num_hidden_layers": 8, "num_attention_heads": 128, "n_routed_experts": 256}
    | {"num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "n_group": 8}
    | {"qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048}
    | {"num_experts_per_tok": 8, "topk_group": 4, "first_k_dense_replace": 3, "max_position_embeddings": 163840}
    | {"vocab_size": 129280, "rope_theta": 1e4, "rope_interleave": True}
    | {"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
       | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_models_are_built_small_from_their_configuration(tmp_path, name):
    fields = {"model_type": name, **LARGE[name]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    report = models.verify_model(tmp_path)
    assert (report.status, report.causes) == ("pass", ()), report
    measured = report.measured
    assert (measured["weights"], measured["weights_because"]) == ("random", "there are no weights")
    assert len(measured["layers"]) == fields.get("text_config", fields)["num_hidden_layers"]
    assert measured["longest_position"] > 2000


def write(folder, **fields):
    (folder / "config.json").write_text(json.dumps(small("llama").to_dict() | fields))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda at: write(at, auto_map={"AutoModel": "evil.Model"}), "config.json has auto_map"),
        (lambda at: write(at, text_config={"auto_map": {"AutoModel": "o/r--e.M"}}), "config.json has auto_map"),
        (
            lambda at: (write(at), (at / "pytorch_model.bin").write_bytes(b"x")),
            "pytorch_model.bin', which may be pickled",
        ),
        (lambda at: (write(at), (at / "model.safetensors").write_bytes(b"x" * 99)), "model.safetensors"),
        (lambda at: (at / "config.json").write_text("{"), "is not JSON"),
        (lambda at: None, "contains no config.json"),
    ],
)
def test_unsafe_or_damaged_directories_are_refused_by_name(tmp_path, prepare, words):
    prepare(tmp_path)
    with refuses(ValueError, "verify-model: ", words):
        models.verify_model(tmp_path)


def test_nothing_is_asked_of_the_hub(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with loading.apart():
        assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("1", True)
    assert ("HF_HUB_OFFLINE" in os.environ, constants.HF_HUB_OFFLINE) == (False, False)
    write(tmp_path, _attn_implementation="evil/kernel", attn_implementation="evil/kernel", transformers_weights="/x")
    assert models.verify_model(tmp_path).status == "pass"


def test_types_that_are_not_known_cannot_be_told(tmp_path):
    write(tmp_path, model_type="brandnew")
    report = models.verify_model(tmp_path)
    assert (report.status, "brandnew" in report.because) == ("cannot_tell", True)
