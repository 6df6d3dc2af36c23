"""Each law finds an encoding, or a backend, that is broken on purpose."""

import dataclasses
from typing import Any

import pytest
from torch import Tensor

import posenc
from laws import broken
from posenc import definitions, laws, registry
from posenc.attention import BACKENDS
from posenc.attention.blocked import Blocked
from posenc.attention.call import Call
from posenc.attention.whole import Reference
from posenc.declared import Declared

# law: the broken encodings, their arguments, and words of the violation
PLANTED: dict[str, list[tuple[type[posenc.Encoding], dict[str, Any], str]]] = {
    "definition": [
        (broken.SeesPositions, {"n_heads": 4}, "differs by"),
        (broken.RotatesClockwise, {"head_dim": 8}, "rotated q differs by"),
        (broken.CubesValues, {"head_dim": 8}, "the output differs by"),
        (broken.ReplacesZeros, {"n_heads": 4, "max_distance": 16}, "with zeros among the parameters it differs by"),
        (
            broken.AcceptsNegativeRows,
            {"n_heads": 2, "window": (64, 64)},
            "accepts positions that its definition refuses: a token at (",
        ),
    ],
    "traits": [
        (broken.SeesPositions, {"n_heads": 4}, "declared shift_invariant, but moving all positions changes scores"),
        (broken.ForgetsTheOutput, {"head_dim": 8}, "declared shift_invariant, but moving all positions changes scores"),
        (broken.RoundsPositions, {"n_heads": 4}, "accepts real positions but ignores their fractions"),
        (broken.LearnsARowMore, {"n_heads": 4, "max_distance": 16}, "declared learned="),
        (broken.EndsTooEarly, {"d_model": 32}, "declared longest="),
        (broken.KeepsTheDtype, {"n_heads": 4}, "but by_distance is False"),
        (broken.HidesItsDistance, {"head_dim": 8}, "because by_distance is False"),
    ],
    "integer kinds": [(broken.KeepsTheDtype, {"n_heads": 4}, "torch.uint8 positions give another result")],
    "inverse": [
        (broken.ForgetsTheGain, {"head_dim": 8}, "q differs by"),
        (broken.ForgetsTheOutput, {"head_dim": 8}, "v differs by"),
    ],
    "sincere errors": [
        (broken.AcceptsAnything, {"head_dim": 8}, "half-precision positions: raised nothing"),
        (broken.RaisesVagueErrors, {"n_heads": 4}, "q of other heads: the message does not name the encoding"),
        (broken.CountsFromTheEnd, {"d_model": 32, "max_len": 128}, "position [-1] gets the vector of position [127]"),
        (broken.ReadsTheNextRow, {"d_model": 8, "height": 64, "width": 70}, "but not together"),
    ],
    "permutation": [(broken.CountsByIndex, {"d_model": 32}, "differs by")],
    "cache": [(broken.CountsByIndex, {"d_model": 32}, "in chunks (11, 1)")],
    "packing": [(broken.CountsByIndex, {"d_model": 32}, "differs by")],
    "left padding": [
        (broken.CentresTokens, {"d_model": 32}, "differs by nan"),
        (broken.ForgetsInGaps, {"d_model": 32, "n_heads": 4}, "around a gap it differs by"),
    ],
    "padding in gradients": [(posenc.ALiBi, {"n_heads": 4}, "leaky: the gradient of k is not finite")],
    "backends": [(posenc.ALiBi, {"n_heads": 4}, "forgetful, window")],
    "values": [(broken.CubesValues, {"head_dim": 8}, "differs by")],
    "nothing there": [(broken.SizesATable, {"d_model": 32, "max_len": 64}, "raised ")],
    "compose": [(broken.RotatesOnlyBoth, {}, "Compose(e, NoPE) gives another result")],
    "no memory": [(broken.RemembersTheLongest, {"head_dim": 8}, "the second short sequence")],
    "untouched inputs": [(broken.WritesIntoTokens, {"d_model": 32}, "x was written to")],
    "half precision": [(broken.RoundsTheBias, {"n_heads": 4}, "in torch.float16 from position 0: off by")],
    "far positions": [
        (broken.KeepsABuffer, {"head_dim": 64}, "from position 100000: off by"),
        (broken.CastsItsFrequencies, {"head_dim": 64, "trainable": True}, "keep it in float32"),
    ],
    "autocast": [(broken.MultipliesUnderAutocast, {"head_dim": 64}, "under autocast: off by")],
    "state": [
        (broken.RegistersABuffer, {"head_dim": 8}, "holds buffers"),
        (broken.KeepsABuffer, {"head_dim": 64}, "holds buffers"),
        (broken.KeepsATable, {"d_model": 32}, "_table"),
        (broken.LearnsAScalar, {"n_heads": 2}, "which FSDP refuses: ['learned']"),
    ],
    "no graph": [(broken.FixedWithAGraph, {"head_dim": 8}, "requires gradients")],
    "gradients": [(broken.CutsTheGradient, {"n_heads": 2}, "no gradient reaches log_r1")],
    "meta": [
        (broken.ForgetsToReset, {"n_heads": 4}, "log_r2 differs from a fresh module's"),
        (broken.DividesByItsStart, {"n_heads": 4, "max_distance": 16}, "attention is not finite"),
    ],
    "copies": [(broken.HoldsALambda, {"n_heads": 4}, "pickle")],
    "threads": [(broken.SharesItsTables, {"head_dim": 8}, "")],
    "compile": [
        (broken.AsksTheDevice, {"head_dim": 8}, "raised "),
        (broken.ScalesLongQueries, {}, "recompiled for another length"),
    ],
}
CASES = [
    pytest.param(
        law,
        cls(**arguments),
        words,
        id=f"{law}-{cls.__name__}",
        marks=[pytest.mark.compiles, pytest.mark.slow] if law == "compile" else [],
    )
    for law, planted in PLANTED.items()
    for cls, arguments, words in planted
]


