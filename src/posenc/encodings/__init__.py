"""One file an encoding; importing this package registers them all."""

from posenc.encodings.alibi import ALiBi as ALiBi
from posenc.encodings.binary import Binary as Binary
from posenc.encodings.kerple import KERPLE as KERPLE
from posenc.encodings.learned import Learned as Learned
from posenc.encodings.nope import NoPE as NoPE
from posenc.encodings.relative_bias import RelativeBias as RelativeBias
from posenc.encodings.rope import RoPE as RoPE
from posenc.encodings.sinusoidal import Sinusoidal as Sinusoidal
from posenc.encodings.t5 import T5 as T5
from posenc.encodings.transformer_xl import TransformerXL as TransformerXL
from posenc.encodings.xpos import XPos as XPos
