"""A small Llama of transformers with random weights, as it is loaded and as `posenc.hf.use` changes it."""

import torch

import posenc
from posenc.bench.measure import Work
from posenc.bench.rotary_rows import Row
from posenc.bench.rows import DTYPES

LAYERS, WIDTH, N_HEADS, N_KV_HEADS, WORDS = 4, 1024, 16, 4, 1024
NEW_TOKENS = 32


def run(row: Row, *, ours: bool) -> Work:
    """Return a forward pass over a prompt, or the generation of new tokens behind one.

    Raises:
        ImportError: transformers is not installed.
        ValueError: `posenc.hf.use` does not take the model.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=WIDTH * 11 // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV_HEADS,
        max_position_embeddings=max(2048, row.length + NEW_TOKENS),
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().to(DTYPES[row.dtype])
    if ours:
        posenc.hf.use(model)
    words = torch.randint(0, WORDS, (row.batch, row.length))
    if row.kind == "prefill":
        return torch.no_grad()(lambda: model(input_ids=words, use_cache=False, logits_to_keep=1).logits)
    seen = torch.ones_like(words)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(words, attention_mask=seen, **options)


def count_tokens(row: Row) -> int:
    """Return how many tokens a call takes in or makes."""
    return row.batch * (row.length if row.kind == "prefill" else NEW_TOKENS)
