"""Published results on each context extension method, with sources; posenc measured none of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DECIDES = (
    "Evaluate on your own text before you decide: over 59 models the rank correlation of needle scores with "
    "downstream tasks is only 0.68 (HELMET, Yen et al. 2024, arXiv 2410.02694)."
)


@dataclass(frozen=True)
class Published:
    """Evidence for and against a method.

    Args:
        untrained: The largest published factor at which it did well without training; 0 if none.
        trained: The same with training.
        good: Evidence for it, with a figure.
        good_source: The source of `good`.
        bad: Evidence against it, with a figure.
        bad_source: The source of `bad`.
        runs: For a method that no configuration can express: the programs that run it, and how.
    """

    untrained: float
    trained: float
    good: str
    good_source: str
    bad: str
    bad_source: str
    runs: Mapping[str, str] = field(default_factory=dict, hash=False)


_DROPE = "Gelberg et al. 2025 (DroPE), arXiv 2512.12167"
_STRING = "An et al. 2024 (STRING), arXiv 2410.18745"
_LONGROPE2 = "Shang et al. 2025 (LongRoPE2), arXiv 2502.20082"

PUBLISHED: Mapping[str, Published] = {
    "linear": Published(
        untrained=0,
        trained=16,
        good="LLaMA 7B to 65B were extended from 2,048 to 32,768 positions within 1,000 steps of training.",
        good_source="Chen et al. 2023, arXiv 2306.15595",
        bad="At factor 2 it found 0 % of needles with several queries, keys and values; YaRN 17.8, 0.5 and 14.6 %.",
        bad_source=_DROPE,
    ),
    "ntk": Published(
        untrained=4,
        trained=128,
        good="LLaMA, trained on 2,048 positions, handled over 8,000 without further training. With 1.4 billion tokens "
        "Llama 3 8B was extended from 8,192 to 1,048,576, with bases that started at this one.",
        good_source="bloc97 2023; model card of gradientai/Llama-3-8B-Instruct-Gradient-1048k",
        bad="Without training SmolLM-360M found 29.84, 14.37 and 7.19 % of needles at factors 2, 4 and 8; "
        "with YaRN it found 48.25, 25.62 and 12.18 %.",
        bad_source=_DROPE,
    ),
    "dynamic": Published(
        untrained=4,
        trained=0,
        good="Qwen-7B, trained on 2,048 positions with a perplexity of 3.78, had 3.66 at 8,192 and 5.71 at 16,384 "
        "without further training; without the method, 469.81 and 2645.09.",
        good_source="README of QwenLM/Qwen, long-context understanding",
        bad="Cached keys keep the angles of the length at which they were computed; SGLang uses one base for all "
        "lengths, and vLLM changes nothing unless max_trained_positions is given.",
        bad_source="huggingface/transformers#25104; docs/stacks.md",
    ),
    "yarn": Published(
        untrained=4,
        trained=128,
        good="It needed 10 times fewer tokens and 2.5 times fewer steps than earlier methods. Qwen3, trained on 32,768 "
        "positions, was validated with it at 131,072; Llama 3.1 8B was extended to 1,048,576 with 1 billion tokens.",
        good_source="Peng et al. 2023, arXiv 2309.00071; model card of Qwen/Qwen3-8B; Xu et al. 2025, arXiv 2504.06214",
        bad="Most stacks also apply it to short texts, which may cost quality, as Qwen warns. Without training "
        "SmolLM-360M found 48.25, 25.62 and 12.18 % of needles at factors 2, 4 and 8.",
        bad_source=f"model card of Qwen/Qwen3-8B; {_DROPE}",
    ),
    "llama3": Published(
        untrained=0,
        trained=16,
        good="Llama 3.1 serves 131,072 positions with it after training on 8,192, then on longer texts.",
        good_source="config.json of meta-llama/Llama-3.1-8B",
        bad="Meta trained on 80 times the 10 billion tokens of LongRoPE2, but the effective length stayed below 128K.",
        bad_source=_LONGROPE2,
    ),
    "base": Published(
        untrained=0,
        trained=16,
        good="SmolLM3 was extended from 4,096 to 65,536 positions with bases of 1.5 and 5 million. Llama 2, trained at "
        "16K with another base, extrapolated to 1 million.",
        good_source="Hugging Face 2025, the SmolLM3 blog; Liu et al. 2023, arXiv 2310.05209",
        bad="All pairs except the fastest change, so it needs training: 100 billion tokens for SmolLM3.",
        bad_source="Hugging Face 2025, the SmolLM3 blog",
    ),
    "longrope": Published(
        untrained=8,
        trained=512,
        good="Llama 2 and Mistral were extended to 2,048K positions with at most 1,000 steps at 256K, and by a factor "
        "of 8 without training.",
        good_source="Ding et al. 2024, arXiv 2402.13753",
        bad="The lists come from a search on the model, and LongRoPE2 trained on 10 billion tokens to keep 98.5 % of "
        "the scores on short texts.",
        bad_source=_LONGROPE2,
    ),
    "dual-chunk": Published(
        untrained=24,
        trained=0,
        good="Without further training Llama 2 70B, trained on 4,096 positions, handled over 100,000, with 94 % of "
        "gpt-3.5-16k's performance.",
        good_source="An et al. 2024, arXiv 2402.17463",
        bad="In STRING's test with four needles it scored 73.1 and STRING 85.7; vLLM removed its kernel in 0.11.",
        bad_source=f"{_STRING}; vllm-project/vllm#49296",
        runs={
            "sglang": "attention backend dual_chunk_flash_attn, with dual_chunk_attention_config in config.json",
            "posenc": "posenc.DualChunk",
        },
    ),
    "self-extend": Published(
        untrained=4,
        trained=0,
        good="In STRING's test with four needles, without training, it scored 69.6 and plain RoPE 67.8.",
        good_source=_STRING,
        bad="In that test YaRN scored 70.5, dual chunk attention 73.1; llama.cpp removed it from its server in 2024.",
        bad_source=f"{_STRING}; ggml-org/llama.cpp#9859",
        runs={
            "llamacpp": "--grp-attn-n GROUP --grp-attn-w WINDOW in the programs that still have it, not the server",
            "posenc": "posenc.SelfExtend",
        },
    ),
    "drope": Published(
        untrained=0,
        trained=8,
        good="SmolLM-360M found 74.92, 55.00 and 52.20 % of needles at factors 2, 4 and 8, and 48.25, 25.62 and "
        "12.18 % with YaRN; Llama 2 7B scored 26.08 on LongBench, and 19.14 with YaRN.",
        good_source=_DROPE,
        bad="It changes the model and needs a recalibration on under 1 % of the tokens of pretraining; no stack reads "
        "it from a configuration.",
        bad_source="sakana.ai/drope",
        runs={"posenc": "posenc.NoPE"},
    ),
}
