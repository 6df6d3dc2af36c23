"""What `attend` refuses and how it says so; what `explain` says."""

from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import attend, explain, positions
from posenc.attention import BACKENDS, whole
from strategies import normal, refuses

NOPE, POS = posenc.NoPE(), positions.arange(3)
Q, K, V = normal(2, 4, 3, 8, seed=1), normal(2, 2, 3, 8, seed=2), normal(2, 2, 3, 5, seed=3)


class Forgets(posenc.Encoding):
    """Needs the tokens."""

    reads_x = True


CASES: dict[str, tuple[dict[str, Any], type[Exception], list[str]]] = {
    "three dimensions": ({"q": Q[0]}, ValueError, ["must be (batch, heads, seq_len, head_dim)", "got q (4, 3, 8)"]),
    "batches": ({"k": K[:1], "v": V[:1]}, ValueError, ["same batch", "k (1, 2, 3, 8)"]),
    "head_dim": ({"q": Q[..., :4]}, ValueError, ["q and k must have the same head_dim", "got q (2, 4, 3, 4)"]),
    "no lanes": (
        {"q": Q[..., :0], "k": K[..., :0]},
        ValueError,
        ["q and k have head_dim 0", "got q (2, 4, 3, 0)", "scale=1.0"],
    ),
    "k and v": ({"v": V[:, :, :2]}, ValueError, ["k and v must have the same heads and length"]),
    "groups": ({"q": Q[:, :3]}, ValueError, ["the number of heads of k and v must divide that of q"]),
    "no heads": ({"k": K[:, :0], "v": V[:, :0]}, ValueError, ["must divide that of q"]),
    "integer mask": (
        {"mask": torch.ones(3, 3, dtype=torch.int64)},
        TypeError,
        ["mask must be boolean", "got torch.int64", "mask.bool()"],
    ),
    "mask shape": (
        {"mask": torch.ones(2, 3, dtype=torch.bool)},
        ValueError,
        ["broadcast to (batch, n_heads, q_len, k_len) = (2, 4, 3, 3)", "got (2, 3)", "mask[:, None, None, :]"],
    ),
    "mask of five": ({"mask": torch.ones(1, 1, 1, 3, 3)}, ValueError, ["mask must broadcast", "(1, 1, 1, 3, 3)"]),
    "window of a half": ({"window": 2.5}, TypeError, ["window must be a whole number of tokens; got window=2.5"]),
    "scale with a gradient": (
        {"scale": torch.ones(())},
        TypeError,
        ["scale must be a Python number, since it gets no gradient"],
    ),
    "a list for a mask": ({"mask": [True]}, TypeError, ["mask must be a tensor; got list"]),
    "a list of documents": ({"document_ids": [0, 0, 1]}, TypeError, ["document_ids must be a tensor; got list"]),
    "the encoding first": ({"q": NOPE, "encoding": V}, TypeError, ["q must be a tensor; got NoPE", "attend(q, k, v, "]),
    "no values, with k_pos": ({"v": None, "k_pos": POS}, TypeError, ["v must be a tensor; got NoneType"]),
    "whole numbers": ({"q": Q.long()}, TypeError, ["q must be float64, float32, bfloat16 or float16; got torch.int64"]),
    "window": ({"window": 0}, ValueError, ["window must be at least 1", "got window=0"]),
    "documents": (
        {"document_ids": torch.zeros(2, dtype=torch.int64)},
        ValueError,
        ["document_ids must be (k_len,) or (batch, k_len) with k_len=3", "got (2,)"],
    ),
    "documents before": (
        {"k": K[:, :, :2], "v": V[:, :, :2], "k_pos": POS[:2], "document_ids": torch.zeros(2, dtype=torch.int64)},
        ValueError,
        ["document_ids need q_len <= k_len; got 3 > 2"],
    ),
    "dropout": ({"dropout_p": 1.0}, ValueError, ["dropout_p must lie in [0, 1); got 1.0"]),
    "negative dropout": ({"dropout_p": -0.1}, ValueError, ["dropout_p must lie in [0, 1)"]),
    "no encoding": ({"encoding": torch.nn.Identity()}, TypeError, ["must be a posenc.Encoding; got Identity"]),
    "no k_pos": ({"q": Q[:, :, :1], "pos": POS[:1]}, ValueError, ["q has 1 tokens and k has 3", "Pass k_pos"]),
    "length of pos": (
        {"pos": positions.arange(4)},
        ValueError,
        ["pos holds 4 positions for 3 tokens", "k_pos for all keys"],
    ),
    "length of k_pos": ({"k_pos": positions.arange(2)}, ValueError, ["k_pos holds 2 positions for 3 tokens"]),
    "batch of pos": (
        {"pos": POS.expand(3, 3)},
        ValueError,
        ["pos has a batch of 3, but the tensors have a batch of 2", "(seq_len,)"],
    ),
    "reads tokens": (
        {"encoding": Forgets()},
        TypeError,
        ["Forgets reads the tokens", "encoding.place(pos, x) as pos"],
    ),
    "positions of a wrong kind": ({"pos": POS.half()}, TypeError, ["NoPE: positions must be integers"]),
    "other heads": ({"encoding": posenc.ALiBi(n_heads=8)}, ValueError, ["ALiBi: made for n_heads=8", "4 heads"]),
    "other lanes": ({"encoding": posenc.RoPE(head_dim=4)}, ValueError, ["RoPE: q and k must have head_dim=4"]),
    "backend": (
        {"backend": "flash"},
        ValueError,
        ["unknown backend 'flash'; use 'auto' or one of sdpa, piecewise, ", ", reference, reference-float64"],
    ),
}
GIVEN = {"q": Q, "k": K, "v": V, "encoding": NOPE, "pos": POS}


