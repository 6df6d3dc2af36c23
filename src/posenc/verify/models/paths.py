"""Other ways to run a text, compared with it alone and whole: in a padded batch, and with a cache."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.verify import rules
from posenc.verify.models.watching import plainly, text
from posenc.verify.report import Cause

LONG, SHORT = 24, 17  # tokens of two texts, of which the shorter is padded
WHOLE, STEPS, CHUNK = (LONG,), (LONG - 4, 1, 1, 1, 1), (LONG // 2, LONG // 2)
TOLERANCE = 3e-5  # of the largest entry: 130 types of transformers 5.23 stay below 6e-6 in float32
# classes of layers for which a path gives something else by design, as transformers 5.23 has them
_BY_DESIGN = {
    ("JambaMambaMixer", "model.cache.chunk"): "its Mamba layers start afresh where a call has several tokens",
    ("DeepseekV4HCACompressor", "model.padding.left"): "it compresses windows counted from the first column of a batch",
    ("RecurrentGemmaRecurrentBlock", "model.padding.left"): "its recurrent layers run through padding",
}


# the code where it fails, what it is, on which side the shorter text is padded ("": only the longer one runs), and the
# tokens of each call, the later ones with the cache of those before
Path = tuple[str, str, str, Sequence[int]]
PATHS: tuple[Path, ...] = (
    ("model.padding.left", "a batch padded on the left", "left", WHOLE),
    ("model.padding.right", "a batch padded on the right", "right", WHOLE),
    ("model.cache.steps", "decoding token by token with a cache", "", STEPS),
    ("model.cache.chunk", "decoding several tokens in one call with a cache", "", CHUNK),
    ("model.padding.left", "decoding with a cache in a batch padded on the left", "left", STEPS),
)


def check(model: nn.Module) -> tuple[list[Cause], list[str]]:
    """Run a model by every path; return a cause for each code, and which other paths were not judged, and why."""
    causes: dict[str, Cause] = {}
    left: dict[str, list[str]] = {}
    with plainly(model), torch.no_grad():
        texts = _Texts(model)
        for code, name, side, pieces in PATHS:
            try:
                if code not in causes and (found := texts.judge(code, side, pieces)) is not None:
                    causes[code] = _cause(code, name, side, *found)
            except (Exception, SystemExit) as error:
                why = f"{error}" if isinstance(error, _NotJudgedError) else f"{type(error).__name__}: {error}"
                left.setdefault(why[:200], []).append(name)
    names = {why: "padded batches and a cache" if len(n) == len(PATHS) else ", ".join(n) for why, n in left.items()}
    return list(causes.values()), [f"{name}: {why}" for why, name in names.items()]


class _NotJudgedError(Exception):
    """A path says nothing of the model; the words are why."""


class _Texts:
    """Two texts, and how a model runs them: an encoder's are padded where there is one, and its decoder decodes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._asked = inspect.signature(type(model).forward).parameters
        self._ids = torch.empty(0)
        self._alone: list[Tensor] = []
        self._counts = False  # whether positions from 0 on, as `generate` gives them, are its own

    def judge(self, code: str, side: str, pieces: Sequence[int]) -> tuple[int, int, float] | None:
        """Return the first token that differs from each text alone and whole, how many there are, and by how much."""
        if not self._alone:
            self._run_alone()
        for module in self._model.modules():
            if why := _BY_DESIGN.get((type(module).__name__, code)):
                raise _NotJudgedError(why)
        got_of_rows = self._padded(side, pieces) if side else self._call(self._ids[:1], pieces)
        for got, want in zip(got_of_rows, self._alone, strict=False):
            off = (got - want).abs().amax(-1) / want.abs().max()
            wrong = ~(off <= TOLERANCE)  # also what is not a number
            if wrong.any():
                at = int(wrong.int().argmax())
                return at, len(want), float(off[at])
        return None

    def _run_alone(self) -> None:
        if self._model.main_input_name != "input_ids":
            raise _NotJudgedError(f"the model takes no tokens but {self._model.main_input_name}")
        if (getattr(self._model.config, "index_topk", None) or LONG) < LONG:
            raise _NotJudgedError("its indexer keeps few keys, and which ones may hang on rounding")
        self._ids = text(self._model, LONG)
        long, short = self._ids[:1], self._ids[1:, :SHORT]
        alone = [self._call(long, WHOLE)[0], self._call(short, WHOLE, row=1)[0]]
        if torch.finfo(alone[0].dtype).eps > TOLERANCE:
            raise _NotJudgedError(f"hidden states in {alone[0].dtype} are too coarse")
        if not all(bool(one.isfinite().all()) for one in alone):
            raise _NotJudgedError("hidden states are not finite")
        counted = self._call(long, WHOLE, pos=torch.arange(LONG, device=long.device)[None])[0]
        # RoBERTa counts from its padding row + 1
        self._counts = bool((counted - alone[0]).abs().max() <= TOLERANCE * alone[0].abs().max())
        self._alone = alone

    def _padded(self, side: str, pieces: Sequence[int]) -> list[Tensor]:
        pad = getattr(self._model.config, "pad_token_id", None)
        shown = slice(-SHORT, None) if side == "left" else slice(SHORT)
        ids, mask = self._ids.clone(), torch.ones_like(self._ids)
        ids[1], mask[1] = pad if isinstance(pad, int) and pad >= 0 else 0, 0
        ids[1, shown], mask[1, shown] = self._ids[1, :SHORT], 1
        pos = (mask.cumsum(-1) - 1).clamp_min(0) if self._counts else None
        out = self._call(ids, pieces, mask, pos)
        return list(out) if self._two_stacks else [one[real.bool()] for one, real in zip(out, mask, strict=True)]

    @property
    def _two_stacks(self) -> bool:
        return "decoder_input_ids" in self._asked

    def _call(
        self, ids: Tensor, pieces: Sequence[int], mask: Tensor | None = None, pos: Tensor | None = None, row: int = 0
    ) -> Tensor:
        """Return hidden states of texts that are handed over in pieces."""
        mask = torch.ones_like(ids) if mask is None else mask
        cache, stop, found = None, 0, []
        for n in pieces:
            if stop and cache is None:
                raise _NotJudgedError("the model returns no cache")
            start, stop = stop, stop + n
            given: dict[str, Any] = {"input_ids": ids[:, start:stop], "attention_mask": mask[:, :stop]}
            if self._two_stacks:
                own = self._ids[row : row + len(ids), start:stop]
                given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": own}
            more = {"position_ids": None if pos is None else pos[:, start:stop], "past_key_values": cache}
            given |= {key: value for key, value in more.items() if value is not None and key in self._asked}
            if "use_cache" in self._asked:  # as `generate` does; without one, a mask may be taken from positions
                given["use_cache"] = True
            out = self._model(**given)
            cache = getattr(out, "past_key_values", None)
            found.append(out.last_hidden_state)
        return torch.cat(found, 1)


def _cause(code: str, name: str, side: str, at: int, tokens: int, off: float) -> Cause:
    than = "each text alone" if side else "the whole text at once"
    message = (
        f"{name} gives other hidden states than {than}: token {at} of {tokens} is the first that differs, by "
        f"{off:.3g} of the largest entry, where rounding leaves {TOLERANCE:g}"
    )
    return Cause(code, message, off if math.isfinite(off) else 1.0, {"token": at}, rules.find(code).fix)
