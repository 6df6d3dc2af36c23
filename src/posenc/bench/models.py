"""Small models of transformers with random weights: as they are loaded, and as `posenc.hf.use` changes them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

import posenc
from posenc.bench.measure import Work
from posenc.bench.rows import DTYPES, Goal, Row, Template

LAYERS, WIDTH, N_HEADS, HEAD_DIM, WORDS, NEW_TOKENS = 4, 512, 8, 64, 256, 32
# how many times as fast a prefill of 2,048 tokens was, measured from outside on two cores; a goal is nine tenths of it
FASTER = {"t5": 1.5, "bloom": 2.2, "mpt": 3.2, "deberta": 1.7, "llama": 1.02, "qwen3": 1.02}
SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": N_HEADS, "intermediate_size": 4 * WIDTH}
ROTARY = SIZES | {"num_key_value_heads": 4, "head_dim": HEAD_DIM, "bos_token_id": None, "eos_token_id": None}
LENGTHS = ("max_seq_len", "max_position_embeddings")  # set to hold the text
DISENTANGLED: dict[str, Any] = {"relative_attention": True, "position_buckets": 256, "share_att_key": True}
DISENTANGLED |= {"pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # family, class, fields
    "t5": (
        "T5",
        "EncoderModel",
        {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": HEAD_DIM, "num_layers": LAYERS, "num_heads": N_HEADS},
    ),
    "bloom": ("Bloom", "Model", {"vocab_size": WORDS, "hidden_size": WIDTH, "n_head": N_HEADS, "n_layer": LAYERS}),
    "mpt": (
        "Mpt",
        "Model",
        {"vocab_size": WORDS, "d_model": WIDTH, "n_heads": N_HEADS, "n_layers": LAYERS, "max_seq_len": 0},
    ),
    "deberta": ("DebertaV2", "Model", SIZES | DISENTANGLED | {"max_position_embeddings": 0}),
    "llama": ("Llama", "ForCausalLM", ROTARY | {"max_position_embeddings": 0}),
    "qwen3": ("Qwen3", "ForCausalLM", ROTARY | {"max_position_embeddings": 0}),
}


def templates(names: tuple[str, ...]) -> Iterator[Template]:
    """Yield the rows of some models: a prefill, and of the rotary ones generation as well."""
    for name in names:
        goal = Goal(("hf.use",), round(1 / (0.9 * FASTER[name]), 2), from_len=2048)
        row = Row(f"hf.{name}", "models", ("loaded", "hf.use"), (goal,), {"model": name}, "prefill")
        yield Template(row, (2048,), ("float32",))
        if MODELS[name][1] == "ForCausalLM":
            row = Row(f"hf.{name}.generate", "models", ("loaded", "hf.use"), (), {"model": name}, "generate", batch=4)
            yield Template(row, (128,), ("float32",))


def shape(row: Row) -> tuple[int, int, int]:
    """Return tokens, heads and head_dim of a row."""
    return row.length, N_HEADS, HEAD_DIM


def tokens(row: Row) -> int:
    """Return how many tokens a call takes in or makes."""
    return row.batch * (row.length if row.mode == "prefill" else NEW_TOKENS)


def title(row: Row, name: str) -> str:
    """Return a candidate's name for people."""
    return {"loaded": "as transformers loads it", "hf.use": "posenc.hf.use"}[name]


def maker(row: Row) -> Callable[[str], Work]:
    """Return what makes the two candidates of a row."""
    return lambda name: make(row, ours=name == "hf.use")


def make(row: Row, *, ours: bool) -> Work:
    """Return a forward pass over a prompt, or the generation of new tokens behind one.

    Raises:
        ImportError: transformers is not installed.
        ValueError: `posenc.hf.use` does not take the model.
    """
    import transformers

    torch.manual_seed(0)
    family, head, fields = MODELS[row.options["model"]]
    longest = {key: max(512, row.length + NEW_TOKENS) for key in LENGTHS if key in fields}
    config = getattr(transformers, f"{family}Config")(**fields | longest)
    model = getattr(transformers, f"{family}{head}")(config).eval().to(DTYPES[row.dtype])
    if ours:
        posenc.hf.use(model)
    words = torch.randint(1, WORDS, (row.batch, row.length))
    if row.mode == "prefill":
        return torch.no_grad()(lambda: model(input_ids=words)[0])
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(words, attention_mask=torch.ones_like(words), **options)
