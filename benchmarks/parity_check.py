"""Check the rules of `posenc parity` against the stacks' published code, on a CPU.

    python benchmarks/parity_check.py DIR           # downloads into DIR what is missing, reports on stdout
    python benchmarks/parity_check.py DIR --write   # also writes benchmarks/parity_check.json and docs/stacks.md

Not part of the suite: it needs pip and 500 MB. No code of the stacks is kept: DIR may be removed afterwards.
"""

import datetime
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from posenc.config.reading import Checked
from posenc.parity import loading, read
from posenc.parity.compare import joined, mean
from posenc.parity.evaluate import Array

ROOT = Path(__file__).parent.parent
ASK = Path(__file__).with_name("parity_ask.py")
# the packages of each stack, and which part of the first is unpacked
PACKAGES = {
    "hf@4.57.6": (("transformers==4.57.6", "huggingface_hub==0.36.2", "tokenizers==0.22.2"), ""),
    "vllm@0.33.0": (("vllm==0.33.0",), "vllm/"),
    "sglang@0.5.23": (("sglang==0.5.23",), "sglang/srt/layers/rotary_embedding/"),
    "mlx-lm@0.32.2": (("mlx-lm==0.32.2", "mlx==0.32.4", "mlx-cpu==0.32.4"), ""),
    "hf@5.23.0": ((), ""),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 1024}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.01 * k for k in range(32)],
        "long_factor": [2.0 + 0.1 * k for k in range(32)], "original_max_position_embeddings": 1024}  # fmt: skip
LATENT = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64}


