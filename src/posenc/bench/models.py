"""Small models of transformers with random weights, for what `posenc.hf.use` changes of a whole forward pass."""

from typing import Any

import posenc
from posenc.bench.rows import DTYPES, HEAD_DIM, N_HEADS, Row
from posenc.bench.setting import Forward

LAYERS, WORDS = 2, 256
WIDTH = N_HEADS * HEAD_DIM


def forward(row: Row, *, ours: bool) -> Forward:
    """Return a forward pass of the row's model: as it is loaded, or with its attention run by posenc.

    Raises:
        ImportError: transformers is not installed.
    """
    import torch
    import transformers as hf

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "n_head": N_HEADS, "n_layer": LAYERS}
    disentangled: dict[str, Any] = {"relative_attention": True, "position_buckets": 256, "share_att_key": True}
    disentangled |= {"pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"}
    deep: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_attention_heads": N_HEADS, "intermediate_size": 4 * WIDTH}
    made = {
        "hf.t5": lambda: hf.T5EncoderModel(
            hf.T5Config(vocab_size=WORDS, d_model=WIDTH, d_kv=HEAD_DIM, num_layers=LAYERS, num_heads=N_HEADS)
        ),
        "hf.bloom": lambda: hf.BloomModel(hf.BloomConfig(**sizes)),
        "hf.mpt": lambda: hf.MptModel(
            hf.MptConfig(vocab_size=WORDS, d_model=WIDTH, n_heads=N_HEADS, n_layers=LAYERS, max_seq_len=row.length)
        ),
        "hf.deberta": lambda: hf.DebertaV2Model(
            hf.DebertaV2Config(
                **deep,
                vocab_size=WORDS,
                hidden_size=WIDTH,
                max_position_embeddings=max(512, row.length),
                **disentangled,
            )
        ),
    }
    model = made[row.name]().eval().to(DTYPES[row.dtype])
    if ours:
        posenc.hf.use(model)
    words = torch.randint(0, WORDS, (1, row.length))
    return lambda: model(input_ids=words).last_hidden_state
