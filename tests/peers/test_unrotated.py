"""What configurations of models that do not rotate say, held against the models that transformers builds of them."""

import json

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from transformers.models.clvp.modeling_clvp import ClvpDecoder
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding

import posenc
from interop.hf_models import bloom, deberta, falcon, mpt, switch, t5, umt5
from posenc import positions
from posenc.cli import run
from posenc.config import unrotated
from posenc.config.model import open_model
from posenc.inspection import inspect
from posenc.interop.hf.tables import plain
from strategies import refuses

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
GPT2 = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 20}
TEXT = {"max_position_embeddings": 20}
LEARNED = {
    "gpt2": GPT2,
    "openai-gpt": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neo": {"vocab_size": 50, "hidden_size": 24, "num_layers": 2, "num_heads": 4, **TEXT,
                "attention_types": [[["global"], 2]]},
    "bert": SMALL | TEXT,
    "electra": SMALL | TEXT | {"embedding_size": 12},
    "distilbert": {"vocab_size": 50, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 16, **TEXT},
    "albert": SMALL | TEXT | {"embedding_size": 12},
    "clip_text_model": SMALL | TEXT,
    "roberta": SMALL | TEXT,
    "xlm-roberta": SMALL | TEXT,
    "camembert": SMALL | TEXT,
    "biogpt": SMALL | TEXT,
    "opt": SMALL | TEXT | {"ffn_dim": 16, "word_embed_proj_dim": 24},
    "clvp_decoder": SMALL | TEXT,
}  # fmt: skip
DEBERTA = SMALL | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p|p2c"}
INKLING = SMALL | {"model_type": "inkling_text"}
PICTURES = {kind: SMALL | {"image_size": 32, "patch_size": 8} for kind in ("vit", "deit")}


def config_of(kind, fields):
    return transformers.AutoConfig.for_model(kind, **fields)


def encodings(config):
    return posenc.PerLayer.from_config(plain(config))


@pytest.mark.parametrize("kind", LEARNED)
def test_a_learned_table_has_their_rows_and_their_first_row(kind):
    config = config_of(kind, LEARNED[kind])
    model = (ClvpDecoder(config) if kind == "clvp_decoder" else transformers.AutoModel.from_config(config)).eval()
    (table,) = [m for name, m in model.named_modules()
                if isinstance(m, torch.nn.Embedding) and ("position" in name or name.endswith("wpe"))]  # fmt: skip
    seen = []
    table.register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        model(input_ids=torch.full((1, 5), 7))
    ours = encodings(config)
    first, rest = ours.distinct[ours.index[0]], ours.index[1:]
    assert {ours.distinct[i].name for i in rest} == {"NoPE"}
    assert (first.name, len(ours)) == ("Learned", 2)
    assert first.weight.shape == table.weight.shape
    with torch.no_grad():
        first.weight.copy_(table.weight)
        torch.testing.assert_close(first.vectors(torch.arange(5)), seen[0].reshape(-1, first.d_model)[-5:])


def test_each_layer_of_a_kind_that_has_one_has_its_own_table():
    swin = config_of(
        "swin", {"image_size": 32, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4, "embed_dim": 8}
    )
    ours, model = encodings(swin), transformers.AutoModel.from_config(swin)
    tables = [p for name, p in model.named_parameters() if name.endswith("relative_position_bias_table")]
    assert [ours.distinct[i].weight.shape for i in ours.index] == [table.shape for table in tables]
    assert len(ours.distinct) == 3
    of = {"umt5": umt5, "t5": t5, "deberta": deberta}
    assert {kind: len(encodings(build().config).distinct) for kind, build in of.items()} == {
        "umt5": 4,
        "t5": 2,
        "deberta": 3,
    }


@pytest.mark.parametrize("scaled", [{}, {"rope_theta": 500.0}])
def test_dinov3_turns_by_the_place_in_the_picture(scaled):
    config = config_of("dinov3_vit", SMALL | {"hidden_size": 32, "patch_size": 4} | scaled)
    (ours,) = encodings(config).distinct
    theirs = DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 20, 28))
    assert_turns(ours, positions.unit_grid(5, 7), theirs)


