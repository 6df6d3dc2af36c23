"""What a model on disk becomes: its tokens, its losses, and its frequencies, compared with transformers' own."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from extend.small import TEXT, TRAINED, llama, study_cell
from posenc.extend.evaluate.targets import find
from posenc.nn import LanguageModel

CPU = torch.device("cpu")
IDS = torch.tensor([list(TEXT[: 2 * TRAINED + 1])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("models") / "llama")


def logits_of(folder, **rope):
    """What transformers itself makes of these weights with these rope_parameters."""
    config = LlamaConfig.from_pretrained(folder)
    if rope:
        config.rope_parameters = rope
    model = LlamaForCausalLM.from_pretrained(folder, config=config).eval()
    with torch.no_grad():
        return model(IDS[:, :-1]).logits


def test_losses_are_those_of_the_probabilities_that_transformers_gives(folder):
    scores = find(folder, None).load(CPU).score(IDS.expand(3, -1), 5)
    logits = logits_of(folder).double().numpy()[0, -5:]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = IDS[0, -5:].numpy()
    expected = -np.log2(probabilities[np.arange(5), targets])
    np.testing.assert_allclose(scores.bits.numpy(), np.tile(expected, (3, 1)), atol=1e-4)
    np.testing.assert_array_equal(scores.right.numpy()[0], logits.argmax(-1) == targets)


@pytest.mark.parametrize(
    ("method", "rope"),
    [
        ("linear", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        ("ntk", {"rope_type": "default", "rope_theta": 1e4 * 2 ** (16 / 14)}),  # of heads of 16
        ("dynamic", {"rope_type": "default", "rope_theta": 1e4 * (2 * 2 - 1) ** (16 / 14)}),  # at twice the length
        ("yarn", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": TRAINED}),
    ],
)
def test_a_method_puts_in_the_frequencies_that_transformers_would_use(folder, method, rope):
    target = find(folder, None)
    model = target.load(CPU)
    plain = model.logits(IDS[:, :-1], 20)
    model.use(target.stretch(method, 2.0))
    scaled = model.logits(IDS[:, :-1], 20)
    assert (scaled - plain).abs().max() > 0.1
    torch.testing.assert_close(scaled, logits_of(folder, **rope)[:, -20:], atol=2e-3, rtol=1e-3)
    model.use(None)
    assert torch.equal(model.logits(IDS[:, :-1], 20), plain)


def test_a_cell_of_a_study_interpolates_positions(tmp_path):
    where = study_cell(tmp_path)
    target = find(str(where), None)
    model = target.load(CPU)
    assert (target.trained_len, target.unit) == (TRAINED, "byte")
    ids = torch.tensor([target.encode(TEXT[:100] + b"\x00")])  # a byte that it has never seen is passed over
    assert ids.shape == (1, 100)
    plain = model.logits(ids, 100)
    model.use(target.stretch("linear", 4.0))
    own = next(cell.cell_contents for cell in model.logits.__closure__ if isinstance(cell.cell_contents, LanguageModel))
    stretched = model.logits(ids, 100)
    model.use(None)
    torch.testing.assert_close(own(ids, torch.arange(100) / 4), stretched, atol=1e-4, rtol=1e-4)
    assert torch.equal(model.logits(ids, 100), plain)
    assert (stretched - plain).abs().max() > 0.1


def test_a_cell_without_frequencies_is_read_as_it_is(tmp_path):
    target = find(str(study_cell(tmp_path, "alibi")), None)
    assert target.load(CPU).logits(torch.zeros(1, 200, dtype=torch.int64), 3).shape[:2] == (1, 3)
    with pytest.raises(ValueError, match="was not trained with rope, so yarn has nothing to scale"):
        target.stretch("yarn", 2.0)


def test_the_tokenizer_of_the_directory_is_used_with_its_first_token(folder, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    where = shutil.copytree(folder, tmp_path / "words")
    tokenizer = Tokenizer(models.WordLevel({"<s>": 1, "fox": 5, "dog": 6, "?": 7}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="?").save_pretrained(where)
    target = find(str(where), None)
    assert (target.unit, target.start, target.encode(b"dog fox fox owl")) == ("token", [1], [6, 5, 5, 7])


def test_bytes_beyond_the_vocabulary_are_refused(folder):
    assert find(folder, None).encode(b"ab") == [97, 98]
    with pytest.raises(ValueError, match="has no tokenizer, so its tokens would be bytes, but its vocabulary of 128"):
        find(folder, None).encode("é".encode())


def test_the_trained_length_is_the_one_given_or_the_original_one(folder, tmp_path):
    assert find(folder, None).trained_len == TRAINED
    assert find(folder, 32).trained_len == 32
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": TRAINED}
    longer = llama(tmp_path / "yarn", max_position_embeddings=2 * TRAINED, rope_parameters=yarn)
    assert find(longer, None).trained_len == TRAINED


def test_a_fingerprint_changes_with_the_weights(folder, tmp_path):
    where = shutil.copytree(folder, tmp_path / "copy")
    before = find(str(where), None).fingerprint
    assert find(str(where), None).fingerprint == before
    llama(where, seed=1)
    assert find(str(where), None).fingerprint != before


def test_weights_that_are_missing_are_not_made_up(folder, tmp_path):
    where = shutil.copytree(folder, tmp_path / "copy")
    fields = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"the weights of .* lack model.layers.2.* would be random"):
        find(str(where), None).load(CPU)


def test_a_model_that_does_not_rotate_is_read_up_to_its_table(tmp_path):
    config = {"vocab_size": 128, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": TRAINED}
    from transformers import GPT2Config

    AutoModelForCausalLM.from_config(GPT2Config(**config)).save_pretrained(tmp_path / "gpt2")
    target = find(str(tmp_path / "gpt2"), None)
    model = target.load(CPU)
    assert model.score(IDS[:, : TRAINED + 1], 4).bits.shape == (1, 4)
    with pytest.raises(IndexError):
        model.score(IDS, 4)
