"""Small Transformers for studies and examples; each takes any encoding as an argument."""

from posenc.nn.layers import Attention, Block, Cache, Embedding, Memory
from posenc.nn.models import EncoderDecoder, LanguageModel

__all__ = ["Attention", "Block", "Cache", "Embedding", "EncoderDecoder", "LanguageModel", "Memory"]
