"""Small causal models on disk, and a text for them; nothing is trained."""

import hashlib
import json

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from posenc.nn import LanguageModel
from posenc.study.config import Cell, make_config

TRAINED = 64
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "count")
TEXT = " ".join(WORDS[i * i % 5 + i % 9] for i in range(400)).encode()


def llama(folder, seed=0, **options):
    """Save a random Llama and return its directory; large weights, so that positions matter."""
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 2, "max_position_embeddings": TRAINED, "initializer_range": 0.3,
             "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**sizes | options)).save_pretrained(folder)
    return str(folder)


def text(folder):
    """Write the text and return its path."""
    path = folder / "text.txt"
    path.write_bytes(TEXT)
    return str(path)


def study_cell(folder, encoding="rope", task="text"):
    """Write a study with one untrained cell by hand, and return the cell's directory."""
    from posenc.study import cell, subjects
    from posenc.study.text import Text

    config = make_config([encoding], TRAINED, [TRAINED], 1, None, 1, sizes=["32x2x2"])
    words = Text("words", TEXT, "")
    this = Cell(encoding, task, "32x2x2", 0)
    where = folder / "cells" / this.name
    where.mkdir(parents=True)
    facts = words.facts(config)
    (folder / "run.json").write_text(json.dumps({"config": config.as_dict(), "text": facts}))
    (folder / "text").write_bytes(TEXT)
    model: LanguageModel = cell.build(config, subjects.find(config, "text", words), this)
    for parameter in model.parameters():  # so that attention matters
        parameter.data *= 3
    save_file(model.state_dict(), where / "model.safetensors")
    (where / "result.json").write_text(json.dumps(this._asdict()))
    assert facts["sha256"] == hashlib.sha256(TEXT).hexdigest()
    return where
