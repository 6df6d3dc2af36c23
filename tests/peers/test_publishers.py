"""Files as their publishers spell them: transformers' classes convert them, and their modules have the frequencies."""

import copy

import pytest

pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from peers.config_peers import STILL, agree, embedding
from posenc import config, frequencies
from published_sources import ALIKE, APART, RIGHT, SLIDING

FILES = RIGHT | ALIKE | {name: fields for name, (fields, _) in APART.items()}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_layer_is_that_of_their_class(name):
    fields = copy.deepcopy(FILES[name])
    theirs = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    theirs = getattr(theirs, "text_config", None) or theirs
    listed = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
    assert config.layer_types(FILES[name]) == {kind: listed.count(kind) for kind in dict.fromkeys(listed)}
    for kind in set(listed) - STILL:
        label = kind if "main" not in theirs.rope_parameters else "main" if kind == SLIDING else "compress"
        agree(frequencies.from_config(FILES[name], kind), *embedding(theirs, label))
