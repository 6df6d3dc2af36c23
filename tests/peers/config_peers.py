"""The frequencies of a configuration, by transformers' own modules and by the library."""

import importlib
import inspect

import numpy as np
import pytest
from transformers import modeling_rope_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from posenc import config, frequencies
from small_models import finite

MAPPED = [name for name in config.MODEL_TYPES if name in CONFIG_MAPPING_NAMES]
STILL = {"nope", "linear_attention", "cross_attention", "conv", "moe"}  # kinds of layers that do not rotate
INIT = modeling_rope_utils.ROPE_INIT_FUNCTIONS
RTOL = 3e-6  # theirs are float32


def modeling(cls):
    """Import the module with the model of a configuration's class."""
    return importlib.import_module(cls.__module__.replace("configuration_", "modeling_"))


def embedding(theirs, kind=None):
    """Return the frequencies and the gain of the rotary module of a configuration's model."""
    module = modeling(type(theirs))
    found = next(
        cls
        for key, cls in vars(module).items()
        if inspect.isclass(cls) and key.endswith("RotaryEmbedding") and cls.__module__ == module.__name__
        if "Vision" not in key
    )(theirs)
    inv_freq = getattr(found, f"{kind}_inv_freq", None)
    inv_freq = found.inv_freq if inv_freq is None else inv_freq
    return inv_freq, getattr(found, f"{kind}_attention_scaling", getattr(found, "attention_scaling", 1.0))


def ours(theirs, kind=None, **options):
    """Return the library's frequencies for a configuration as its file holds it."""
    return frequencies.from_config(finite(theirs.to_dict()), kind, **options)


def agree(found, inv_freq, gain, rtol=RTOL):
    assert found.inv_freq.dtype == np.float64
    np.testing.assert_allclose(found.inv_freq, inv_freq.double().numpy(), rtol=rtol)
    assert found.gain == pytest.approx(gain, rel=1e-12)
