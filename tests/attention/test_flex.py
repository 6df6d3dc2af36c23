"""FlexAttention: equality with the reference, what is refused, and gradients on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import posenc
from attention.flex_calls import NOPE, called, tensors
from posenc import attend, explain, positions
from posenc.attention import flex
from strategies import normal, refuses

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention's backward pass needs a GPU")
ON_CPU = pytest.mark.skipif(flex._compiler() is None, reason="compiling FlexAttention for a CPU needs a C++ compiler")


# ---- what is computed


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run FlexAttention's operators eagerly, which is fast; `test_compiled_for_a_cpu` tests its kernel."""
    eager = torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=False)
    torch.compiler.reset()
    monkeypatch.setattr(flex, "_compiled", lambda kind, on_cpu: eager)
    yield
    torch.compiler.reset()


def drawn(encoding: Any) -> Any:
    """Draw the parameters from N(0, 1), in float32."""
    for seed, parameter in enumerate(encoding.parameters()):
        parameter.data = normal(*parameter.shape, 1, seed=seed, dtype=torch.float32)[..., 0]
    return encoding


BIASES = {
    "none": NOPE,
    "alibi": posenc.ALiBi(n_heads=4),
    "t5": drawn(posenc.T5(n_heads=4, max_distance=40)),
    "kerple": drawn(posenc.KERPLE(n_heads=4)),
    "fire": drawn(posenc.FIRE(n_heads=4, width=3, init_threshold=9.0)),
    "fox": drawn(posenc.FoX(d_model=6, n_heads=4)),
    "dynamic": drawn(posenc.DynamicPositionBias(n_heads=4)),
    "three": posenc.Compose(posenc.RoPE(head_dim=8), posenc.ALiBi(n_heads=4), drawn(posenc.T5(n_heads=4))),
}
IDS = torch.tensor([[0] * 9 + [1] * 11, [2] * 3 + [5] * 17])
PADDING = torch.arange(20) >= torch.tensor([[4], [0]])
FLOAT = normal(2, 1, 20, 20, seed=9, dtype=torch.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "cache": {"q_len": 6},
    "one query": {"q_len": 1},
    "more queries than keys": {"q_len": 27},
    "both ways": {"causal": False},
    "window": {"window": 5, "q_len": 12},
    "window both ways": {"window": 5, "causal": False},
    "documents": {"document_ids": IDS},
    "documents, cache": {"document_ids": IDS[0], "q_len": 6},
    "padding": {"mask": PADDING[:, None, None]},
    "all at once": {"mask": PADDING[:, None, None], "document_ids": IDS, "window": 7},
    "boolean": {"mask": FLOAT > -0.5, "causal": False},
    "floating": {"mask": FLOAT.masked_fill(FLOAT < -0.5, -torch.inf)},
    "least numbers": {"mask": FLOAT.masked_fill(FLOAT < 0.5, torch.finfo(torch.float32).min)},
    "blind rows": {"mask": FLOAT.masked_fill(torch.arange(20)[:, None] % 3 == 0, torch.finfo(torch.float32).min)},
    "of heads": {"mask": FLOAT[:1, 0, 0].view(1, 1, 1, 20) * torch.arange(4.0).view(1, 4, 1, 1)},
    "nothing seen": {"mask": torch.zeros(1, 1, 1, 20, dtype=torch.bool)},
    "scale": {"scale": -0.3},
    "no scale": {"scale": 0.0},
}


def placed_for(encoding: posenc.Encoding, q_len: int, k_len: int) -> tuple[Any, Any]:
    n = max(q_len, k_len)
    x = normal(2, n, 6, seed=7, dtype=torch.float32) if encoding.reads_x else None
    everything = encoding.place(positions.arange(n, start=3), x)
    return everything.last(q_len), everything.last(k_len)


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("name", BIASES)
@torch.no_grad()
def test_it_equals_the_reference(name: str, uncompiled: None) -> None:
    encoding = BIASES[name]
    wanted = list(OPTIONS) if name == "none" else ["causal", "cache", "all at once", "floating"]
    for what in wanted:
        torch.compiler.reset()
        options = dict(OPTIONS[what])
        q, k, v = tensors(q_len := options.pop("q_len", 20), 20)
        pos = placed_for(encoding, q_len, 20)
        got = attend(q, k, v, encoding, *pos, backend="flex", **options)
        true = attend(q, k, v, encoding, *pos, backend="reference-float64", **options)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, true, rtol=0, atol=4e-6, msg=lambda m, what=what: f"{what}: {m}")


