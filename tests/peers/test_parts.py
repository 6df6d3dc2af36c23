"""Configurations that hold others: which part is read, compared with the rotary modules that transformers builds."""

import json

import pytest

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posenc
from peers.config_peers import agree, embedding
from posenc import config, frequencies
from posenc.cli import run
from posenc.config.model import stacks
from posenc.inspection import inspect
from posenc.verify.configs import judge
from small_models import finite
from strategies import refuses

transformers.logging.set_verbosity_error()
# by type, where transformers has the part that is read
INSIDE = {
    "blt": "global_config",
    "colmodernvbert": "vlm_config.text_config",
    "colpali": "vlm_config.text_config",
    "colqwen2": "vlm_config.text_config",
    "pi0": "vlm_config.text_config",
}
STACKED = {
    "dia": ("encoder_config", "decoder_config"),
    "t5gemma": ("encoder", "decoder"),
    "t5gemma2": ("encoder.text_config", "decoder"),
}


def part(theirs, path):
    for key in path.split("."):
        theirs = getattr(theirs, key)
    return theirs


@pytest.mark.parametrize("name", INSIDE)
def test_the_part_with_the_text_is_read(name):
    whole = CONFIG_MAPPING[name]()
    theirs, written = part(whole, INSIDE[name]), finite(whole.to_dict())
    for kind, count in config.layer_types(written).items():
        assert count == (getattr(theirs, "layer_types", None) or [kind] * theirs.num_hidden_layers).count(kind)
        agree(frequencies.from_config(written, kind), *embedding(theirs, kind))
    assert len(posenc.PerLayer.from_config(written)) == theirs.num_hidden_layers
    assert judge(written).status == "pass"


@pytest.mark.parametrize("name", STACKED)
def test_an_encoder_and_a_decoder_are_read_one_after_the_other(name):
    whole = CONFIG_MAPPING[name]()
    written, layers = finite(whole.to_dict()), []
    for stack, path in zip(("encoder", "decoder"), STACKED[name], strict=True):
        theirs = part(whole, path)
        of_each = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
        layers += [(f"{stack} {kind}", kind, theirs) for kind in of_each]
    ours = posenc.PerLayer.from_config(written)
    assert len(ours) == len(layers)
    said = {row["kind"]: row for row in inspect(written)["layers"]}
    for i, (key, kind, theirs) in enumerate(layers):
        if layers.index((key, kind, theirs)) == i:
            agree(frequencies.from_config(finite(theirs.to_dict()), kind), *embedding(theirs, kind))
            assert said[key]["count"] == [one[0] for one in layers].count(key)
        assert said[key]["inv_freq"] == ours.distinct[ours.index[i]].frequencies().flatten().tolist()
    assert {f"{key}": row["count"] for key, row in said.items()} == judge(written).layers


def test_the_commands_say_it(tmp_path, capsys):
    CONFIG_MAPPING["t5gemma"]().save_pretrained(tmp_path)
    assert run(["inspect", str(tmp_path)]) == 0
    assert "decoder sliding_attention, 13 layers: rope" in capsys.readouterr().out
    assert run(["verify-config", str(tmp_path)]) == 0
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["decoder"]["rope_parameters"]["factor"] = 2.0
    fields["decoder"]["rope_parameters"]["rope_theta"] = 0.5
    (found,) = judge(fields).findings
    assert (found.key, found.layers) == ("decoder.rope_theta", ("decoder sliding_attention", "decoder full_attention"))
    with refuses(ValueError, "must be of one model; got 't5gemma' with parts 'decoder' ('t5_gemma", "['decoder']"):
        posenc.RoPE.from_config(tmp_path)


def test_parts_that_stand_for_none_of_them_are_named():
    written = finite(CONFIG_MAPPING["bark"]().to_dict())
    said = ("got 'bark' with parts 'semantic_config' ('semantic')", "such as posenc.config.read(source)['sema")
    for reader in (inspect, posenc.PerLayer.from_config, config.rotary, config.layer_types):
        with refuses(ValueError, "config: a configuration must be of one model; ", *said):
            reader(written)
    assert judge(written).status == "cannot_tell"
    assert all(word in judge(written).because for word in said)


def test_values_that_turn_as_well_are_refused():
    written = finite(CONFIG_MAPPING["clvp"]().to_dict())
    for reader in (inspect, posenc.PerLayer.from_config):
        with refuses(ValueError, "config: positions of clvp_encoder enter by a rotation of values as well"):
            reader(written)
    assert stacks(written).keys() == {""}
    assert judge(written).status == "cannot_tell"
