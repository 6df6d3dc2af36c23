"""Tokens per second of small models of transformers, as loaded and after `posenc.hf.use`: interleaved pairs, medians.

python benchmarks/huggingface.py generate|prefill [MODEL ...]
"""

import copy
import statistics
import sys
import time

import torch
import transformers

import posenc

VOCAB = {"vocab_size": 1000}
ROTARY = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
ROTARY |= {"num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096} | VOCAB
MODELS = {
    "bloom": ("Bloom", "ForCausalLM", {"hidden_size": 512, "n_layer": 8, "n_head": 8} | VOCAB),
    "mpt": ("Mpt", "ForCausalLM", {"d_model": 512, "n_layers": 8, "n_heads": 8, "max_seq_len": 4096} | VOCAB),
    "llama": ("Llama", "ForCausalLM", ROTARY),
    "qwen3": ("Qwen3", "ForCausalLM", ROTARY),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}
        | VOCAB,
    ),
}
ROUNDS, PROMPT, NEW, PREFILL = 9, 64, 96, 2048


def seconds(model, what):
    """Time one generation, or one forward over a long text (of T5 its encoder)."""
    ids = torch.randint(5, 999, (1, PROMPT if what == "generate" else PREFILL))
    start = time.perf_counter()
    if what == "generate":
        length = {"max_new_tokens": NEW, "min_new_tokens": NEW, "eos_token_id": None}
        model.generate(ids, **length, do_sample=False, use_cache=True)  # MPT's configuration says False
    else:
        with torch.no_grad():
            (model.encoder if model.config.is_encoder_decoder else model)(input_ids=ids)
    return time.perf_counter() - start


def main():
    what, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    for name in names:
        family, head, fields = MODELS[name]
        config = getattr(transformers, f"{family}Config")(**fields)
        loaded = getattr(transformers, f"{family}{head}")(config).eval()
        used, factors = posenc.hf.use(copy.deepcopy(loaded)), []
        for i in range(ROUNDS + 1):
            order = (loaded, used) if i % 2 else (used, loaded)
            taken = {id(model): seconds(model, what) for model in order}
            factors += [taken[id(loaded)] / taken[id(used)]] if i else []  # the first warms up
        low, high = min(factors), max(factors)
        print(f"{name} {what}: {statistics.median(factors):.2f} times as fast ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