@pytest.mark.slow
@pytest.mark.compiles
@torch.no_grad()
def test_batched_and_real_positions(uncompiled: None) -> None:
    q, k, v = tensors(20, 20)
    for pos in (torch.stack((torch.arange(20), torch.arange(20) * 3)), normal(2, 20).cumsum(-1), torch.arange(20) / 2):
        torch.compiler.reset()
        got = attend(q, k, v, BIASES["alibi"], pos, backend="flex")
        true = attend(q, k, v, BIASES["alibi"], pos, backend="reference-float64")
        torch.testing.assert_close(got, true, rtol=0, atol=4e-6)


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_does_not_round_the_bias(dtype: torch.dtype, uncompiled: None) -> None:
    """At far distances slope times distance needs more bits than half precision has."""
    q, k, v = (t.to(dtype) for t in tensors(20, 20))
    pos = positions.arange(20) * 37
    for mask in (None, FLOAT.to(dtype)):
        torch.compiler.reset()
        got = attend(q, k, v, BIASES["alibi"], pos, mask=mask, backend="flex")
        assert got.dtype == dtype
        true = attend(q, k, v, BIASES["alibi"], pos, mask=mask, backend="reference-float64")
        torch.testing.assert_close(got, true, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_masks_are_added_to_scores_in_float32() -> None:
    assert flex.score_mod(called(5, 7)) is None
    mod = flex.score_mod(called(2, 2, mask=torch.ones(2, 2, dtype=torch.bfloat16)))
    assert mod is not None
    one = torch.tensor(0)
    assert float(mod(torch.tensor(300.0, dtype=torch.bfloat16), one, one, one, one)) == 301.0  # bfloat16 has 300 or 302


HIDDEN: dict[str, tuple[slice, int, dict[str, Any]]] = {
    "padding": (slice(0, 4), 20, {"mask": (torch.arange(20) >= 4).view(1, 1, 1, 20)}),
    "floating": (slice(0, 4), 20, {"mask": torch.zeros(20).masked_fill(torch.arange(20) < 4, -torch.inf)}),
    "window": (slice(0, 10), 6, {"window": 5}),
    "documents": (slice(0, 9), 6, {"document_ids": IDS[0]}),
}


@pytest.mark.sample(1)
@pytest.mark.compiles
@pytest.mark.parametrize("what", HIDDEN)
@torch.no_grad()
def test_hidden_keys_may_be_nan(what: str, uncompiled: None) -> None:
    where, q_len, options = HIDDEN[what]
    q, k, v = tensors(q_len, 20)
    spoiled = k.clone(), v.clone()
    for t in spoiled:
        t[:, :, where] = torch.nan
    pos = placed_for(BIASES["alibi"], q_len, 20)
    clean = attend(q, k, v, BIASES["alibi"], *pos, backend="flex", **options)
    got = attend(q, *spoiled, BIASES["alibi"], *pos, backend="flex", **options)
    assert bool(got.isfinite().all())
    assert torch.equal(got, clean)


@pytest.mark.compiles
@torch.no_grad()
def test_a_key_of_nan_does_not_reach_rows_that_do_not_see_it(uncompiled: None) -> None:
    q, k, v = tensors(20, 20)
    k[:, :, 7] = torch.nan
    for mask in (FLOAT > -9, FLOAT.clone()):
        torch.compiler.reset()
        mask[:, :, :15, 7] = False if mask.dtype == torch.bool else -torch.inf
        got = attend(q, k, v, NOPE, positions.arange(20), mask=mask, causal=False, backend="flex")
        assert bool(got[:, :, :15].isfinite().all())
        assert bool(got[:, :, 15:].isnan().all())


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@ON_CPU
@pytest.mark.parametrize("name", ["t5", "alibi"])
@torch.no_grad()
def test_compiled_for_a_cpu(name: str) -> None:
    """Empty, partial and full blocks; NaN in hidden slots, rows that see nothing, grouped heads."""
    encoding, n = BIASES[name], 300
    dtype = torch.float32 if name == "t5" else torch.bfloat16
    q, k, v = tensors(n, n, dtype)
    ids = (torch.arange(n) >= torch.tensor([[150], [20]])).long()
    mask = (torch.arange(n) >= torch.tensor([[140], [3]]))[:, None, None]
    k[0, :, :140] = v[0, :, :140] = torch.nan
    options = {"mask": mask, "document_ids": ids, "window": 60} if name == "t5" else {"mask": mask}
    got = attend(q, k, v, encoding, positions.arange(n), backend="flex", **options)
    true = attend(q, k, v, encoding, positions.arange(n), backend="reference-float64", **options)
    torch.testing.assert_close(got, true, rtol=0, atol=4e-6 if name == "t5" else 2e-2)
    assert not bool(got[0, :, :140].any())
    assert bool(got[0, :, 140:].any(-1).all())


# ---- what is refused


class Anew(posenc.ALiBi):
    """Another bias than that of the score_mod."""

    def bias(self, q: Tensor, k: Tensor, placed: posenc.Placed, k_placed: posenc.Placed) -> Tensor:
        return super().bias(q, k, placed, k_placed) * 2


class Branches(posenc.ALiBi):
    """A score_mod that branches on a value."""

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        return super().at(h, q, k) * (2.0 if bool((q == 3).all()) else 1.0)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = q, k, v = tensors(4, 4)
    pos, grid = positions.arange(4), torch.stack((torch.arange(4) // 2, torch.arange(4) % 2), -1)
    with_grad = "has no backward pass on a CPU. Call it under torch.no_grad()"
    cases: list[tuple[Any, Any, Any, str]] = [
        (qkv, posenc.Shaw(head_dim=8), pos, "Shaw reads whole queries and keys, but a score_mod sees one score"),
        (qkv, posenc.SwinV2(n_heads=4), grid, "SwinV2 forms vectors for each score (stack), but compiled"),
        (qkv, posenc.CoPE(head_dim=8), pos, "CoPE maps whole rows of scores to new ones"),
        (qkv, Anew(n_heads=4), pos, "Anew overrides its bias but not its score_mod"),
        (qkv, Branches(n_heads=4), pos, "Branches has a score_mod that cannot be traced"),
        ([t.double() for t in qkv], NOPE, pos, "computes scores in float32, which is less precise than torch.float64"),
        ([t[:0] for t in qkv], NOPE, pos, "nothing to compile for tensors without elements"),
        (qkv, BIASES["t5"], pos, with_grad),
        ((q.clone().requires_grad_(), k, v), NOPE, pos, with_grad),
        (qkv, posenc.RoPE(head_dim=8, trainable=True), pos, with_grad),
    ]
    for given, encoding, where, reason in cases:
        refused = refuses(ValueError, "the backend 'flex' cannot run this call:", reason)
        with refused, torch.set_grad_enabled(reason == with_grad):
            attend(*given, encoding, where, backend="flex")
    with refuses(ValueError, "FlexAttention has no dropout"):
        attend(q, k, v, NOPE, pos, backend="flex", dropout_p=0.1)
    with refuses(ValueError, "cannot run within a compiler or a transform"):
        torch.func.grad(lambda q: attend(q, k, v, NOPE, pos, backend="flex").sum())(q)
    monkeypatch.setattr(flex, "_compiler", lambda: None)
    with refuses(ValueError, "without a C++ compiler FlexAttention forms all scores on a CPU"):
        attend(q, k, v, NOPE, pos, backend="flex")


def test_it_runs_on_a_cpu_only_by_name_and_not_on_other_devices() -> None:
    q, k, v = tensors(4, 4)
    verdicts = {v.backend: v.verdict for v in explain(q, k, v, NOPE, positions.arange(4))}
    assert verdicts["flex"].startswith("on a CPU FlexAttention has no backward pass and takes seconds to compile")
    named = {v.backend: v.verdict for v in explain(q, k, v, NOPE, positions.arange(4), backend="flex")}
    assert named["flex"] == "taken"
    assert flex.Flex().rejects(called(4, 4, device="meta")) == "FlexAttention is not tested on meta."


def test_untested_gradients_are_computed_only_by_name() -> None:
    """On a GPU, for which tensors on the meta device stand here."""

    def reason(encoding: posenc.Encoding, n: int, named: bool = False, **options: Any) -> str | None:
        call = called(n, n, encoding, device="meta", **options)
        call.q.requires_grad_()
        return flex._refuses_gradients(call, call.leaves, named)

    assert reason(BIASES["alibi"], 256) is None
    lengths = "NaN in FlexAttention's backward pass where lengths are not multiples of 128; got 200 and 200"
    assert lengths in str(reason(BIASES["alibi"], 200))
    bias = "gradients of a learned bias or mask through FlexAttention are not tested, here with "
    learned = posenc.KERPLE(n_heads=4).to("meta")
    assert f"{bias}KERPLE" in str(reason(learned, 256))
    assert bias in str(reason(NOPE, 256, mask=torch.zeros(256, 256, device="meta", requires_grad=True)))
    assert reason(learned, 200, named=True) is None
    with torch.no_grad():
        assert reason(learned, 200) is None
    assert reason(learned.requires_grad_(False), 256) is None


def test_memory_holds_a_number_for_each_pair_of_blocks() -> None:
    assert flex.Flex().memory(called(256, 384)) == 16 * 2 * 3
    assert flex.Flex().memory(called(256, 384, causal=False)) == 0
    copies = 2 * (4 * 256 * 8 + 2 * 384 * (8 + 6)) * 4
    assert flex.Flex().memory(called(256, 384, window=9)) == 16 * 2 * 3 + copies


# ---- a GPU


LEARNED = {
    "alibi": posenc.ALiBi(n_heads=4),
    "t5": posenc.T5(n_heads=4, max_distance=40),
    "kerple": posenc.KERPLE(n_heads=4),
    "relative": posenc.RelativeBias(n_heads=4, max_distance=30),
    "fire": posenc.FIRE(n_heads=4, width=3, init_threshold=50.0),
}


@ON_GPU
@pytest.mark.compiles
@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("n", [256, 200])
@pytest.mark.parametrize("options", [{}, {"window": 70}, {"document_ids": True}, {"mask": True}], ids=str)
def test_gradients_on_a_gpu_are_those_of_float64(name: str, n: int, options: dict[str, Any]) -> None:
    """The output, and the gradients of q, k, v and learned parameters."""
    encoding = drawn(LEARNED[name]).cuda()
    given_options: dict[str, Any] = dict(options)
    if "document_ids" in options:
        given_options["document_ids"] = (torch.arange(n) >= n // 3).long().cuda()
    if "mask" in options:
        given_options["mask"] = (torch.arange(n) >= torch.tensor([[40], [0]]))[:, None, None].cuda()
    qkv = [t.cuda().requires_grad_() for t in tensors(n, n)]
    weight = normal(2, 4, n, 6, seed=8, dtype=torch.float32).cuda()
    found = []
    for backend in ("flex", "reference-float64"):
        out = attend(*qkv, encoding, positions.arange(n, device="cuda"), backend=backend, **given_options)
        found.append([out, *torch.autograd.grad((out * weight).sum(), [*qkv, *encoding.parameters()])])
    for mine, true in zip(*found, strict=True):
        assert bool(mine.isfinite().all())
        assert float((mine - true).abs().max()) <= 2e-3 * max(1.0, float(true.abs().max()))


@ON_GPU
@pytest.mark.compiles
@torch.no_grad()
def test_on_a_gpu_a_third_length_compiles_nothing() -> None:
    torch.compiler.reset()
    flex._compiled.cache_clear()
    for n, then in ((256, "default"), (384, "default"), (512, "fail_on_recompile"), (640, "fail_on_recompile")):
        q, k, v = (t.cuda() for t in tensors(n, n))
        with torch.compiler.set_stance(then):
            attend(q, k, v, BIASES["alibi"], positions.arange(n, device="cuda"), backend="flex")
