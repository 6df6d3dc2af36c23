"""Which keys about positions a type reads: compared with what transformers' configuration classes make of them."""

import copy
import json

import pytest

pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from peers.config_peers import MAPPED
from posenc.config import models, reads
from posenc.config.defaults import DEFAULTS
from posenc.verify.configs import judge
from small_models import finite

# whose code asks the field itself and not the parameters; or whose class wants another value than the one below
APART = {"codegen", "gptj", "roformer", "esm", "neomme", "ultrabert", "step3p5"}
# which fill in parameters of their own where a file has none; a base next to them is then not read
FILLED = set(DEFAULTS)
NUMBERS = {**dict.fromkeys(reads.BASES + reads.LOCAL_BASES, 12345.0), **dict.fromkeys(reads.SHARES, 0.3125)}


def parameters(name, **fields):
    found = getattr(CONFIG_MAPPING[name](**copy.deepcopy(fields)), "rope_parameters", None)
    return json.dumps(finite(found), sort_keys=True)


@pytest.mark.sample(40)
@pytest.mark.parametrize("name", [name for name in MAPPED if name not in APART | FILLED])
def test_a_number_is_read_where_theirs_reads_it(name):
    """A share may reach the parameters of a type whose code then rotates the whole head: that is `share_unread`."""
    bare, share = parameters(name), models.TYPES[name].reads_share
    theirs = {key for key, value in NUMBERS.items() if parameters(name, **{key: value}) != bare}
    ours = {*reads.base_keys(name, False, False), *reads.base_keys(name, True, False), *reads.share_keys(name, False)}
    if name == "deepseek_v4":
        ours |= {"rope_theta"}
    assert {key for key in theirs if share or key not in reads.SHARES} == {
        key for key in ours if share or key not in reads.SHARES
    }


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "gpt_neox", "gemma3_text", "olmo3", "modernbert"])
def test_one_object_for_all_kinds_of_layers(name):
    """A flat object reaches every place that is read, or it is noted."""
    flat = {"rope_type": "linear", "factor": 3.0, "rope_theta": 12345.0}
    try:
        theirs = CONFIG_MAPPING[name](rope_parameters=dict(flat)).rope_parameters
        kinds = [own for own in theirs.values() if isinstance(own, dict)]
        read = all(own.get("factor") == 3.0 for own in kinds)
    except Exception:  # of a class that refuses what it does not know
        read = False
    assert reads.spreads(name, "rope_parameters") == read


def test_an_entry_by_kind_is_lost_where_a_type_has_one_rotation():
    own = {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}}
    theirs = CONFIG_MAPPING["llama"](rope_parameters=copy.deepcopy(own)).rope_parameters
    assert (theirs["rope_type"], theirs["rope_theta"]) == ("default", 10000.0)
    fields = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    assert "unread" in {one.code for one in judge({**fields, "rope_parameters": own}).findings}


# of a default configuration, what was found before keys were gathered: none of it is about a key that is not read
KNOWN = {"theta_missing", "sections_misfit", "out_of_range", "unknown_type", "learned", "clockwise", "unscaled"}


@pytest.mark.sample(60)
@pytest.mark.parametrize("name", [name for name in CONFIG_MAPPING_NAMES if name not in ("timm_wrapper", "esm3")])
def test_no_key_of_a_default_configuration_is_noted(name):
    try:
        written = finite(CONFIG_MAPPING[name]().to_dict())
    except Exception:  # of a class that needs arguments, or packages that are not here
        return
    assert {one.code for one in judge(written).findings} <= KNOWN