@pytest.mark.parametrize("what", CASES)
def test_what_attend_refuses(what: str) -> None:
    changes, kind, words = CASES[what]
    with refuses(kind, *words):
        attend(**{**GIVEN, **changes})


@pytest.mark.parametrize("what", [what for what in CASES if what not in ("other lanes",)])
def test_explain_refuses_the_same(what: str) -> None:
    changes, kind, words = CASES[what]
    with refuses(kind, *words):
        explain(**{**GIVEN, **changes})


def verdicts(**call: Any) -> dict[str, str]:
    return {v.backend: v.verdict for v in explain(**call)}


def test_the_first_that_can_is_taken() -> None:
    assert list(verdicts(**GIVEN)) == list(BACKENDS)
    plain = verdicts(**GIVEN)
    assert [name for name, verdict in plain.items() if verdict == "taken"] == ["sdpa"]
    assert plain["blocked"] == plain["reference"] == "would run"
    named = verdicts(**GIVEN, backend="reference")
    assert named["reference"] == "taken"
    assert named["sdpa"] == "would run"


ALIBI = posenc.ALiBi(n_heads=4)


@pytest.mark.parametrize(
    ("backend", "changes", "reason"),
    [
        ("sdpa", {"encoding": ALIBI}, "ALiBi adds a bias to the scores, which SDPA supports only as a mask of q_len x"),
        ("sdpa", {"window": 2}, "SDPA needs a whole mask of q_len x k_len for a mask, window or document_ids"),
        (
            "sdpa",
            {"q": Q[:, :, :2], "pos": POS[1:], "k_pos": POS},
            "is_causal aligns q and k at the first token, which is wrong where q_len differs from k_len",
        ),
        ("sdpa", {"dropout_p": 0.1}, "on a CPU torch's dropout forms all attention weights"),
    ],
)
def test_refusals_say_why(backend: str, changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "SMALL", 0)
    call = {**GIVEN, **changes}
    assert reason in verdicts(**call)[backend]
    with refuses(ValueError, f"the backend '{backend}' cannot run this call:", reason):
        attend(**call, backend=backend)
    assert attend(**call).shape == (*call["q"].shape[:3], 5)  # another one runs


@pytest.mark.parametrize("learns", [None, "q", "encoding"])
def test_a_larger_mask_only_where_gradients_are_kept(learns: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "SMALL", 0)
    encoding = posenc.Decomposed2D(head_dim=8, size=(1, 3)).double().requires_grad_(learns == "encoding")
    q = Q.clone().requires_grad_(learns == "q")
    call: dict[str, Any] = {**GIVEN, "q": q, "encoding": encoding, "pos": positions.grid(1, 3)}
    assert (verdicts(**call)["sdpa"] == "taken") == (learns is not None)
    with torch.no_grad():
        assert verdicts(**call)["sdpa"] != "taken"


def test_mixed_dtypes_are_refused_by_sdpa_and_run_all_the_same() -> None:
    mixed = {**GIVEN, "k": K.float()}
    seen = verdicts(**mixed)
    assert seen["sdpa"].startswith("q, k and v must have one dtype; got torch.float64, torch.float32")
    assert seen["reference"] == "taken"
    with refuses(ValueError, "the backend 'sdpa' cannot run this call: q, k and v must have one dtype"):
        attend(**mixed, backend="sdpa")
    torch.testing.assert_close(attend(**mixed), attend(**GIVEN), rtol=0, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {v.backend: v.verdict for v in explain(**mixed)}["sdpa"] == "taken"
        assert attend(**mixed).dtype == torch.float64  # as torch's own SDPA, which autocast leaves alone there


def long(n: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A long sequence that takes no memory."""
    row: Tensor = torch.zeros(1, 1, 1, 8, dtype=dtype).expand(1, 1, n, 8)
    return {"q": row, "k": row, "v": row, "encoding": NOPE, "pos": positions.arange(n)}


def test_the_reference_refuses_what_is_large_unless_asked_by_name() -> None:
    n = 16_384  # 3 * 2^28 numbers: 3 GiB in float32
    seen = {v.backend: v for v in explain(**long(n))}
    assert seen["sdpa"].verdict == "taken"
    assert seen["sdpa"].memory == 0
    assert seen["reference"].memory == 3 * n * n * 4
    assert "need 3.0 GiB, more than the limit of 2 GiB" in seen["reference"].verdict
    assert "Pass backend='reference'" in seen["reference"].verdict
    assert "6.0 GiB" in seen["reference-float64"].verdict
    named = {v.backend: v.verdict for v in explain(**long(n), backend="reference-float64")}
    assert named["reference-float64"] == "taken"
    assert "GiB" in named["reference"]


def test_no_backend_at_all() -> None:
    call = long(16_384)
    call["v"] = call["v"].double()
    with refuses(
        ValueError, "no backend can run this call:", "\n  sdpa: q, k and v", "\n  reference: it forms all scores"
    ):
        attend(**call)


def test_memory_grows_with_the_length_in_all_but_the_reference() -> None:
    def memory(n: int, encoding: posenc.Encoding, **options: Any) -> dict[str, int]:
        return {v.backend: v.memory for v in explain(**{**long(n), "encoding": encoding, **options})}

    for encoding in (NOPE, posenc.ALiBi(n_heads=1), posenc.Shaw(head_dim=8)):
        for options in ({}, {"window": 9}, {"dropout_p": 0.5}):
            short, far = memory(4_096, encoding, **options), memory(16_384, encoding, **options)
            for name in BACKENDS:
                growth = 16 if name.startswith(("reference", "flex")) else 4  # flex: a number for each 128 x 128
                assert far[name] <= growth * short[name], (name, options)
