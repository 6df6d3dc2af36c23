"""Learned biases on two ranks: sharded by FSDP2, and split by heads; gradients and steps are those of one process.

Run as a script, this file is one of the two processes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

import posenc
from posenc import attend, positions
from posenc.nn import LanguageModel
from strategies import normal
from two_ranks import SHARDED, WORLD, WRAPPERS, assert_same, followed, rank, run_ranks, sharded, trained, wrapped

HEADS = 4
DIMS = posenc.Dims(d_model=16, n_heads=HEADS, n_kv_heads=2, head_dim=4, max_len=16)
MODELS = ("t5", "kerple")
WRAPPED = ("learned", "fire", "shaw", "transformer_xl", "cope", "rope")
SPLIT = ("alibi", "t5", "kerple", "relative_bias", "fire", "fox")
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "both ways": {"causal": False},
    "window": {"window": 3},
}


# ---- what one process computes, and each of two


def language_model(name: str) -> LanguageModel:
    """Two layers that share one learned encoding, drawn from a seed."""
    torch.manual_seed(0)
    learned = {"rope": {"trainable": True}, "shaw": {"max_distance": 5}}.get(name, {})
    encoding = posenc.create(name, dims=DIMS, **learned)
    model = LanguageModel(vocab_size=11, d_model=16, n_layers=2, n_heads=HEADS, n_kv_heads=2, encoding=encoding)
    for parameter in encoding.parameters():
        nn.init.normal_(parameter)
    return model.double()


def attended(name: str, options: dict[str, Any], first: int, n: int) -> dict[str, Tensor]:
    """Attend in some of the heads, and return the gradients of all that they read."""
    torch.manual_seed(0)
    given = {"fox": {"d_model": 6}, "alibi": {"slopes": "learned"}, "relative_bias": {"max_distance": 5}}
    bias: Any = posenc.create(name, n_heads=HEADS, **given.get(name, {})).double()
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    x = normal(2, 10, 6, seed=4).requires_grad_()
    placed = bias.place(positions.arange(10), x if bias.reads_x else None, dtype=torch.float64)
    mine = slice(first, first + n)
    q, k, v, weight = (normal(2, HEADS, 10, 8, seed=i)[:, mine].requires_grad_() for i in range(4))
    out = attend(q, k, v, bias.of_heads(first, n), placed, **options)
    (out * weight.detach()).sum().backward()
    shared = {f"shared {name}": p.grad for name, p in bias.named_parameters()}
    if bias.reads_x:
        shared["shared x"] = x.grad
    assert all(t is not None for t in shared.values())
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad, **shared}  # type: ignore[dict-item]


def compute(number: int, mesh: Any) -> dict[str, Any]:
    """Return the results of each case on one rank."""
    found: dict[str, Any] = {}
    for name in MODELS:
        for how in SHARDED:
            model = sharded(language_model(name), how, mesh)
            local = {n: p.to_local().shape for n, p in model.encoding.named_parameters()}
            found[f"{name} {how}"] = trained(model, slice(2 * number, 2 * number + 2)), local
    for name in (*MODELS, *WRAPPED):
        for how in WRAPPERS:
            model = wrapped(language_model(name), how)
            found[f"{name} {how}"] = followed(model, slice(2 * number, 2 * number + 2))
    n = HEADS // WORLD
    for name in SPLIT:
        for what, options in OPTIONS.items():
            mine = attended(name, options, n * number, n)
            for key, t in mine.items():
                if key.startswith("shared"):
                    dist.all_reduce(t)
                else:
                    parts = [torch.empty_like(t) for _ in range(WORLD)]
                    dist.all_gather(parts, t.contiguous())
                    mine[key] = torch.cat(parts, 1)
            found[f"{name} {what}"] = mine
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize("how", SHARDED)
@pytest.mark.parametrize("name", MODELS)
def test_fsdp_has_the_gradients_and_the_step_of_one_process(found: Any, name: str, how: str) -> None:
    _, *wanted = trained(language_model(name), slice(None))
    start = dict(language_model(name).encoding.named_parameters())
    for one in found:
        (_, *results), local = one[f"{name} {how}"]
        for got, true in zip(results, wanted, strict=True):
            assert_same(got, true, 1e-9)
        for key, shape in local.items():  # half of each table on each rank
            assert shape[0] == start[key].shape[0] // WORLD
            assert float(results[0][f"encoding.{key}"].abs().max()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("how", WRAPPERS)
@pytest.mark.parametrize("name", [*MODELS, *WRAPPED])
def test_ddp_and_fsdp_1_take_the_steps_of_one_process(found: Any, name: str, how: str) -> None:
    got = torch.cat([one[f"{name} {how}"] for one in found], 1)
    torch.testing.assert_close(got, followed(language_model(name), slice(None)), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("what", OPTIONS)
@pytest.mark.parametrize("name", SPLIT)
def test_heads_on_two_ranks_are_the_whole(found: Any, name: str, what: str) -> None:
    wanted = attended(name, OPTIONS[what], 0, HEADS)
    for one in found:
        assert_same(one[f"{name} {what}"], wanted)


def test_the_whole_is_the_reference() -> None:
    """The results that two processes are compared with are right."""
    for name in SPLIT:
        for options in OPTIONS.values():
            exact = attended(name, {**options, "backend": "reference-float64"}, 0, HEADS)
            assert_same(attended(name, options, 0, HEADS), exact)


if __name__ == "__main__":
    rank(compute)