def test_every_law_has_a_broken_encoding() -> None:
    assert set(PLANTED) == set(laws.LAWS), "plant a broken encoding in tests/laws for each law"


class ForgetsTheWindow(Blocked):
    """Accepts a window and does not apply it."""

    def run(self, call: Call) -> Tensor:
        return super().run(dataclasses.replace(call, window=None))


class UnblankedCall(Call):
    def blanked(self) -> tuple[Call, Tensor | None]:
        return self, self.allowed()


class ReadsPadding(Reference):
    """Computes with what padded slots hold."""

    def run(self, call: Call) -> Tensor:
        return super().run(UnblankedCall(**vars(call)))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Register each broken class with its parent's card and definition."""
    for planted in PLANTED.values():
        for cls, *_ in planted:
            parent = cls.__mro__[1]
            for card in list(registry._CARDS.values()):
                if card.cls is parent:
                    twin = f"{card.name}-{cls.__name__}"
                    stand_in = dataclasses.replace(card, name=twin, declared=Declared.of(cls), aliases=())
                    monkeypatch.setitem(registry._CARDS, twin, stand_in)
    return monkeypatch


@pytest.fixture
def broken_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, backend in (("forgetful", ForgetsTheWindow()), ("leaky", ReadsPadding())):
        backend.name = name
        monkeypatch.setitem(BACKENDS, name, backend)


@pytest.mark.parametrize(("law", "encoding", "words"), CASES)
@pytest.mark.usefixtures("registered", "broken_backends")
def test_the_law_finds_it(law: str, encoding: posenc.Encoding, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = definitions.find
    monkeypatch.setattr(definitions, "find", lambda name: find(name.partition("-")[0]))
    violations = laws.run(encoding, [law])
    assert violations, f"{law!r} does not find {type(encoding).__doc__!r}"
    assert any(words in violation.message for violation in violations), violations


@pytest.mark.parametrize("law", [law for law in PLANTED if law not in ("backends", "padding in gradients", "compile")])
def test_the_unbroken_parent_keeps_the_law(law: str) -> None:
    for cls, arguments, _ in PLANTED[law]:
        parent = cls.__mro__[1]
        assert laws.run(parent(**arguments), [law]) == []


def test_only_the_backend_that_forgets_the_window_violates_the_law(broken_backends: None) -> None:
    violations = laws.run(posenc.ALiBi(n_heads=4), ["backends"])
    assert violations
    assert all(violation.message.startswith("forgetful, window") for violation in violations)


def test_values_may_have_any_width() -> None:
    class Alternates(posenc.Encoding):
        """Change the sign of values at odd positions, and of outputs back."""

        family = "values"

        def rotate_v(self, v: Tensor, placed: posenc.Placed) -> Tensor:
            if v.shape[-2] != placed.pos.shape[-1]:
                raise ValueError(f"Alternates: needs a value for each position; got {tuple(v.shape)}.")
            return v * (1 - 2 * (placed.pos % 2)).to(v.dtype)[..., None, :, None]

        unrotate_out = rotate_v

    assert laws.run(Alternates(), ["sincere errors"]) == []