@pytest.mark.parametrize("scaled", [{}, {"rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}}])
def test_pixtral_turns_by_rows_and_columns(scaled):
    config = config_of("pixtral", SMALL | {"hidden_size": 32, "image_size": 28, "patch_size": 4} | scaled)
    grid = positions.grid(5, 7)
    theirs = PixtralVisionRotaryEmbedding(config)(torch.zeros(1), grid)
    assert_turns(encodings(config).distinct[0], grid, theirs)


def assert_turns(encoding, pos, theirs):
    cos, sin = encoding.place(pos).parts
    for mine, wanted in zip((cos, sin), theirs, strict=True):
        torch.testing.assert_close(torch.cat((mine, mine), -1), wanted.reshape(len(pos), -1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_has_a_row_for_each_patch_and_for_the_tokens_before(kind):
    config = config_of(kind, PICTURES[kind])
    table = transformers.AutoModel.from_config(config).embeddings.position_embeddings
    assert encodings(config).distinct[0].weight.shape == table.shape[1:]


@pytest.mark.parametrize("products", [None, [], "c2c"])
def test_deberta_without_products_has_no_positions_in_its_layers(products):
    (ours,) = posenc.PerLayer.from_config(DEBERTA | {"pos_att_type": products}).distinct
    assert ours.name == "NoPE"


@pytest.mark.parametrize("kind", ["jamba", "mamba", "mamba2", "falcon_mamba"])
def test_models_without_positions_have_none(kind):
    ours = encodings(config_of(kind, {"num_hidden_layers": 3}))
    assert [type(e).__name__ for e in ours.distinct] == ["NoPE"]
    assert len(ours) == 3


@pytest.mark.parametrize("build", [t5, umt5, switch])
def test_buckets_of_t5(build):
    model = build()
    ours = encodings(model.config)
    assert len(ours) == 4
    for index, stack in ((0, model.encoder), (2, model.decoder)):
        attention, encoding = stack.block[0].layer[0].SelfAttention, ours.distinct[ours.index[index]]
        with torch.no_grad():
            encoding.weight.copy_(attention.relative_attention_bias.weight)
            wanted = attention.compute_bias(30, 30)
            torch.testing.assert_close(encoding.dense(torch.arange(30)), wanted, rtol=0, atol=1e-6)
        assert encoding.score_scale(6) == 1.0


@pytest.mark.parametrize("build", [bloom, mpt, falcon, deberta])
def test_biases_are_those_that_a_used_model_runs(build):
    model = build()
    ours = encodings(model.config)
    assert f"of {len(ours)} layers by {ours.distinct[0].name}({ours.distinct[0].extra_repr()})" in str(
        posenc.hf.report(posenc.hf.use(model))
    )


@pytest.mark.parametrize("kind", unrotated.KINDS)
def test_each_type_is_named_and_has_no_pairing(kind):
    said = f"{kind} does not rotate by one position, so it has no pairing of dimensions; positions enter by "
    with refuses(ValueError, said + unrotated.KINDS[kind].means):
        posenc.RoPE.from_config({"model_type": kind, "head_dim": 8, "alibi": True}, pairing="half")


def test_types_that_turn_are_left():
    assert unrotated.ways(open_model({"model_type": "falcon", "alibi": False})) is None
    assert unrotated.ways(open_model({"model_type": "llama"})) is None


def test_the_commands_say_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(dict(plain(config_of("bloom", {"n_layer": 2, "n_head": 4})))))
    assert inspect(tmp_path)["layers"][0]["encoding"] == "alibi"
    assert run(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == "layers, 2 layers: alibi(n_heads=4)"
    assert run(["verify-config", str(tmp_path), "--pairing", "half"]) == 0
    assert "half" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"model_type": "bloom", "n_layer": 2}, ValueError, "num_attention_heads is missing"),
        ({"model_type": "bloom", "n_layer": 2, "n_head": "4"}, TypeError, "n_head"),
        (DEBERTA | {"max_relative_positions": "16"}, TypeError, "max_relative_positions"),
        (DEBERTA | {"position_buckets": []}, TypeError, "position_buckets"),
        (DEBERTA | {"pos_att_type": 7}, TypeError, "pos_att_type"),
        ({"model_type": "t5", "num_layers": 2, "num_heads": 0}, ValueError, "num_heads"),
        ({"model_type": "gpt2", "n_layer": 10**9, "n_embd": 8, "n_positions": 8}, ValueError, "n_layer"),
        (
            {"model_type": "gpt2", "n_layer": 2, "n_embd": 1 << 20, "n_positions": 1 << 20},
            ValueError,
            "tables of learned",
        ),
        (INKLING | {"hidden_size": 1 << 24}, ValueError, "tables of inkling must have at most"),
        (INKLING | {"rel_extent": 1 << 24, "d_rel": 1 << 10}, ValueError, "tables of inkling must have at most"),
        (INKLING | {"layer_types": ["hybrid"]}, ValueError, "layer_types must have hybrid or hybrid_sliding"),
        (INKLING | {"layer_types": ["hybrid", []]}, ValueError, "layer_types must have hybrid or hybrid_sliding"),
        (INKLING | {"log_scaling_n_floor": "9"}, TypeError, "log_scaling_n_floor"),
        (
            DEBERTA | {"max_position_embeddings": 1 << 24},
            ValueError,
            "tables of deberta must have at most 1,073,741,824",
        ),
    ],
)
def test_bad_sizes_are_refused(fields, kind, words):
    with refuses(kind, words):
        posenc.PerLayer.from_config(fields)
