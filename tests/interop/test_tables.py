"""Tables of published models: what is loaded from their checkpoints is what the models compute."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import posenc
from posenc import positions
from posenc.interop import load_tables
from strategies import refuses

pytest.importorskip("transformers")

from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomModel,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2Model,
    MT5Config,
    MT5Model,
    SwinConfig,
    SwinForImageClassification,
    SwinModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5Model,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

T5S = {"d_model": 16, "d_kv": 4, "num_heads": 3, "d_ff": 8, "num_layers": 2, "num_decoder_layers": 3, "vocab_size": 9}
T5S |= {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 40}
SWIN = {"image_size": 32, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
BLOOM = {"vocab_size": 9, "hidden_size": 24, "n_layer": 2, "n_head": 6}
DEBERTA = {"vocab_size": 9, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
DEBERTA |= {"intermediate_size": 8, "relative_attention": True, "max_position_embeddings": 24}
DEBERTA |= {"pos_att_type": "p2c|c2p", "position_biased_input": False}
LENGTH = 50


def written(model, path, **options):
    """Draw all weights anew, so that none is at its start, and save the model."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.eval().save_pretrained(path, **options)
    return model


def t5_bias(attention):
    with torch.no_grad():
        return attention.compute_bias(LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("cls", "config"), [(T5ForConditionalGeneration, T5Config(**T5S)), (MT5Model, MT5Config(**T5S))]
)
def test_t5(cls, config, tmp_path):
    model = written(cls(config), tmp_path)
    loaded = load_tables(tmp_path)
    assert list(loaded) == [
        *(f"encoder.block.{i}.layer.0.SelfAttention" for i in range(2)),
        *(f"decoder.block.{i}.layer.0.SelfAttention" for i in range(3)),
    ]
    for stack in ("encoder", "decoder"):
        wanted = t5_bias(getattr(model, stack).block[0].layer[0].SelfAttention)
        of_stack = [encoding for name, encoding in loaded.items() if name.startswith(stack)]
        assert len({id(encoding) for encoding in of_stack}) == 1
        assert of_stack[0].score_scale(4) == 1.0
        assert torch.equal(of_stack[0].dense(torch.arange(LENGTH)), wanted)
    assert not torch.equal(loaded["encoder.block.0.layer.0.SelfAttention"].weight, of_stack[0].weight)


def test_t5_without_a_decoder(tmp_path):
    written(T5EncoderModel(T5Config(**T5S)), tmp_path)
    assert set(load_tables(tmp_path)) == {f"encoder.block.{i}.layer.0.SelfAttention" for i in range(2)}


def test_umt5_has_a_table_in_each_layer(tmp_path):
    model = written(UMT5Model(UMT5Config(**T5S)), tmp_path)
    loaded = load_tables(tmp_path)
    for name, encoding in loaded.items():
        assert torch.equal(encoding.dense(torch.arange(LENGTH)), t5_bias(model.get_submodule(name)))
    assert len(loaded) == 5
    assert len({id(encoding) for encoding in loaded.values()}) == 5


@pytest.mark.parametrize(("cls", "prefix"), [(SwinModel, ""), (SwinForImageClassification, "swin.")])
def test_swin(cls, prefix, tmp_path):
    model = written(cls(SwinConfig(**SWIN)), tmp_path)
    loaded, places = load_tables(tmp_path), [(0, 0), (1, 0), (1, 1)]
    assert list(loaded) == [f"{prefix}encoder.layers.{s}.blocks.{b}.attention.self" for s, b in places]
    biases = [m for m in model.modules() if type(m).__name__ == "SwinRelativePositionBias"]
    for encoding, bias in zip(loaded.values(), biases, strict=True):
        assert torch.equal(encoding.dense(positions.grid(4, 4)), bias())


@pytest.mark.parametrize(("cls", "prefix"), [(BloomModel, ""), (BloomForCausalLM, "transformer.")])
@pytest.mark.parametrize("n_heads", [6, 8])
def test_bloom(cls, prefix, n_heads, tmp_path):
    written(cls(BloomConfig(**BLOOM | {"n_head": n_heads})), tmp_path)
    loaded = load_tables(tmp_path)
    assert list(loaded) == [f"{prefix}h.{i}.self_attention" for i in range(2)]
    assert len({id(encoding) for encoding in loaded.values()}) == 1
    of_keys = build_alibi_tensor(torch.ones(1, 9, dtype=torch.int64), n_heads, torch.float32)[:, 0]
    bias = loaded[f"{prefix}h.0.self_attention"].dense(torch.arange(9), causal=True)[0]
    wanted = of_keys[:, None].expand_as(bias).masked_fill(bias.isinf(), -torch.inf)
    torch.testing.assert_close(bias.softmax(-1), wanted.softmax(-1))  # theirs differ by a number a row


