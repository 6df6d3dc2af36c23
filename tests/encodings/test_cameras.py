"""PRoPE and GTA: against their definitions forwards and backwards, in any frame of the world, in caches and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import defined
import posenc
import strategies
from drawn_options import INTRINSICS
from posenc import Compose, PerLayer, attend, explain, positions
from posenc.families import CameraTransform
from posenc.nn import Cache, LanguageModel
from strategies import normal, refuses

VIEWS = torch.from_numpy(np.array(posenc.PRoPE.spiral(5)))
NAMES = ["prope", "gta"]
POS = torch.tensor([[3, 1, 0], [0, 0, 1], [4, 2, 2], [3, 0, 7]])
K_POS = torch.tensor([[1, 5, 0], [0, 0, 0], *POS.tolist()])
SIDES = ("rotate_q", "rotate_k", "rotate_v", "unrotate_out")


def made(name: str, views: Any = VIEWS) -> Any:
    """An encoding of eight dimensions; PRoPE has a lens."""
    if name == "gta":
        return posenc.GTA(head_dim=8, size=(3, 8)).on(views)
    return posenc.PRoPE(head_dim=8, image_size=(240, 320)).on(views, INTRINSICS)


def qkv(batch: int = 2) -> list[Tensor]:
    """Four heads of four queries, two heads of six keys and values."""
    shapes = (batch, 4, 4, 8), (batch, 2, 6, 8), (batch, 2, 6, 8)
    return [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def of_definition(name: str, encoding: Any, side: int, pos: Tensor) -> Tensor:
    return torch.from_numpy(defined.matrices(name, encoding, pos.numpy(), side, 8))


def literally(name: str, encoding: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """The definition's matrices around a softmax, in steps that autograd follows."""
    q = torch.einsum("nde,bhne->bhnd", of_definition(name, encoding, 0, POS), q)
    k, v = (
        torch.einsum("nde,bhne->bhnd", of_definition(name, encoding, i + 1, K_POS), t) for i, t in enumerate((k, v))
    )
    scores = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    return torch.einsum("nde,bhne->bhnd", of_definition(name, encoding, 3, POS), mixed)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@strategies.check(40)
