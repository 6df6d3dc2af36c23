"""Other ways to run a text, compared with a single pass over it: in a padded batch, and with a cache."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify import rules
from posenc.verify.guard import NotAnsweredError
from posenc.verify.models.watching import plainly, run, takes, text
from posenc.verify.report import Cause

LONG, SHORT = 24, 17  # tokens of two texts; the shorter one is padded
WHOLE, STEPS, CHUNK = (LONG,), (LONG - 4, 1, 1, 1, 1), (LONG // 2, LONG // 2)
TOLERANCE = 3e-5  # relative to the largest entry: 130 types of transformers 5.23 stay below 6e-6 in float32
CACHES = ("cache", "past_key_values")  # what models call it: the first since transformers 5.24
# classes of layers for which a path gives other results by design, in transformers 5.23
_BY_DESIGN = {
    ("JambaMambaMixer", "model.cache.chunk"): "its Mamba layers restart in a call with several tokens",
    ("DeepseekV4HCACompressor", "model.padding.left"): "it compresses windows counted from the first column of a batch",
    ("RecurrentGemmaRecurrentBlock", "model.padding.left"): "its recurrent layers run through padding",
}
# the code of a failure, the name of the path, the side on which the shorter text is padded ("": only the longer one
# runs), and the tokens of each call; later calls use the cache of earlier ones
PATHS: tuple[tuple[str, str, str, Sequence[int]], ...] = (
    ("model.padding.left", "a batch padded on the left", "left", WHOLE),
    ("model.padding.right", "a batch padded on the right", "right", WHOLE),
    ("model.cache.steps", "decoding token by token with a cache", "", STEPS),
    ("model.cache.chunk", "decoding several tokens in one call with a cache", "", CHUNK),
    ("model.padding.left", "decoding with a cache in a batch padded on the left", "left", STEPS),
)


def check(model: nn.Module, room: int) -> tuple[list[Cause], list[str]]:
    """Run a model by every path; return a cause for each code, and the paths that were not judged, with reasons."""
    causes: dict[str, Cause] = {}
    left: dict[str, list[str]] = {}
    texts = None
    with plainly(model):
        for code, name, side, pieces in PATHS:
            try:
                texts = texts or _Texts(model, room)
                if code not in causes and (found := texts.judge(code, name, side, pieces)) is not None:
                    causes[code] = found
            except (Exception, SystemExit) as error:
                why = f"{error}" if isinstance(error, NotAnsweredError) else f"{type(error).__name__}: {error}"
                left.setdefault(why[:200], []).append(name)
    names = {why: "padded batches and a cache" if len(n) == len(PATHS) else ", ".join(n) for why, n in left.items()}
    return list(causes.values()), [f"{name}: {why}" for why, name in names.items()]


class _Texts:
    """Two texts, and how to run them: an encoder runs them padded if there is one, and its decoder decodes."""

    def __init__(self, model: Any, room: int) -> None:
        if model.main_input_name != "input_ids":
            raise NotAnsweredError(f"the model's input is {model.main_input_name} instead of tokens")
        if room < LONG:
            raise NotAnsweredError(f"the file allows {room} positions, but the check needs a text of {LONG}")
        if (getattr(model.config, "index_topk", None) or LONG) < LONG:
            raise NotAnsweredError("its indexer selects a few keys, and rounding may change the selection")
        self._model, self._ids, self._two_stacks = model, text(model, LONG), takes(model, "decoder_input_ids")
        long, short = self._ids[:1], self._ids[1:, :SHORT]
        self._alone = [self._call(long, WHOLE)[0], self._call(short, WHOLE, row=1)[0]]
        if torch.finfo(self._alone[0].dtype).eps > TOLERANCE:
            raise NotAnsweredError(f"hidden states in {self._alone[0].dtype} are too coarse")
        if not all(bool(one.isfinite().all()) for one in self._alone):
            raise NotAnsweredError("hidden states are not finite")
        counted = self._call(long, WHOLE, pos=torch.arange(LONG, device=long.device)[None])[0]
        # whether its own positions start at 0, like those of `generate`: RoBERTa counts from its padding row + 1
        self._counts = _off(counted, self._alone[0]).max() <= TOLERANCE

    def judge(self, code: str, name: str, side: str, pieces: Sequence[int]) -> Cause | None:
        """Return a cause with the first token whose hidden states differ from a single pass, None if none does."""
        for module in self._model.modules():
            if why := _BY_DESIGN.get((type(module).__name__, code)):
                raise NotAnsweredError(why)
        got_of_rows = self._padded(side, pieces) if side else self._call(self._ids[:1], pieces)
        for got, want in zip(got_of_rows, self._alone, strict=False):
            off = _off(got, want)
            wrong = ~(off <= TOLERANCE)  # includes NaN
            if wrong.any():
                at = int(wrong.int().argmax())
                by, than = float(off[at]), "the text without padding" if side else "a single pass"
                message = (
                    f"{name} gives other hidden states than {than}: token {at} of {len(want)} is the first that "
                    f"differs, by {by:.3g} of the largest entry; rounding explains up to {TOLERANCE:g}"
                )
                return Cause(code, message, by if math.isfinite(by) else 1.0, {"token": at}, rules.find(code).fix)
        return None

    def _padded(self, side: str, pieces: Sequence[int]) -> list[Tensor]:
        pad = getattr(self._model.config, "pad_token_id", None)
        shown = slice(-SHORT, None) if side == "left" else slice(SHORT)
        ids, mask = self._ids.clone(), torch.ones_like(self._ids)
        ids[1], mask[1] = pad if isinstance(pad, int) and pad >= 0 else 0, 0
        ids[1, shown], mask[1, shown] = self._ids[1, :SHORT], 1
        pos = (mask.cumsum(-1) - 1).clamp_min(0) if self._counts else None
        out = self._call(ids, pieces, mask, pos)
        return list(out) if self._two_stacks else [one[real.bool()] for one, real in zip(out, mask, strict=True)]

    def _call(
        self, ids: Tensor, pieces: Sequence[int], mask: Tensor | None = None, pos: Tensor | None = None, row: int = 0
    ) -> Tensor:
        """Return hidden states of texts that are passed in pieces."""
        mask = torch.ones_like(ids) if mask is None else mask
        name = next((name for name in CACHES if takes(self._model, name)), CACHES[0])
        cache, stop, found = None, 0, []
        for n in pieces:
            if stop and cache is None:
                raise NotAnsweredError("the model returns no cache")
            start, stop = stop, stop + n
            given = {"input_ids": ids[:, start:stop], "attention_mask": mask[:, :stop]}
            if self._two_stacks:
                own = self._ids[row : row + len(ids), start:stop]
                given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": own}
            own_pos = None if pos is None else pos[:, start:stop]
            # `generate` requests a cache at once; without one, a mask may be derived from positions
            out = run(self._model, given, position_ids=own_pos, use_cache=True, **{name: cache})
            cache = getattr(out, name, None)
            found.append(out.last_hidden_state)
        return torch.cat(found, 1)


def _off(got: Tensor, want: Tensor) -> Tensor:
    """Return the error of the hidden states of each token, relative to the largest entry."""
    return (got - want).abs().amax(-1) / want.abs().max()
