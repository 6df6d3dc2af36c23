"""Each law catches an encoding that was broken on purpose, and nothing else that is wrong with it."""

import dataclasses
from typing import Any

import pytest

import posenc
from laws import broken
from posenc import definitions, laws, registry
from posenc.attention import BACKENDS
from posenc.declared import Declared

# law: the planted encodings, their arguments, and the words by which each must be seen
PLANTED: dict[str, list[tuple[type[posenc.Encoding], dict[str, Any], str]]] = {
    "definition": [
        (broken.AttractsTheFar, {"n_heads": 4}, "differs by"),
        (broken.TurnsBothBack, {"head_dim": 8}, "rotated q differs by"),
        (broken.RotatesForwardsTwice, {"head_dim": 8}, "the output differs by"),
        (broken.ForgetsZeros, {"n_heads": 4, "max_distance": 16}, "with zeros among the parameters it differs by"),
        (
            broken.TakesAnyNegativeRow,
            {"n_heads": 2, "window": (64, 64)},
            "accepts positions that its definition refuses: a token at (",
        ),
    ],
    "traits": [
        (broken.SeesPlaces, {"n_heads": 4}, "declared shift_invariant, but moving all positions changes scores"),
        (broken.ForgetsTheOutput, {"head_dim": 8}, "declared shift_invariant, but moving all positions changes scores"),
        (broken.RoundsPositions, {"n_heads": 4}, "accepts real positions but ignores their fractions"),
        (broken.LearnsARowMore, {"n_heads": 4, "max_distance": 16}, "declared learned="),
        (broken.EndsTooEarly, {"d_model": 32}, "declared longest="),
        (broken.KeepsItsDistance, {"n_heads": 4}, "but by_distance is False"),
        (broken.HidesItsVectors, {"head_dim": 8}, "because by_distance is False"),
    ],
    "integer kinds": [(broken.KeepsTheKind, {"n_heads": 4}, "torch.uint8 positions give another result")],
    "inverse": [
        (broken.TurnsBackTooLittle, {"head_dim": 8}, "q differs by"),
        (broken.ForgetsTheOutput, {"head_dim": 8}, "v differs by"),
    ],
    "sincere errors": [
        (broken.TakesAnything, {"head_dim": 8}, "half-precision positions: raised nothing"),
        (broken.MumblesErrors, {"n_heads": 4}, "q of other heads: the message does not name the encoding"),
        (broken.CountsFromTheEnd, {"d_model": 32, "max_len": 128}, "position [-1] gets the vector of position [127]"),
        (broken.TakesTheNextRow, {"d_model": 8, "height": 64, "width": 70}, "but not together"),
    ],
    "permutation": [(broken.CountsByIndex, {"n_heads": 4}, "differs by")],
    "cache": [(broken.StartsAtZero, {"head_dim": 8}, "in chunks (11, 1)")],
    "packing": [(broken.NeverRestarts, {"d_model": 32}, "differs by")],
    "left padding": [
        (broken.CentresTokens, {"d_model": 32}, "differs by nan"),
        (broken.ForgetsInGaps, {"d_model": 32, "n_heads": 4}, "around a gap it differs by"),
    ],
    "padding in gradients": [(posenc.ALiBi, {"n_heads": 4}, "leaky: the gradient of k is not finite")],
    "backends": [(posenc.ALiBi, {"n_heads": 4}, "forgetful, window")],
    "values": [(broken.CubesValues, {"head_dim": 8}, "differs by")],
    "nothing there": [(broken.SizesATable, {"d_model": 32, "max_len": 64}, "raised ")],
    "compose": [(broken.TurnsOnlyTogether, {}, "Compose(e, NoPE) gives another result")],
    "no memory": [(broken.RemembersTheLongest, {"head_dim": 8}, "the second short sequence")],
    "untouched inputs": [(broken.WritesIntoTokens, {"d_model": 32}, "x was written to")],
    "half precision": [(broken.HalvesTheBias, {"n_heads": 4}, "in torch.float16 from position 0: off by")],
    "far positions": [
        (broken.HalvesPositions, {"head_dim": 64}, "from position 100000: off by"),
        (broken.KeepsABuffer, {"head_dim": 64}, "from position 100000: off by"),
        (broken.CastsItsFrequencies, {"head_dim": 64, "trainable": True}, "keep it in float32"),
    ],
    "autocast": [(broken.MultipliesUnderAutocast, {"head_dim": 64}, "under autocast: off by")],
    "state": [
        (broken.RegistersABuffer, {"head_dim": 8}, "holds buffers"),
        (broken.KeepsABuffer, {"head_dim": 64}, "holds buffers"),
        (broken.GrowsATable, {"d_model": 32}, "_table"),
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
        (broken.SpecialisesOnLength, {}, "recompiled for another length"),
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


def test_every_law_has_a_planted_fault() -> None:
    assert set(PLANTED) == set(laws.LAWS), "plant a broken encoding in tests/laws for each law"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let each planted class stand in its parent's place in the registry, so that card and definition apply."""
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
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = broken.ForgetsTheWindow()
    backend.name = "forgetful"
    monkeypatch.setitem(BACKENDS, "forgetful", backend)
    monkeypatch.setitem(BACKENDS, "leaky", broken.LeavesPadding())


@pytest.mark.parametrize(("law", "encoding", "words"), CASES)
@pytest.mark.usefixtures("registered", "forgetful")
def test_the_law_sees_it(law: str, encoding: posenc.Encoding, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = definitions.find
    monkeypatch.setattr(definitions, "find", lambda name: find(name.partition("-")[0]))
    violations = laws.run(encoding, [law])
    assert violations, f"{law!r} does not see {type(encoding).__doc__!r}"
    assert any(words in violation.message for violation in violations), violations


@pytest.mark.parametrize("law", [law for law in PLANTED if law not in ("backends", "padding in gradients", "compile")])
def test_the_unbroken_parent_keeps_the_law(law: str) -> None:
    for cls, arguments, _ in PLANTED[law]:
        parent = cls.__mro__[1]
        assert laws.run(parent(**arguments), [law]) == []


def test_a_backend_that_forgets_the_window_is_the_only_one_at_fault(forgetful: None) -> None:
    violations = laws.run(posenc.ALiBi(n_heads=4), ["backends"])
    assert violations
    assert all(violation.message.startswith("forgetful, window") for violation in violations)