def test_each_side_is_its_definition_s_matrix(name: str, data: st.DataObject) -> None:
    encoding = strategies.draw_encoding(data, name)
    pos = data.draw(strategies.sites(encoding, batch=False))
    x, placed = normal(1, 3, len(pos), encoding.head_dim), encoding.place(pos, dtype=torch.float64)
    for side, of in enumerate(SIDES):
        matrices = defined.matrices(name, encoding, pos.numpy(), side, encoding.head_dim)
        wanted = np.einsum("nde,hne->hnd", matrices, x[0].numpy())
        np.testing.assert_allclose(getattr(encoding, of)(x, placed)[0].numpy(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("masks", [{}, {"causal": False}])
@pytest.mark.parametrize("name", NAMES)
def test_forwards_and_backwards_on_every_backend(name: str, masks: dict[str, Any]) -> None:
    """Four queries against a cache of six keys."""
    encoding, (q, k, v) = made(name), qkv()
    seen = torch.arange(6) <= torch.arange(2, 6)[:, None]
    wanted, pull = (
        literally(name, encoding, q, k, v, torch.ones_like(seen) if masks else seen),
        normal(2, 4, 4, 8, seed=9),
    )
    exact = torch.autograd.grad(wanted, (q, k, v), pull)
    placed, k_placed = (encoding.place(p, dtype=torch.float64) for p in (POS, K_POS))
    rotated = *encoding.rotate(q, k, placed, k_placed), encoding.rotate_v(v, k_placed)
    ran = []
    for verdict in explain(q, k, v, encoding, placed, k_placed, **masks):
        if verdict.verdict not in ("taken", "would run"):
            continue
        ran.append(verdict.backend)
        options = {"backend": verdict.backend, **masks}
        got = attend(q, k, v, encoding, placed, k_placed, **options)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        for mine, theirs in zip(torch.autograd.grad(got, (q, k, v), pull), exact, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)
        cached = attend(*rotated, encoding, placed, k_placed, rotated=True, **options)
        torch.testing.assert_close(cached, wanted, rtol=0, atol=1e-12)
    assert {"sdpa", "blocked", "reference", "reference-float64"} <= set(ran)


def frame(*, rigid: bool) -> Tensor:
    """A change of the world's frame: a rotation and a translation, or any matrix that has an inverse."""
    if not rigid:
        return torch.eye(4, dtype=torch.float64) + 0.3 * normal(4, 4, seed=5)
    moved = torch.eye(4, dtype=torch.float64)
    moved[:3, :3] = torch.linalg.qr(normal(3, 3, seed=5))[0]
    moved[:3, 3] = torch.tensor([3.0, -4.0, 0.5])
    return moved


@pytest.mark.parametrize("rigid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_another_frame_of_the_world_changes_nothing(name: str, rigid: bool) -> None:
    q, k, v = qkv()
    here, there = (
        attend(q, k, v, made(name, views), POS, K_POS, backend="reference-float64")
        for views in (VIEWS, VIEWS @ frame(rigid=rigid))
    )
    torch.testing.assert_close(there, here, rtol=0, atol=1e-11)
    other = VIEWS.clone()
    other[3] = other[3] @ frame(rigid=True)  # one camera that moves does
    assert not torch.allclose(attend(q, k, v, made(name, other), POS, K_POS), here, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_within_one_camera_scores_depend_on_distances_of_patches(name: str) -> None:
    q, k, v = qkv()
    first, moved = (
        attend(q, k, v, made(name), at[:4], at, causal=False, backend="reference-float64")
        for at in (
            torch.nn.functional.pad(positions.grid(2, 3) + shift, (1, 0), value=camera) for shift, camera in SHIFTS
        )
    )
    torch.testing.assert_close(first, moved, rtol=0, atol=1e-11)


SHIFTS = ((0, 0), (-9, 4))


def test_prope_without_a_lens_sees_poses_as_gta_does() -> None:
    prope, gta = posenc.PRoPE(head_dim=8).on(VIEWS), made("gta")
    x = normal(1, 1, 4, 8)
    for of in SIDES:
        ours, theirs = (getattr(e, of)(x, e.place(POS, dtype=torch.float64)) for e in (prope, gta))
        assert torch.equal(ours[..., :4], theirs[..., :4])
        assert not torch.allclose(made("prope").rotate_k(x, made("prope").place(POS))[..., :4], ours[..., :4])


@pytest.mark.parametrize("name", NAMES)
def test_scenes_of_a_batch_are_as_each_by_itself(name: str) -> None:
    scenes = torch.stack((VIEWS, VIEWS.flip(0) @ frame(rigid=True)))
    q, k, v = qkv()
    both = attend(q, k, v, made(name, scenes), POS.expand(2, -1, -1), K_POS.expand(2, -1, -1))
    for i, views in enumerate(scenes):
        one = attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], made(name, views), POS, K_POS)
        torch.testing.assert_close(both[i : i + 1], one, rtol=0, atol=1e-12)
    for pos in (POS, POS.expand(3, -1, -1)):
        with refuses(ValueError, "knows the cameras of 2 scenes, so pos must be (2, seq_len, 3)", "got"):
            made(name, scenes).place(pos)


def test_each_scene_and_camera_may_have_a_lens_of_its_own() -> None:
    scenes, lens = torch.stack((VIEWS, VIEWS)), torch.from_numpy(np.array(INTRINSICS))
    lenses = lens * torch.linspace(1, 2, 10, dtype=torch.float64).view(2, 5, 1, 1)
    prope, x = posenc.PRoPE(head_dim=8, image_size=(240, 320)), normal(2, 1, 4, 8)
    both = prope.on(scenes, lenses).place(POS.expand(2, -1, -1), dtype=torch.float64)
    for i in range(2):
        for camera in range(5):
            alone = prope.on(VIEWS, lenses[i, camera])
            at = torch.tensor([[camera, 1, 1]])
            wanted = alone.rotate_k(x[:1, :, :1], alone.place(at, dtype=torch.float64))
            one = prope.on(VIEWS, lenses[i])
            torch.testing.assert_close(one.rotate_k(x[:1, :, :1], one.place(at, dtype=torch.float64)), wanted)
        torch.testing.assert_close(
            prope.rotate_k(x, both)[i, :, 0], one.rotate_k(x, one.place(POS, dtype=torch.float64))[i, :, 0]
        )


@pytest.mark.parametrize("name", NAMES)
def test_far_cameras_are_exact_once_the_first_is_the_origin(name: str) -> None:
    """The limit that the docstring states: translations of 1,000 cost float32 three digits, and bfloat16 all."""
    far = torch.eye(4, dtype=torch.float64)
    far[:3, 3] = 1000.0
    views = VIEWS @ far
    pos = torch.cat([torch.nn.functional.pad(positions.grid(3, 3), (1, 0), value=i) for i in range(5)])
    wide = [normal(1, 2, 45, 8, seed=i).bfloat16().double() for i in range(3)]
    wanted = attend(*wide, made(name), pos, causal=False, backend="reference-float64")

    def off(views: Tensor, dtype: torch.dtype) -> float:
        got = attend(*(t.to(dtype) for t in wide), made(name, views), pos, causal=False)
        return float((got.double() - wanted).abs().max() / wanted.abs().max())

    first = views @ views[:1].inverse()
    assert off(first, torch.float32) < 3e-6
    assert off(first, torch.bfloat16) < 2e-2
    assert 1e-5 < off(views, torch.float32) < 3e-3
    assert off(views, torch.bfloat16) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_in_compose_and_layers(name: str) -> None:
    encoding, x = made(name), normal(1, 2, 4, 8)
    tempered = Compose(encoding, posenc.OnAxes(posenc.ALiBi(n_heads=2), [1], n_axes=3))
    layers = PerLayer([posenc.NoPE(n_axes=3), encoding])
    alone = encoding.place(POS, dtype=torch.float64)
    for other, index in ((tempered, 0), (layers, 1)):
        inner, placed = other.layer(index, other.place(POS, dtype=torch.float64))
        for of in SIDES:
            assert torch.equal(getattr(inner, of)(x, placed), getattr(encoding, of)(x, alone))


@pytest.mark.parametrize("name", NAMES)
def test_a_language_model_decodes_patches_with_its_cache(name: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(vocab_size=20, d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, encoding=made(name)).eval()
    text, cache = torch.randint(20, (1, 6), generator=torch.Generator().manual_seed(1)), Cache()
    whole = model(text, pos=K_POS)
    parts = [model(text[:, a:b], pos=K_POS[a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 6))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", NAMES)
def test_cameras_are_given_and_not_learned(name: str) -> None:
    with torch.device("meta"):
        encoding = made(name)
    assert not encoding.state_dict()
    moved = encoding.to("meta").to_empty(device="cpu").bfloat16()
    x = normal(1, 1, 4, 8)
    wanted = made(name).rotate_k(x, made(name).place(POS, dtype=torch.float64))
    assert torch.equal(moved.rotate_k(x, moved.place(POS, dtype=torch.float64)), wanted)
    views = VIEWS.clone().requires_grad_()
    assert not made(name, views).rotate_k(x, made(name, views).place(POS)).requires_grad
    first, other = made(name), made(name).on(VIEWS.flip(0)[:2])
    assert (first.max_len, other.max_len, type(first).max_len.fget(type(first)(**EMPTY[name]))) == (5, 2, None)


EMPTY: dict[str, dict[str, Any]] = {"prope": {"head_dim": 8}, "gta": {"head_dim": 8, "size": (3, 8)}}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_host_knows_is_enough_and_cameras_are_named_where_they_are_missing(name: str) -> None:
    encoding = posenc.create(name, dims=posenc.Dims(head_dim=8, grid=(3, 8)))
    assert isinstance(encoding, CameraTransform)
    with refuses(ValueError, "was placed before it knows one; got viewmats=None. Call on(viewmats)"):
        encoding.place(POS)
    assert repr(encoding.on(posenc.PRoPE.spiral(5))).endswith("viewmats=posenc.PRoPE.spiral(5))")


SINGULAR = torch.zeros(1, 4, 4)
RANK_THREE = (normal(4, 3, seed=6) @ normal(3, 4, seed=7))[None]
WRONG: dict[str, tuple[Any, type[Exception], str, str]] = {
    "no numbers": ("here", TypeError, "viewmats must be 4 x 4 matrices", "got 'here'"),
    "text": ([[["1.0"] * 4] * 4], TypeError, "viewmats must be 4 x 4 matrices of real numbers", "got list of 1"),
    "complex": (VIEWS * 1j, TypeError, "viewmats must be 4 x 4 matrices of real numbers", "got tensor("),
    "a complex array": (VIEWS.numpy() * 1j, TypeError, "viewmats must be 4 x 4 matrices of real numbers", "got array("),
    "shapes that differ": ([torch.eye(4), torch.eye(3)], TypeError, "viewmats must be 4 x 4 matrices", "got list of 2"),
    "a spiral of none": (("spiral", -1), ValueError, "spiral: n must be at least 1", "got -1"),
    "ragged": ([[1.0], [1.0, 2.0]], TypeError, "viewmats must be 4 x 4 matrices", "got list"),
    "one matrix": (torch.eye(4), ValueError, "(n_cameras, 4, 4) or (scenes, n_cameras, 4, 4)", "got (4, 4)"),
    "three rows": (torch.zeros(2, 3, 4), ValueError, "viewmats must be (n_cameras, 4, 4)", "got (2, 3, 4)"),
    "none": (torch.zeros(0, 4, 4), ValueError, "viewmats must be (n_cameras, 4, 4)", "got (0, 4, 4)"),
    "infinite": (VIEWS * torch.inf, ValueError, "viewmats must be finite", "got infinite ones or NaN"),
    "singular": (torch.cat((VIEWS, SINGULAR)), ValueError, "cameras must have inverses", "got 1 that have none"),
    "singular but for rounding": (RANK_THREE, ValueError, "cameras must have inverses", "got 1 that have none"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_wrong_cameras_are_refused(name: str, what: str) -> None:
    views, kind, *words = WRONG[what]
    who = () if words[0].startswith("spiral") else (type(made(name)).__name__,)
    with refuses(kind, *who, *words):
        made(name, views)


@pytest.mark.parametrize("name", NAMES)
def test_cameras_come_in_any_container_and_kind_of_real_numbers(name: str) -> None:
    x = normal(1, 1, 4, 8)
    whole = VIEWS.round()
    wanted = made(name, whole).rotate_k(x, made(name, whole).place(POS))
    learned = [view.clone().requires_grad_() for view in whole]
    for views in (list(whole), tuple(whole), learned, whole.long(), whole.half(), whole.tolist(), list(whole.numpy())):
        encoding = made(name, views)
        assert torch.equal(encoding.rotate_k(x, encoding.place(POS)), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_cameras_far_away_have_inverses(name: str) -> None:
    """Condition numbers of 10^16: what refuses matrices that rounding alone makes regular must not refuse these."""
    far = VIEWS.clone()
    far[:, :3, 3] += 1e8
    inverse = made(name, far)._around.table[1] @ made(name, far)._around.table[0]
    torch.testing.assert_close(inverse, torch.eye(4, dtype=torch.float64).expand(5, 4, 4), rtol=0, atol=1e-6)


def test_other_cameras_keep_the_lens_of_the_constructor() -> None:
    lens = INTRINSICS.table
    prope = posenc.PRoPE(head_dim=8, image_size=(240, 320), intrinsics=lens)
    x = normal(1, 1, 4, 8)
    twice = prope.on(VIEWS, 2 * lens)
    for kept, wanted in ((prope.on(VIEWS), made("prope")), (twice.on(VIEWS), twice)):
        assert torch.equal(kept.rotate_k(x, kept.place(POS)), wanted.rotate_k(x, wanted.place(POS)))
    with refuses(ValueError, "got (5, 3, 3) for viewmats of (2, 4, 4). Pass both for the same cameras"):
        prope.on(VIEWS, lens.expand(5, 3, 3)).on(VIEWS[:2])


def test_wrong_lenses_are_refused() -> None:
    prope = posenc.PRoPE(head_dim=8, image_size=(240, 320))
    with refuses(
        ValueError, "intrinsics must be (3, 3), or one for each camera; got (2, 3, 3) for viewmats of (5, 4, 4)"
    ):
        prope.on(VIEWS, torch.eye(3).expand(2, 3, 3))
    with refuses(ValueError, "intrinsics must be (3, 3) or (n_cameras, 3, 3) or (scenes, n_cameras, 3, 3); got (4, 4)"):
        prope.on(VIEWS, torch.eye(4))
    with refuses(ValueError, "viewmats must be (n_cameras, 4, 4)", "got (3, 3)"):
        prope.on(INTRINSICS)
    with refuses(ValueError, "intrinsics are in pixels", "got image_size=None. Pass it to the constructor"):
        posenc.PRoPE(head_dim=8).on(VIEWS, INTRINSICS)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_tokens_and_positions_are_refused(name: str) -> None:
    encoding, who = made(name), type(made(name)).__name__
    placed = encoding.place(POS)
    for camera in (-1, 5):
        with refuses(ValueError, f"{who}: positions must lie in 0..4, because axis 0 numbers the camera, of 5; got"):
            encoding.place(torch.tensor([[camera, 0, 0]]))
    with refuses(TypeError, f"{who}: needs integer positions"):
        encoding.place(POS.double())
    with refuses(ValueError, f"{who}: v must have head_dim=8 dimensions", "(1, 2, 4, 6)"):
        encoding.rotate_v(normal(1, 2, 4, 6), placed)
    with refuses(ValueError, f"{who}: out must have a token for each", "(1, 2, 3, 8)"):
        encoding.unrotate_out(normal(1, 2, 3, 8), placed)
    with refuses(ValueError, f"{who}: head_dim must be a multiple of 8", "got head_dim=12"):
        posenc.create(name, **EMPTY[name] | {"head_dim": 12})
