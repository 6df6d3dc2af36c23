"""What a configuration means for positions, against numbers computed elsewhere."""

import json
import math

import pytest
import torch

from posenc import inspection
from posenc.inspection import inspect

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
LLAMA |= {"max_position_embeddings": 131072, "rope_theta": 5e5}
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALING |= {"original_max_position_embeddings": 8192}
KEYS = {
    *("kind", "count", "encoding", "pairing", "head_dim", "rotary_dim", "base", "rope_type", "inv_freq"),
    *("attention_factor", "original_max_len", "max_len", "pairs", "critical_dim", "first_negative"),
}


def test_llama_31() -> None:
    found = inspect(LLAMA | {"rope_scaling": SCALING})
    (layer,) = found["layers"]
    assert set(layer) >= KEYS
    assert (layer["kind"], layer["count"], layer["pairing"]) == ("full_attention", 32, "half")
    assert (layer["rotary_dim"], layer["base"], layer["rope_type"]) == (128, 5e5, "llama3")
    # wavelength 8192 / 4 and 8192 / 1 at pairs 64 ln(2048 / 2 pi) / ln 5e5 = 28.2 and 35.0
    assert {k: layer["pairs"][k] for k in ("kept", "blended", "divided")} == {"kept": 29, "blended": 6, "divided": 29}
    assert layer["pairs"]["never_full_turn"] == 64 - 35
    assert layer["critical_dim"] == 70
    assert layer["inv_freq"][-1] == pytest.approx(5e5 ** (-126 / 128) / 8)
    assert json.loads(json.dumps(found)) == found
    # the same settings under the name that comes with the package
    known = inspect("llama-3.1-8b")["layers"][0]
    assert known["inv_freq"] == layer["inv_freq"]


@pytest.mark.parametrize(("base", "first"), [(1e4, 1707), (5e5, 18438), (1e6, 27115)])
def test_first_negative_sum(base: float, first: int) -> None:
    found = inspect(LLAMA | {"rope_theta": base})["layers"][0]["first_negative"]
    assert found == {"rotated": first, "all": first}


def test_lanes_that_do_not_turn_hold_the_sum_up() -> None:
    found = inspect(LLAMA | {"partial_rotary_factor": 0.5, "model_type": "phi"})["layers"][0]
    assert found["rotary_dim"] == 64
    assert found["first_negative"]["rotated"] is not None
    assert found["first_negative"]["all"] is None


def test_deepseek_scales_its_scores_and_turns_a_slice() -> None:
    layer = inspect("deepseek-v3")["layers"][0]
    assert (layer["head_dim"], layer["rotary_dim"], layer["pairing"]) == (192, 64, "interleaved")
    assert layer["attention_factor"] == 1.0
    assert layer["score_factor"] == pytest.approx((0.1 * math.log(40) + 1) ** 2)


def test_layers_without_position_are_told_and_warnings_are_given() -> None:
    smol = LLAMA | {"model_type": "smollm3", "num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}
    found = inspect(smol)
    assert {layer["kind"]: (layer["count"], layer["encoding"]) for layer in found["layers"]} == {
        "full_attention": (6, "rope"),
        "nope": (2, "nope"),
    }
    assert found["layers"][1]["inv_freq"] is None
    without = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    (warning,) = inspect(without)["warnings"]
    assert set(warning) == {"code", "key", "message"}
    assert "10000" in warning["message"].replace(",", "")


@pytest.mark.parametrize("name", inspection.known_models())
def test_every_known_model_can_be_read(name: str) -> None:
    layers = inspect(name)["layers"]
    turning = [layer for layer in layers if layer["encoding"] == "rope"]
    assert turning
    assert all(len(layer["inv_freq"]) == layer["rotary_dim"] // 2 for layer in turning)
    assert all(layer["encoding"] == "nope" for layer in layers if layer not in turning)


def test_phase_errors_are_those_of_the_dtype() -> None:
    """At 131,072 a float32 angle is off by up to half a unit in the last place of 131,072 and of the frequency."""
    errors = inspect(LLAMA)["layers"][0]["phase_error"]
    exact = torch.tensor(131_000.0, dtype=torch.float64)
    assert 0 < errors["float32"] < 4 * float(exact) * 2**-24
    assert errors["bfloat16"] > 3.0  # any angle is as likely as the right one
    assert errors["float16"] > 3.0


@pytest.mark.parametrize(("end", "most"), [(300, {"bfloat16": 3.2}), (70_000, {"bfloat16": 3.2, "float16": 3.2})])
def test_phase_errors_are_those_of_torchs_arithmetic(end: int, most: dict[str, float]) -> None:
    """Of positions, frequencies and products that torch rounds to the dtype, modulo a turn."""
    errors = inspect(LLAMA | {"max_position_embeddings": end})["layers"][0]["phase_error"]
    exact = 5e5 ** (-torch.arange(64, dtype=torch.float64) / 64)
    pos = torch.arange(end - 256, end, dtype=torch.float64)[:, None]
    for name, error in errors.items():
        dtype = getattr(torch, name)
        off = (pos.to(dtype) * exact.to(dtype)).double() - pos * exact
        wanted = torch.atan2(off.sin(), off.cos()).abs().max().nan_to_num(math.pi)
        assert error == pytest.approx(float(wanted), rel=1e-6)
        assert error < most.get(name, 0.5)


def test_frequencies_that_depend_on_the_length_are_those_of_the_longest_text() -> None:
    lists = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 8.0], "original_max_position_embeddings": 64}
    phi = {"model_type": "phi3", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    phi |= {"max_position_embeddings": 256, "rope_theta": 1e4, "rope_scaling": {"type": "longrope"} | lists}
    (layer,) = inspect(phi)["layers"]
    assert layer["inv_freq"] == pytest.approx([1 / 2, 0.01 / 8])


def test_axes_and_what_pairs_read_them() -> None:
    """Qwen3.5 27B: a quarter of 256 lanes, whose 32 pairs take turns; Llama has one axis."""
    rope = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    qwen = {"model_type": "qwen3_5_text", "head_dim": 256, "num_hidden_layers": 4, "rope_parameters": rope}
    layers = {layer["kind"]: layer for layer in inspect(qwen)["layers"]}
    reported = {kind: [layer[key] for key in ("axes", "sections", "layout")] for kind, layer in layers.items()}
    assert reported == {"linear_attention": [None] * 3, "full_attention": [3, [11, 11, 10], "interleaved"]}
    assert [inspect(LLAMA)["layers"][0][key] for key in ("axes", "sections", "layout")] == [1, None, None]
