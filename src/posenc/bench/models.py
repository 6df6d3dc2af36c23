"""Small transformers models with random weights: as loaded, and as `posenc.hf.use` changes them."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

import posenc
from posenc.bench.candidates import CHECKED, Candidate, Inputs
from posenc.bench.rows import DTYPES, Row

LAYERS, WIDTH, N_HEADS, HEAD_DIM, WORDS, NEW_TOKENS = 4, 512, 8, 64, 256, 32
SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": N_HEADS, "intermediate_size": 4 * WIDTH, "max_position_embeddings": 0}
ROTARY = SIZES | {"num_key_value_heads": 4, "head_dim": HEAD_DIM, "bos_token_id": None, "eos_token_id": None}
LENGTHS = ("max_seq_len", "max_position_embeddings")  # raised to fit the text
T5 = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": HEAD_DIM, "num_layers": LAYERS, "num_heads": N_HEADS}
BLOOM = {"vocab_size": WORDS, "hidden_size": WIDTH, "n_head": N_HEADS, "n_layer": LAYERS}
MPT = {"vocab_size": WORDS, "d_model": WIDTH, "n_heads": N_HEADS, "n_layers": LAYERS, "max_seq_len": 0}
DEBERTA = SIZES | {"relative_attention": True, "position_buckets": 256, "share_att_key": True}
DEBERTA |= {"pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # family, class, fields
    "t5": ("T5", "EncoderModel", T5),
    "bloom": ("Bloom", "Model", BLOOM),
    "mpt": ("Mpt", "Model", MPT),
    "deberta": ("DebertaV2", "Model", DEBERTA),
    "llama": ("Llama", "ForCausalLM", ROTARY),
    "qwen3": ("Qwen3", "ForCausalLM", ROTARY),
}


class Models(Inputs):
    """A forward pass over a prompt, or the generation of new tokens after one."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.words = torch.randint(1, WORDS, (row.batch, row.length))
        self.tokens = row.batch * (row.length if row.mode == "prefill" else NEW_TOKENS)
        self.q_bytes = row.batch * row.length * N_HEADS * HEAD_DIM * DTYPES[row.dtype].itemsize

    @cached_property
    def expected(self) -> list[Tensor]:
        """Return the last hidden states or logits of the model as loaded, or the tokens that it generates."""
        found: Any = self.make("loaded")()
        if self.row.mode == "prefill":
            return [found[:, -CHECKED:]]
        return [found] if self.row.dtype == "float32" else []  # rounding to two bytes may choose another token

    def model(self, change: Callable[[Any], object] = lambda model: None) -> Callable[[], Tensor]:
        """Make the model, the same each time, and change it.

        Raises:
            ImportError: transformers is not installed.
            ValueError: `posenc.hf.use` does not accept the model.
        """
        import transformers

        torch.manual_seed(0)
        family, head, fields = MODELS[self.row.options["model"]]
        longest = {key: max(512, self.row.length + NEW_TOKENS) for key in LENGTHS if key in fields}
        config = getattr(transformers, f"{family}Config")(**fields | longest)
        model = getattr(transformers, f"{family}{head}")(config).eval().to(DTYPES[self.row.dtype])
        change(model)
        if self.row.mode == "prefill":
            return lambda: model(input_ids=self.words)[0]
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(self.words, attention_mask=torch.ones_like(self.words), **options)

    candidates: ClassVar = {
        "loaded": Candidate("as transformers loads it", model),
        "hf.use": Candidate("posenc.hf.use", partial(model, change=posenc.hf.use)),
    }
