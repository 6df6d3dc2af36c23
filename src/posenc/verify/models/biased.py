"""A model that adds a bias for distance, against its configuration: the scale of its scores, and the bias."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc.config.model import Model
from posenc.verify.models import biases, scales, softmax
from posenc.verify.models.biases import Said
from posenc.verify.models.causes import Reason
from posenc.verify.models.report import Judged, Layer, causes, named
from posenc.verify.models.runs import text
from posenc.verify.models.softmax import Scored
from posenc.verify.report import Findings

Q_TOKENS, K_TOKENS = 200, 256  # of a decoder and of an encoder; two lengths, so that neither stands for the other
_SAME = 1e-3
_LINEAR = 1e-2
_MEND = "Add the bias of the configuration to the scores once, "
HELP = {
    "falcon": _MEND + "and divide the sum by the root of head_dim.",
    "bloom": _MEND + "after products are divided by the root of head_dim.",
    "mpt": _MEND + "after products are multiplied by softmax_scale.",
}
T5_HELP = _MEND + "to all layers of a stack, and divide nothing: T5 has the root of d_kv in its weights."


@dataclass(frozen=True)
class Held:
    """The bias of one attention, and the right one, without what is the same for all keys that a query sees."""

    got: Tensor
    want: Tensor

    @property
    def factor(self) -> float:
        """How many times the right bias was added."""
        return float((self.got * self.want).sum() / self.want.square().sum().clamp_min(1e-300))

    def is_times(self, factor: float) -> bool:
        """Whether it is a multiple of the right one, to rounding."""
        return float((self.got - factor * self.want).abs().max()) <= _SAME * max(self._size, abs(factor) * self._size)

    @property
    def worst(self) -> tuple[int, int, int]:
        """The head, the query and the key that are off most."""
        h, i, j = torch.unravel_index((self.got - self.want).abs().argmax(), self.got.shape)
        return int(h), int(i), int(j)

    @property
    def off(self) -> float:
        """By how much they are."""
        return float((self.got - self.want).abs().max())

    @property
    def _size(self) -> float:
        return max(float(self.want.abs().max()), 1e-2)


def check(model: nn.Module, opened: Model) -> Findings:
    """Judge every attention of a model with a position bias."""
    judged: list[Judged] = []

    def tell(one: Scored) -> None:
        said = biases.said(opened, model, one.name, len(one.bias), one.head_dim)
        judged.append(_judge(one, said, opened))

    with softmax.plainly(model):
        softmax.watch(model, lambda: _run(model), tell)
    kinds = list(dict.fromkeys(layer.kind for layer, _, _ in judged))
    judged.sort(key=lambda one: kinds.index(one[0].kind))  # a decoder's two attentions take turns
    layers = [layer for layer, _, _ in judged]
    wrong = [layer for layer in layers if layer.status == "wrong"]
    scaled = [abs(one.scale / one.configured_scale - 1) for one in layers if one.scale and one.configured_scale]
    found = Findings(
        causes=causes(judged),
        definitions=["alibi@falcon" if opened.name == "falcon" else "t5" if "t5" in opened.name else "alibi@authors"],
        measured={
            "model_type": opened.model_type,
            "tokens": K_TOKENS,
            "longest_position": K_TOKENS - 1,
            **dict.fromkeys(("largest_angle_error", "largest_angle_error_layer", "gain_error")),
            "mean_cos_by_position": [],
            "first_wrong_layer": wrong[0].layer if wrong else None,
            "scale_error": max(scaled, default=None),
            "bias_error": max((one.bias_error or 0.0 for one in layers), default=None),
            "layers": [one.to_dict() for one in layers],
        },
    )
    if not layers:
        found.unknown = "no product of queries and keys was seen before a softmax"
    elif open_ := [layer for layer in layers if layer.status == "cannot tell"]:
        found.unknown = f"{named([one.layer for one in open_])}: {open_[0].said}"
    return found


def _run(model: Any) -> None:
    asked = inspect.signature(type(model).forward).parameters
    given: dict[str, Any] = {"use_cache": False} if "use_cache" in asked else {}
    if "decoder_input_ids" in asked:
        given["decoder_input_ids"] = text(model, Q_TOKENS)
    model(input_ids=text(model, K_TOKENS), **given)


def _judge(one: Scored, said: Said, opened: Model) -> Judged:
    """Judge one attention by the scale of its scores and by what is added to them."""
    layer = Layer(one.layer, said.kind, "pass", scale=one.scale, configured_scale=said.scale.value)
    if 1 - one.linear > _LINEAR:
        words = "its scores are no multiple of the products of queries and keys"
        return replace(layer, status="cannot tell", said=words), [], []
    held = Held(*(_centred(t, one.seen) for t in (one.bias, said.added(*one.bias.shape[1:]).expand_as(one.bias))))
    reasons = list(_reasons(one, said, held, opened))
    layer = replace(layer, bias_error=held.off)
    return (replace(layer, status="wrong", said=reasons[0].said) if reasons else layer), reasons, []


def _reasons(one: Scored, said: Said, held: Held, opened: Model) -> Iterator[Reason]:
    """Yield why an attention is wrong: its scale first, and its bias where that is another fault."""
    help_ = HELP.get(opened.name, T5_HELP)
    hidden = opened.size("hidden_size") or 0
    off = scales.hold(one.scale, said.scale, scales.of_widths(said.scale, one.head_dim, hidden), one.head_dim)
    right = said.bias is None or held.is_times(1.0)
    if off is not None:
        factor = one.scale / said.scale.value
        both = said.bias is not None and not right and held.is_times(factor)
        yield Reason(off.code, off.said, off.evidence, help_, off.case)
        if both:
            return
    if said.bias is None:
        if held.off > _SAME:
            words = "adds a bias for position, where its configuration has none"
            yield Reason("model.bias.unexpected", words, held.off, help_, _case(held))
    elif not right:
        code, words = _words(one, said, held)
        yield Reason(code, words, held.off, help_, _case(held))


def _words(one: Scored, said: Said, held: Held) -> tuple[str, str]:
    """Say what is wrong with a bias: a multiple of the right one, another one, or none that is known."""
    factor, root = held.factor, math.sqrt(one.head_dim)
    if held.is_times(0.0):
        return "model.bias.missing", "adds no bias for distance, where its configuration has one"
    if abs(factor) > 1e-6 and held.is_times(factor):
        by = _multiple(abs(factor), root, divided=said.factor != 1)
        if factor < 0:
            return "model.bias.sign", f"adds the bias for distance with the other sign ({by})"
        return "model.bias.scale", f"adds {factor:.6g} times the bias for distance ({by})"
    for words, got in _others(one, said, held):
        if float((held.got - got).abs().max()) <= _SAME * max(float(got.abs().max()), 1e-2):
            return "model.bias.mismatch", f"forms its bias {words}"
    h, i, j = held.worst
    found, want = float(held.got[h, i, j]), float(held.want[h, i, j])
    words = f"adds another bias for distance: {found:.4g} for query {i} and key {j} of head {h}, where {want:.4g} is "
    return "model.bias.mismatch", words + "right, beside the mean of its row"


def _multiple(factor: float, root: float, *, divided: bool) -> str:
    """Say by what a bias is too large or too small; `divided`: whether the root of head_dim should divide it."""
    into = "the bias is added after scores are divided by the root of head_dim, and not before"
    twice = "divided by the root of head_dim twice"
    once = "divided by the root of head_dim, which the bias is not to be"
    known = (
        (2.0, "added twice"),
        (root, into if divided else "multiplied by the root of head_dim"),
        (1 / root, twice if divided else once),
        (root * root, "multiplied by head_dim" if divided else ""),
        (1.0, "of the right size"),
    )
    return next((words for value, words in known if words and math.isclose(factor, value, rel_tol=_SAME)), "no root")


def _others(one: Scored, said: Said, held: Held) -> Iterator[tuple[str, Tensor]]:
    """Yield biases that faults would make, centred, under words for them."""
    q_len, k_len = one.seen.shape
    for words, other in biases.versions(said, len(one.bias)).items():
        yield words, _centred(other.added(q_len, k_len).expand_as(one.bias), one.seen)
    want = said.added(q_len, k_len)
    yield "with its heads in reverse order", _centred(want.flip(0), one.seen)
    if q_len == k_len:
        yield "with queries and keys exchanged", _centred(want.mT, one.seen)
        yield "with the keys in reverse order", _centred(want.flip(-1), one.seen)


def _centred(bias: Tensor, seen: Tensor) -> Tensor:
    """Return it less its mean over the keys that each query sees, since no softmax sees that; 0 where none is seen."""
    shown = torch.where(seen, bias, torch.zeros_like(bias))
    mean = shown.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(seen, shown - mean, torch.zeros_like(shown))


def _case(held: Held) -> tuple[tuple[str, object], ...]:
    h, i, j = held.worst
    return (("head", h), ("query", i), ("key", j))