CHANGES = {
    "version 3": {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "own projections": {"position_buckets": 8, "share_att_key": False},
    "one product": {"position_buckets": 6, "share_att_key": True, "pos_att_type": ["c2p"]},
    "the other": {"position_buckets": 6, "share_att_key": False, "pos_att_type": "p2c"},
    "no buckets": {"share_att_key": True},
    "a shorter reach": {"share_att_key": True, "max_relative_positions": 9},
}


@pytest.mark.parametrize("cls", [DebertaV2Model, DebertaV2ForMaskedLM])
@pytest.mark.parametrize("change", CHANGES)
def test_deberta(cls, change, tmp_path):
    model = written(cls(DebertaV2Config(**DEBERTA | CHANGES[change])), tmp_path)
    loaded = load_tables(tmp_path)
    encoder = next(m for m in model.modules() if type(m).__name__ == "DebertaV2Encoder")
    assert len(loaded) == 2
    for name, encoding in loaded.items():
        theirs = model.get_submodule(name)
        q, k = torch.randn(3, LENGTH, 8), torch.randn(3, LENGTH, 8)
        with torch.no_grad():
            wanted = theirs.disentangled_attention_bias(
                q, k, encoder.get_rel_pos(q[:1]), encoder.get_rel_embedding(), 1 + len(encoding.terms)
            )
            placed = encoding.place(torch.arange(LENGTH))
            got = encoding.bias(q[None], k[None], placed, placed)[0]
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        assert encoding.score_scale(8) == pytest.approx((8 * (1 + len(encoding.terms))) ** -0.5)


def test_shards_and_half_precision(tmp_path):
    model = written(SwinModel(SwinConfig(**SWIN)).bfloat16(), tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = load_tables(tmp_path)
    biases = [m for m in model.modules() if type(m).__name__ == "SwinRelativePositionBias"]
    for encoding, bias in zip(loaded.values(), biases, strict=True):
        assert encoding.weight.dtype == torch.bfloat16
        assert torch.equal(encoding.dense(positions.grid(4, 4)), bias().float())


def test_one_file_beside_its_configuration(tmp_path):
    written(SwinModel(SwinConfig(**SWIN)), tmp_path)
    whole = load_tables(str(tmp_path))
    assert list(load_tables(tmp_path / "model.safetensors")) == list(whole)


def test_what_is_loaded_learns(tmp_path):
    written(SwinModel(SwinConfig(**SWIN)), tmp_path)
    encoding = next(iter(load_tables(tmp_path).values()))
    encoding.dense(positions.grid(4, 4)).sum().backward()
    assert encoding.weight.grad.sum() == 2 * 16 * 16


@pytest.fixture(scope="module")
def swin(tmp_path_factory):
    path = tmp_path_factory.mktemp("swin")
    written(SwinModel(SwinConfig(**SWIN)), path)
    return path


TABLE = "encoder.layers.1.blocks.1.attention.self.relative_position_bias_table"


def changed(swin, path, fields=(), drop=(), **tensors):
    """Write the checkpoint with other fields and tensors."""
    config = json.loads((swin / "config.json").read_text()) | dict(fields)
    (path / "config.json").write_text(json.dumps(config))
    held = {name: t for name, t in load_file(swin / "model.safetensors").items() if name not in drop}
    save_file(held | tensors, path / "model.safetensors")
    return path


REFUSED = {
    "another type": ({"fields": {"model_type": "llama"}}, "reads the tables of t5, mt5", "got model_type='llama'"),
    "no type": ({"fields": {"model_type": None}}, "got model_type=None"),
    "a list for a type": ({"fields": {"model_type": ["swin"]}}, "got model_type=list of 1 entries"),
    "a tensor is missing": ({"drop": [TABLE]}, f"{TABLE[:40]}", "is missing"),
    "another window": ({"fields": {"window_size": 5}}, "must be a floating tensor of shape (81, 2)", "got F32 (49, 2)"),
    "two models": (
        {f"teacher.{TABLE.replace('1.blocks.1', '0.blocks.0')}": torch.zeros(49, 2)},
        "the checkpoint must have one such table",
    ),
    "whole numbers": ({TABLE: torch.zeros(49, 4, dtype=torch.int64)}, "must be a floating tensor", "got I64"),
    "NaN": ({TABLE: torch.full((49, 4), torch.nan)}, "must be finite"),
    "more layers": ({"fields": {"depths": [2, 2]}}, "is missing"),
}
SETTINGS = {
    "a huge window": ({"window_size": 10**9}, ValueError, "window_size must be from 1 to 256"),
    "no window": (
        {"window_size": None},
        ValueError,
        "window_size is missing, and the position encoding",
        "Add window_size",
    ),
    "a window in words": ({"window_size": "7"}, TypeError, "window_size must be an integer"),
    "no list": ({"depths": 3}, TypeError, "depths must be a list"),
    "no depths": (
        {"depths": [1]},
        ValueError,
        "depths and num_heads must both have one entry for each stage",
        "got 1 and 2",
    ),
    "endless layers": ({"depths": [1, 10**9]}, ValueError, "depths[1] must be from 1 to 10000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses_in_one_sentence(case, swin, tmp_path):
    given, *said = REFUSED[case]
    with refuses(ValueError, "load_tables: ", *said):
        load_tables(changed(swin, tmp_path, **given))


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_no_model_can_have_are_refused(case, swin, tmp_path):
    fields, kind, *said = SETTINGS[case]
    with refuses(kind, "config: ", *said):
        load_tables(changed(swin, tmp_path, fields))


def test_a_model_without_the_table_is_refused(swin, tmp_path):
    (tmp_path / "config.json").write_text((swin / "config.json").read_text())
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with refuses(ValueError, "load_tables: ", "has no table of swin"):
        load_tables(tmp_path)


def test_a_truncated_file_is_refused(swin, tmp_path):
    path = changed(swin, tmp_path)
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:-7])
    with refuses(ValueError, "load_tables: 'model.safetensors' is damaged or not a safetensors"):
        load_tables(path)


class Trap:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


def test_pickles_are_not_opened(swin, tmp_path):
    (tmp_path / "config.json").write_text((swin / "config.json").read_text())
    torch.save({"x": Trap()}, tmp_path / "pytorch_model.bin")
    with refuses(ValueError, "load_tables: weights must be in safetensors; got 'pytorch_model.bin', which may be"):
        load_tables(tmp_path)
    with refuses(ValueError, "load_tables: the checkpoint must be a directory or a file in safetensors"):
        load_tables(tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "pytorch_model.bin").read_bytes())
    with refuses(ValueError, "load_tables: 'model.safetensors' is damaged or not a safetensors"):
        load_tables(tmp_path)


def test_nothing_there_is_refused(swin, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*config\.json"):
        load_tables(tmp_path)
    (tmp_path / "config.json").write_text((swin / "config.json").read_text())
    with refuses(ValueError, "load_tables: ", "got 'other.safetensors'"):
        load_tables(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("given", "terms"), [("p2c|c2p", ("c2p", "p2c")), ("c2p", ("c2p",)), (["P2C", "c2c"], ("p2c",))]
)
def test_debertas_products_in_either_spelling(given, terms, tmp_path):
    """Published configurations have the words in one string, and newer ones in a list."""
    written(DebertaV2Model(DebertaV2Config(**DEBERTA | CHANGES["version 3"])), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"pos_att_type": given}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert {encoding.terms for encoding in load_tables(tmp_path).values()} == {terms}


@pytest.mark.parametrize(("given", "said"), [("c2c", "'c2c'"), ([], "list of 0 entries")])
def test_deberta_without_a_product_is_refused(given, said, tmp_path):
    written(DebertaV2Model(DebertaV2Config(**DEBERTA | CHANGES["version 3"])), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"pos_att_type": given}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with refuses(ValueError, "load_tables: layers have a table only if", f"pos_att_type={said}. Correct the file"):
        load_tables(tmp_path)


def test_each_layer_gets_its_own_in_a_stack(tmp_path):
    """What is returned makes a `PerLayer`, which holds a shared table once."""
    written(T5EncoderModel(T5Config(**T5S)), tmp_path)
    layers = posenc.PerLayer(list(load_tables(tmp_path).values()))
    assert len(layers) == 2
    assert sum(p.numel() for p in layers.parameters()) == 12 * 3
