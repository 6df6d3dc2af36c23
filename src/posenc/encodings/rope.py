"""RoPE: queries and keys rotated by their positions."""

from typing import Any, cast

from jaxtyping import Float64
from torch import Tensor

from posenc import config, frequencies
from posenc.encodings.dynamic_ntk import DynamicNTK
from posenc.encodings.longrope import LongRoPE
from posenc.families import Given, OwnFrequencies, Rotary, Scaled, geometric
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register


@register(
    "rope",
    paper="Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding",
    year=2021,
    arxiv="2104.09864",
    formula="score = q_iᵀ R((j - i)·ω) k_j,  ω_k = base^(-2k/d)",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("rotary", "roformer"),
    plans={"v2pe": {}},
    plan_positions={"v2pe": "v2pe(parts, step=1/16)"},
    used_by=("Llama", "Mistral", "Qwen", "Gemma", "DeepSeek", "GPT-NeoX", "GPT-J", "Phi"),
    serves=("text", "video"),
    example={"head_dim": 64},
    variants=(
        {"head_dim": 8},
        {"pairing": "interleaved"},
        {"rotary_dim": 32},
        {"rotary_dim": 32, "rotary_side": "last", "pairing": "interleaved"},
        {"trainable": True},
        {"attention_factor": 1.25, "rotary_dim": 32, "score_factor": 1.5},
    ),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class RoPE(Scaled, OwnFrequencies, Rotary):
    """Rotate pairs of dimensions of q and k by angles proportional to their positions.

    The score then depends only on the distance, keys can be cached after the rotation, and values stay unchanged.
    Frequencies run over the rotated width, as in GPT-J and GPT-NeoX. Source: Su 2021, section 3.2 and equation 15.

    Args:
        head_dim: Dimensions of one head.
        base: 10,000 in the paper; larger for longer contexts.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (dimension k with k + rotary_dim / 2: GPT-NeoX, Llama in Hugging Face) or
            "interleaved" (2k with 2k + 1: the paper, GPT-J, Meta's Llama).
        inv_freq: Frequencies that replace the formula, in radians per position, one per pair, or a function that
            computes them from the pairs' indices 0, 1, ...
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.
        attention_factor: The gain, which multiplies the rotated dimensions of q and of k, as in YaRN and LongRoPE;
            scores get its square.
        score_factor: Additional factor on all scores, including the products of unrotated dimensions, as in DeepSeek.

    Raises:
        ValueError: A width is odd or larger than head_dim, base is not above 1, the frequencies have the wrong shape,
            or a factor is not positive.

    >>> import torch
    >>> rope = RoPE(head_dim=2)
    >>> q, _ = rope.rotate(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), rope.place(torch.tensor([1])))
    >>> q.flatten().numpy().round(4)
    array([-0.3012,  1.3818], dtype=float32)
    """

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        inv_freq: Given | None = None,
        trainable: bool = False,
        attention_factor: float = 1.0,
        score_factor: float = 1.0,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        self.base = frequencies.check_base(base, self.name)
        self._set_factors(attention_factor, score_factor)
        self._set_frequencies(self.rotary_dim // 2, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return base^(-2k / rotary_dim)."""
        return geometric(self.rotary_dim // 2, base=self.base, width=self.rotary_dim)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, as the one row of a matrix for one axis."""
        return self.inv_freqs()[None]

    @classmethod
    def from_config(
        cls,
        source: config.Source,
        layer_type: str | None = None,
        *,
        pairing: Pairing | None = None,
        seq_len: int | None = None,
    ) -> Rotary:
        """Construct the encoding of one kind of layer of a model from its configuration.

        If the file's frequencies depend on the length, the result is a `DynamicNTK` or a `LongRoPE`, which needs
        `resolve(seq_len)` before it is placed. For a multimodal model it encodes text, whose positions are the same on
        all axes; `MRoPE.from_config` encodes pictures too. A model that rotates clockwise (nanochat) gets negative
        frequencies.

        Args:
            source: A config.json, a directory that contains one, or a mapping.
            layer_type: The kind of layer, where kinds rotate differently.
            pairing: Which dimensions rotate together; None uses the model type's pairing.
            seq_len: The longest text, in positions, if frequencies depend on it; None to resolve it later.

        Raises:
            ValueError: As `config.rotary` does.
            TypeError: As `config.rotary` does.

        >>> RoPE.from_config({"model_type": "gptj", "head_dim": 256, "rotary_dim": 64}).pairing
        'interleaved'
        """
        rotary, found, same = read(source, layer_type, pairing, seq_len)
        if rotary.clockwise:
            of_length(cls.__name__, rotary, seq_len)
        trained = cast(int, rotary.original_max_len)  # both length-dependent types have it
        known: dict[str, Any] = {"original_max_len": trained, "length": seq_len}
        if rotary.rope_type == "dynamic" and not rotary.clockwise:
            return DynamicNTK(**same, **known, factor=cast(float, rotary.factor), attention_factor=found.gain)
        if rotary.rope_type == "longrope" and not rotary.clockwise:
            short, long = (
                frequencies.from_config(source, layer_type, pairing=pairing, seq_len=n) for n in (1, trained + 1)
            )
            lists = {key: rotary.parameters[key[:-1]] for key in ("short_factors", "long_factors")}
            return LongRoPE(**same, **known, **lists, attention_factor=short.gain, long_attention_factor=long.gain)
        inv_freq = -found.inv_freq if rotary.clockwise else found.inv_freq
        return cls(**same, inv_freq=inv_freq, attention_factor=found.gain)


def read(
    source: config.Source, layer_type: str | None, pairing: Pairing | None, seq_len: int | None
) -> tuple[config.Rotary, frequencies.Frequencies, dict[str, Any]]:
    """Return a configuration's settings for one kind of layer, its frequencies, and the options of all encodings.

    Raises:
        ValueError: As `config.rotary` does.
        TypeError: As `config.rotary` does.
    """
    rotary = config.rotary(source, layer_type, pairing=pairing)
    found = frequencies.from_config(source, layer_type, pairing=pairing, seq_len=seq_len)
    options = {
        **{"head_dim": rotary.head_dim, "base": rotary.base, "rotary_dim": found.rotary_dim},
        **{"rotary_side": rotary.rotary_side, "pairing": found.pairing, "score_factor": found.score_factor},
    }
    return rotary, found, options


def of_length(who: str, rotary: config.Rotary, seq_len: int | None) -> None:
    """Require a length if frequencies depend on it, for an encoding with the frequencies of one length.

    Raises:
        ValueError: Frequencies depend on the length, and seq_len is None.
    """
    if rotary.rope_type in ("dynamic", "longrope") and seq_len is None:
        why = "rotates clockwise" if rotary.clockwise else "rotates by several axes"
        raise ValueError(
            f"{who}: seq_len must be given, because {rotary.model_type} {why} and its frequencies depend on the "
            "length; got None. Pass the longest text."
        )