def fields(scaling: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Return a small configuration in the spelling of transformers 4."""
    base = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "head_dim": 64}
    return {**base, "max_position_embeddings": 4096, "rope_theta": 500000.0, "rope_scaling": scaling, **more}


def without(scaling: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return parameters without some keys."""
    return {key: value for key, value in scaling.items() if key not in keys}


NEW = {**without(fields(None), "rope_theta", "rope_scaling"), "rope_parameters": {**YARN, "rope_theta": 5e5}}
# name: (fields, length of the text, override)
CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "default": (fields(None), 100, {}),
    "theta missing": (without(fields(None), "rope_theta"), 100, {}),
    "partial": (fields(None, model_type="stablelm", partial_rotary_factor=0.25, head_dim=None), 100, {}),
    "linear 4.0": (fields({"rope_type": "linear", "factor": 4.0}), 100, {}),
    "linear 4": (fields({"rope_type": "linear", "factor": 4}), 100, {}),
    "linear without factor": (fields({"rope_type": "linear"}), 100, {}),
    "dynamic, short": (fields({"rope_type": "dynamic", "factor": 2.0}), 100, {}),
    "dynamic, long": (fields({"rope_type": "dynamic", "factor": 2.0}), 8192, {}),
    "dynamic, max_trained_positions": (
        fields({"rope_type": "dynamic", "factor": 2.0, "max_trained_positions": 2048}), 100, {}),
    "yarn": (fields(YARN), 100, {}),
    "yarn, type": (fields({**without(YARN, "rope_type"), "type": "yarn"}), 100, {}),
    "yarn, type and rope_type differ": (fields({**YARN, "type": "linear"}), 100, {}),
    "yarn, original missing": (fields(without(YARN, "original_max_position_embeddings")), 100, {}),
    "yarn, original null": (fields({**YARN, "original_max_position_embeddings": None}), 100, {}),
    "yarn, original next to it": (fields(YARN, original_max_position_embeddings=2048), 100, {}),
    "yarn, factor null": (fields({**YARN, "factor": None}), 100, {}),
    "yarn, factor missing": (fields(without(YARN, "factor")), 100, {}),
    "yarn, attention_factor": (fields({**YARN, "attention_factor": 1.5}), 100, {}),
    "yarn, attention_factor null": (fields({**YARN, "attention_factor": None}), 100, {}),
    "yarn, attn_factor": (fields({**YARN, "attn_factor": 0.5}), 100, {}),
    "yarn, mscale 1 and 1": (fields({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), 100, {}),
    "yarn, mscale 0.707": (fields({**YARN, "mscale": 0.707}), 100, {}),
    "yarn, mscale 0 and 0": (fields({**YARN, "mscale": 0.0, "mscale_all_dim": 0.0}), 100, {}),
    "yarn, beta_fast 0": (fields({**YARN, "beta_fast": 0}), 100, {}),
    "yarn, betas 16 and 2": (fields({**YARN, "beta_fast": 16.0, "beta_slow": 2.0}), 100, {}),
    "yarn, truncate false": (fields({**YARN, "truncate": False}), 100, {}),
    "yarn, latent": (fields({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}, **LATENT), 100, {}),
    "yarn, rope_parameters": (NEW, 100, {}),
    "yarn, rope_parameters, qwen3": ({**NEW, "model_type": "qwen3"}, 100, {}),
    "yarn, override without theta": (fields(None), 100, {"rope_parameters": YARN}),
    "yarn, override without original": (
        fields(None), 100, {"rope_parameters": without(YARN, "original_max_position_embeddings")}),
    "linear 4, override": (
        fields(None), 100, {"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5}}),
    "longrope, short": (fields(LONG), 100, {}),
    "longrope, at the original": (fields(LONG), 1024, {}),
    "longrope, one more": (fields(LONG), 1025, {}),
    "longrope, two more": (fields(LONG), 1026, {}),
    "longrope, factor": (fields({**LONG, "factor": 2.0}), 100, {}),
    "longrope, attention_factor": (fields({**LONG, "attention_factor": 1.5}), 100, {}),
    "longrope, original next to it": (
        fields(without(LONG, "original_max_position_embeddings"), original_max_position_embeddings=1024), 100, {}),
    "longrope, long_mscale": (fields({**LONG, "short_mscale": 1.1, "long_mscale": 1.3}), 100, {}),
    "llama3": (fields(LLAMA3), 100, {}),
    "llama3, original missing": (fields(without(LLAMA3, "original_max_position_embeddings")), 100, {}),
    "llama3, high_freq_factor missing": (fields(without(LLAMA3, "high_freq_factor")), 100, {}),
    "an unknown type": (fields({"rope_type": "nothing", "factor": 2.0}), 100, {}),
}  # fmt: skip


def expect(name: str, case: tuple[dict[str, Any], int, dict[str, Any]]) -> tuple[str, Array | None, float]:
    """Return what the rules say: read, error or unknown, frequencies and gain."""
    given, text, override = case
    chosen = loading.known()[name]
    plain = {**given, "rope_parameters": None, "rope_scaling": None}
    try:
        meant = mean(Checked(joined(given, override)))[0].rotary
    except (ValueError, TypeError):  # the rules may still say what a stack makes of it
        meant = mean(Checked(plain))[0].rotary
    found = read.read(Checked(given), override, chosen, meant, main=True, length=None)
    if found.rotation is None:
        return found.state, None, 0.0
    return "read", found.rotation.inv_freq(text), found.rotation.gains(text)


def agree(expected: tuple[str, Array | None, float], answer: dict[str, Any]) -> str:
    """Return "" where rules and code agree, else what differs."""
    state, inv_freq, gain = expected
    if "error" in answer:
        return "" if state == "error" else f"rules: {state}; code: {answer['error']}"
    if inv_freq is None:
        return f"rules: {state}; code: gain {answer['gain']:.6g}"
    if len(inv_freq) != len(answer["inv_freq"]):
        return f"rules: {len(inv_freq)} pairs; code: {len(answer['inv_freq'])}"
    off = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(inv_freq, answer["inv_freq"], strict=True))
    if off > 2e-5:  # float32, and its powers
        return f"frequencies differ by {off:.2g}"
    return (
        ""
        if math.isclose(gain, answer["gain"], rel_tol=1e-5)
        else f"rules: gain {gain:.6g}; code: {answer['gain']:.6g}"
    )


def unpack(name: str, folder: Path) -> Path:
    """Download and unpack the packages of a stack."""
    packages, part = PACKAGES[name]
    target = folder / name.replace("@", "-")
    if packages and not target.exists():
        wheels = folder / "wheels"
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *packages]
        subprocess.run(call, check=True)
        for package in packages:
            stem = package.replace("==", "-").replace("mlx-lm", "mlx_lm").replace("mlx-cpu", "mlx_cpu")
            wheel = next(path for path in wheels.iterdir() if path.name.startswith(f"{stem}-"))
            with zipfile.ZipFile(wheel) as archive:
                chosen = [one for one in archive.namelist() if one.startswith(part) and ".." not in one]
                archive.extractall(target, [one for one in chosen if not part or one.endswith(".py")])
    return target


def ask(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the answers of a stack's code to all cases."""
    target, stack = unpack(name, folder), name.split("@")[0]
    paths = [str(ROOT / "src"), *([str(target)] if stack in ("hf", "mlx-lm") and target.exists() else [])]
    cases = [{"fields": given, "text": text, "override": override} for given, text, override in CASES.values()]
    done = subprocess.run(
        [sys.executable, str(ASK), stack, str(target)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(reversed(paths)), "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def check(folder: Path) -> dict[str, dict[str, str]]:
    """Return for each stack and case "" where rules and code agree, "-" where it was not asked, else what differs."""
    out: dict[str, dict[str, str]] = {}
    for name in PACKAGES:
        rows = out[name] = {}
        replaces = loading.known()[name].override.when == "loaded"
        for (case, given), answer in zip(CASES.items(), ask(name, folder), strict=True):
            asked = not given[2] or replaces
            if name.startswith("mlx-lm") and case == "partial":  # StableLM there does not go through rope_utils.py
                asked = False
            rows[case] = agree(expect(name, given), answer) if asked else "-"
    return out


def main() -> int:
    """Check, report, and write the page."""
    found = check(Path(sys.argv[1]))
    for name, rows in found.items():
        wrong = {case: said for case, said in rows.items() if said not in ("", "-")}
        asked = sum(said != "-" for said in rows.values())
        print(f"{name}: {asked - len(wrong)} of {asked} cases agree")
        for case, said in wrong.items():
            print(f"    {case}: {said}")
    if "--write" in sys.argv:
        today = str(datetime.datetime.now(datetime.UTC).date())
        outcome = {"date": today, "cases": list(CASES), "stacks": found}
        ASK.with_name("parity_check.json").write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
        subprocess.run([sys.executable, str(ROOT / "docs/generate.py"), "stacks.md"], check=True)
    return int(any(said not in ("", "-") for rows in found.values() for said in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
