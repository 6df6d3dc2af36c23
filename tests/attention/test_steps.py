"""Steps of generation, whose bias is kept from one to the next: what the law says, whatever was changed between."""

import copy
import gc
import threading
import weakref
from functools import partial

import pytest
import torch

import posenc
from posenc import positions
from posenc.attention import kept, steps

NAMES = ("alibi", "t5", "kerple", "kerple_power", "sandwich", "relative_bias", "dynamic_position_bias")
DIMS = posenc.Dims(d_model=32, n_heads=4, head_dim=8, max_len=64)


def encoding_of(name: str) -> posenc.Encoding:
    torch.manual_seed(1)
    return posenc.create(name, dims=DIMS)


def sides(encoding, n, *, at=None, first=0, dtype=torch.float32, kv_heads=4, batch=2):
    generator = torch.Generator().manual_seed(n)
    q = torch.randn(batch, 4, 1, 8, generator=generator, dtype=torch.float64).to(dtype)
    k, v = (torch.randn(batch, kv_heads, n, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    here = torch.tensor([first + n - 1 if at is None else at])
    return q, k, v, encoding.place(here, dtype=exact), encoding.place(positions.arange(n) + first, dtype=exact)


def check(encoding, n, tolerance=3e-6, **options):
    q, k, v, here, there = sides(encoding, n, **options)
    with torch.no_grad():
        found = posenc.attend(q, k, v, encoding, here, there)
        wanted = posenc.attend(q.double(), k.double(), v.double(), encoding, here.pos, there.pos, backend="reference")
    assert found.dtype == q.dtype
    assert (found.double() - wanted).abs().max() < tolerance


@pytest.fixture
def taken(monkeypatch):
    """Whether the steps of a test came from what is kept."""
    found = []
    row = kept.row

    def watched(*args):
        found.append(row(*args))
        return found[-1]

    monkeypatch.setattr(kept, "row", watched)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_generation_step_by_step(name, taken):
    encoding = encoding_of(name)
    for n in (1, 2, 3, 700, 1024, 1025, 2100, 5000, 12):
        check(encoding, n)
    assert [row is not None for row in taken] == [True] * 9


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.02), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_other_dtypes_after_float32(name, dtype, tolerance, taken):
    encoding = encoding_of(name)
    check(encoding, 40)
    check(encoding, 41, dtype=dtype, tolerance=tolerance)
    check(encoding, 42)
    assert all(row is not None for row in taken)


@pytest.mark.parametrize("name", NAMES)
def test_positions_of_other_kinds_are_formed_anew(name, taken):
    encoding = encoding_of(name)
    check(encoding, 9, first=5_000_000)  # a sliding cache
    check(encoding, 9, at=40)  # a gap
    check(encoding, 9, at=3)  # keys ahead
    q, k, v, here, _ = sides(encoding, 9)
    for pos in (torch.tensor([0, 1, 2, 3, 5, 4, 6, 7, 8]), torch.tensor([0, 0, 0, 0, 1, 2, 3, 4, 8])):
        with torch.no_grad():
            found = posenc.attend(q, k, v, encoding, here, encoding.place(pos))
            wanted = posenc.attend(*(t.double() for t in (q, k, v)), encoding, here.pos, pos, backend="reference")
        assert (found.double() - wanted).abs().max() < 3e-6
    assert [row is not None for row in taken] == [True, False, False, False, False]


def test_grouped_heads(taken):
    check(encoding_of("t5"), 30, kv_heads=2)
    check(encoding_of("alibi"), 30, kv_heads=1, batch=1)
    assert all(row is not None for row in taken)


@pytest.mark.parametrize("name", ["t5", "kerple", "relative_bias", "dynamic_position_bias"])
def test_whatever_changes_what_is_learned_is_seen(name, taken):
    told = partial(check, tolerance=1e-4)  # numbers grow, and a network rounds more
    encoding = encoding_of(name)
    told(encoding, 20)
    with torch.no_grad():
        for p in encoding.parameters():
            p.add_(0.3)
    told(encoding, 20)
    for p in encoding.parameters():
        p.data.mul_(1.7)  # leaves no mark on p
    told(encoding, 20)
    encoding.load_state_dict({key: t * 0.5 for key, t in encoding.state_dict().items()})
    told(encoding, 20)
    told(encoding.double(), 20)
    check(encoding.to(torch.bfloat16), 20, tolerance=0.03)  # a network may round
    first = next(iter(dict(encoding.named_parameters())))
    owner, _, leaf = first.rpartition(".")
    setattr(encoding.get_submodule(owner), leaf, torch.nn.Parameter(encoding.get_parameter(first).detach() * 2 + 1))
    told(encoding, 20)
    assert all(row is not None for row in taken)


def test_a_setting_changed_by_hand_is_seen():
    encoding = posenc.T5(n_heads=4, max_distance=128)
    check(encoding, 60)
    twin = posenc.T5(n_heads=4, max_distance=20)
    twin.load_state_dict(encoding.state_dict())
    encoding._edges, encoding.max_distance = twin._edges, 20
    check(encoding, 60)


def test_copies_and_ranks_have_their_own():
    encoding = encoding_of("t5")
    check(encoding, 20)
    twin = copy.deepcopy(encoding)
    with torch.no_grad():
        twin.weight.add_(1.0 + torch.arange(4.0))
    check(twin, 20)
    check(encoding, 20)
    q, k, v, here, there = sides(encoding, 20)
    with torch.no_grad():
        whole = posenc.attend(q, k, v, encoding, here, there)
        for first in (0, 2):
            at = slice(first, first + 2)
            part = posenc.attend(q[:, at], k[:, at], v[:, at], encoding.of_heads(first, 2), here, there)
            assert torch.equal(part, whole[:, at])


def test_a_subclass_that_defines_the_bias_anew_is_not_kept(taken):
    class Steeper(posenc.ALiBi):
        def at(self, h, q, k):
            return 2 * super().at(h, q, k) - 0.1 * (q % 2)

    check(Steeper(n_heads=4), 15)
    assert not taken


def test_what_is_not_a_step_goes_the_long_way(taken):
    encoding = encoding_of("t5")
    q, k, v, here, there = sides(encoding, 12)
    mask = torch.ones(1, 1, 1, 12, dtype=torch.bool)
    mask[..., 3] = False
    posenc.attend(q, k, v, encoding, here, there)  # with gradients
    with torch.no_grad():
        posenc.attend(q, k, v, encoding, here, there, mask=mask)
        posenc.attend(q, k, v, encoding, here, there, window=4)
        posenc.attend(q, k, v, encoding, here, there, document_ids=torch.arange(12) // 5)
        posenc.attend(q, k, v, encoding, here, there, backend="reference")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert posenc.attend(q, k, v, encoding, here, there).dtype == torch.bfloat16
        torch.func.vmap(lambda q: posenc.attend(q[None], k[:1], v[:1], encoding, here, there))(q)
    assert not taken


@pytest.mark.parametrize("wrong", ["heads", "lengths", "lanes", "positions"])
def test_wrong_steps_are_told_as_ever(wrong):
    encoding = encoding_of("alibi")
    q, k, v, here, there = sides(encoding, 12)
    if wrong == "heads":
        q, k, v = q[:, :2], k[:, :2], v[:, :2]
    elif wrong == "lengths":
        v = v[:, :, 1:]
    elif wrong == "lanes":
        k = k[..., 1:]
    else:
        there = encoding.place(positions.arange(11))
    with torch.no_grad(), pytest.raises(ValueError, match="attend|ALiBi"):
        posenc.attend(q, k, v, encoding, here, there)


def test_nothing_is_kept_of_an_encoding_that_is_gone():
    encoding = encoding_of("t5")
    check(encoding, 12)
    assert encoding in kept._kept
    gone = weakref.ref(encoding)
    del encoding
    gc.collect()
    assert gone() is None


def test_threads_on_one_encoding():
    encoding, failed = encoding_of("t5"), []

    def work(lengths):
        try:
            for n in lengths:
                check(encoding, n)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(range(start, 2500, 97),)) for start in (1, 500, 900, 1400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_the_step_is_the_backend_that_explain_names():
    encoding = encoding_of("alibi")
    q, k, v, here, there = sides(encoding, 12)
    with torch.no_grad():
        names = [one.backend for one in posenc.explain(q, k, v, encoding, here, there) if one.verdict == "taken"]
        found = steps.step(q, k, v, encoding, here, there, None, "auto")
        assert names == ["distance"]
        assert torch.equal(found, posenc.attend(q, k, v, encoding, here, there))
