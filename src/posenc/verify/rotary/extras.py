"""What goes wrong beside the formula: lengths, single tokens, rows, what is kept, gradients."""

import numpy as np
import torch

from posenc.verify.guard import SubjectError
from posenc.verify.report import Cause
from posenc.verify.rotary.bench import Bench
from posenc.verify.rotary.far import at_length, right_at
from posenc.verify.rotary.matrix import HEADS, Array, at
from posenc.verify.rotary.steady import rounded_x
from posenc.verify.rotary.turner import HFRope

LONGEST = 20_000  # tokens that are fed at once
WRONG = 1e-3  # of a turned lane, beyond all rounding
_UNSCALED = ("rope.config.scaling_ignored", "rope.longrope.always_short", "rope.longrope.boundary")


def lengths(bench: Bench) -> Cause | None:
    """Hold texts at and beyond the length at which frequencies change."""
    asked, trained = bench.asked, bench.asked.trained
    if trained is None and asked.scaling == "default":
        return None
    longest = asked.max_positions or 4 * (trained or 1024)
    wanted = [2 * longest] if trained is None else [trained, trained + 1, 2 * trained, longest]
    for seq_len in wanted:
        if seq_len > LONGEST or (trained is not None and not trained <= seq_len <= longest):
            continue
        try:
            cause = at_length(bench, torch.arange(seq_len), seq_len)
        except SubjectError:
            if seq_len > longest:
                continue  # nobody has said that it must go so far
            raise
        if cause is not None:
            return _by_offset(bench, _by_heads(bench, cause))
        if (cause := _by_tokens(bench, seq_len)) is not None:
            return cause
    return None


def _by_tokens(bench: Bench, seq_len: int) -> Cause | None:
    """Tell a choice that hangs on how many tokens a call has, and not on where the text ends.

    Only where positions come as in transformers, by whose definition the longest position counts.
    """
    asked, few = bench.asked, 8
    if asked.scaling not in ("dynamic", "longrope") or type(bench.turner) is not HFRope or seq_len <= few:
        return None
    if right_at(bench, torch.arange(seq_len - few, seq_len), seq_len):
        return None
    message = (
        f"{few} tokens that end a text of {seq_len:,} are turned otherwise than in a call with all of it: the tokens "
        "of a call are counted for the length of the text"
    )
    help_ = "Take the length from the positions: the last one and one."
    case = {"positions": [seq_len - few, seq_len - 1]}
    return Cause(f"rope.{asked.scaling}.by_tokens", message, float(seq_len), case, help_)


def _by_offset(bench: Bench, cause: Cause) -> Cause:
    """Tell a choice that hangs on where a call begins, not on where it ends."""
    trained = bench.asked.trained
    if trained is None or bench.turner.reach == "start" or cause.code not in _UNSCALED:
        return cause
    pos = torch.arange(trained + 8, trained + 16)
    if not right_at(bench, pos, trained + 16):
        return cause
    message = f"{cause.message}; a call that begins beyond {trained:,} positions is right: the first position decides"
    help_ = "Choose by the length of the whole text: the last position and one."
    code = f"rope.{bench.asked.scaling}.by_offset"
    return Cause(code, message, cause.evidence, {"positions": [trained + 8]}, help_, (cause.code,))


def _by_heads(bench: Bench, cause: Cause) -> Cause:
    """Tell a length that is read off the axis of heads."""
    trained = bench.asked.trained
    if cause.code != "rope.config.scaling_ignored" or trained is None or trained > LONGEST // 4:
        return cause
    pos, turned = torch.arange(3), []
    for n_heads in (2, 2 * trained):
        x = _vector(bench, 1)[:, :1, None].expand(-1, n_heads, 3, -1).contiguous()
        turned.append(bench.turner.fresh().turn(x, x.clone(), pos)[0][:, 0])
    off = float((turned[0] - turned[1]).abs().max())
    if off < 1e-5:
        return cause
    message = f"with {2 * trained} heads three tokens are turned otherwise than with 2: heads are counted for tokens"
    help_ = "Read the length off the axis of tokens, and add the offset."
    return Cause("rope.dynamic.length_from_head_axis", message, off, {"heads": [2, 2 * trained]}, help_, (cause.code,))


def _vector(bench: Bench, rows: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, HEADS, bench.asked.head_dim, generator=generator)


def _off(bench: Bench, got: Array, x: torch.Tensor, pos: torch.Tensor, q: bool = True) -> Array:
    """Return how far turned vectors are from what was read before, (tokens)."""
    index = [bench.matrices.pos.tolist().index(int(p)) for p in pos]
    matrices = (bench.matrices.q if q else bench.matrices.k)[index]
    want = np.einsum("sab,nhb->nhsa", matrices, x.double().numpy())
    found: Array = np.abs(got - want).max((0, 1, 3))
    return found


def single(bench: Bench) -> Cause | None:
    """Turn one token alone, as a step of generation does."""
    if bench.turner.reach == "start":
        return None
    x = _vector(bench)
    for p in bench.matrices.pos.tolist():
        pos = torch.tensor([p])
        turned = bench.turner.fresh().turn(x[:, :, None], x[:, :, None].clone(), pos)
        for name, t, is_q in (("a query", turned[0], True), ("a key", turned[1], False)):
            off = float(_off(bench, t.detach().double().numpy(), x, pos, is_q).max())
            if off > WRONG:
                if (cause := rounded_x(bench.turner.fresh(), x)) is not None:
                    return cause
                message = f"{name} alone at position {p} is turned otherwise than among others, by up to {off:.3g}"
                help_ = "Turn a single token by its own position, on the same path as many."
                code = "rope.decode.single_token_path"
                return Cause(code, message, off, {"positions": [p], "seq": 1, "batch": 2}, help_)
    return None


def rows(bench: Bench) -> Cause | None:
    """Give each row of the batch positions of its own."""
    turner = bench.turner.fresh()
    if not isinstance(turner, HFRope):
        return None
    near = bench.matrices.pos[:4]
    ids, x = torch.stack((near, near.flip(0))), _vector(bench)
    given = x[:, :, None].expand(-1, -1, len(near), -1).contiguous()
    turned = turner.by_row(given, given.clone(), ids)
    for row in (0, 1):
        got = turned[0][row : row + 1].detach().double().numpy()
        off = _off(bench, got, x[row : row + 1], ids[row])
        if off.max() > WRONG:
            message = f"row {row} of a batch is turned by other positions than its own, by up to {off.max():.3g}"
            help_ = "Index cos and sin by each row's position_ids."
            return Cause("rope.batch.rows_share", message, float(off.max()), {"position_ids": ids.tolist()}, help_)
    return None


def state(bench: Bench) -> Cause | None:
    """Ask the same object for a long text, another dtype, and then for what it was asked first."""
    turner, x, pos = bench.turner.fresh(), _vector(bench), bench.matrices.pos[:6]
    trained = bench.asked.trained
    ends = [int(bench.matrices.pos[-1]) + 1, *([] if trained is None else [min(2 * trained, LONGEST)])]
    for end in ends:
        if trained is not None and bench.asked.max_positions is not None:
            end = min(end, bench.asked.max_positions)
        try:
            long = torch.arange(end) if turner.reach != "any" or end <= LONGEST else torch.tensor([0, end - 1])
            at(turner, x[:1], long)
        except SubjectError:
            continue
        off = np.stack([_off(bench, t, x, pos, q) for q, t in zip((True, False), at(turner, x, pos), strict=True)])
        if off.max() > WRONG:
            kind = bench.asked.scaling if trained is not None else ""
            code = f"rope.{kind}.state_kept" if kind else "rope.state_kept"
            message = (
                f"after a text of {end:,} tokens a short one is turned otherwise than before, by up to {off.max():.3g}"
            )
            help_ = "Form frequencies from the length of this call, or restore the original ones for short texts."
            return Cause(code, message, float(off.max()), {"lengths": [end, int(pos[-1]) + 1]}, help_)
    return _offsets(bench)


def _offsets(bench: Bench) -> Cause | None:
    """Ask one object for as many tokens from several offsets: a table that is kept by length alone is found out."""
    if bench.turner.reach == "start":
        return None
    turner, x = bench.turner.fresh(), _vector(bench)
    for begin in (0, 3, 1):
        pos = torch.tensor([p for p in bench.matrices.pos.tolist() if p >= begin][:3])
        off = _off(bench, at(turner, x, pos)[0], x, pos).max()
        if off > WRONG:
            message = f"three tokens from offset {begin} are turned as those of an earlier call, off by {off:.3g}"
            help_ = "Let the offset be part of what the table is kept by."
            return Cause("rope.offset.ignored_by_cache", message, float(off), {"offsets": [0, begin]}, help_)
    return None


def gradient(bench: Bench) -> Cause | None:
    """Hold the backward pass against the transpose of what went forwards."""
    turner, pos = bench.turner.fresh(), bench.matrices.pos[:5]
    if turner.reach != "any":
        pos = torch.arange(3)
    x = _vector(bench, 1)[:, :, None].expand(-1, -1, len(pos), -1).contiguous()
    sides = [x.clone().requires_grad_() for _ in range(2)]
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    try:
        turned = turner.turn(sides[0], sides[1], pos, grad=True)
    except SubjectError:
        return None  # forwards alone, as something for inference may be
    index = [bench.matrices.pos.tolist().index(int(p)) for p in pos]
    for name, given, t, matrices in zip(("q", "k"), sides, turned, (bench.matrices.q, bench.matrices.k), strict=True):
        help_ = "Turn by differentiable operations, or give the operation a backward pass: the turn the other way."
        if not t.requires_grad:
            message = f"no gradient reaches {name}: what comes back is cut off from what went in"
            return Cause("rope.grad.severed", message, 1.0, {"side": name}, help_)
        (got,) = torch.autograd.grad((t * weight).sum(), given, allow_unused=True, retain_graph=True)
        want = np.einsum("sab,nhsa->nhsb", matrices[index], weight.double().numpy())
        off = np.abs((0.0 if got is None else got.double().numpy()) - want).max((0, 1, 2))
        if off.max() > WRONG:
            return _backwards(name, got, off)
    return None


def _backwards(name: str, got: torch.Tensor | None, off: Array) -> Cause:
    """Tell a gradient that is cut off, in all lanes or in some, from one that is wrong; `off`: by how much, (lanes)."""
    help_ = "Turn by differentiable operations, or give the operation a backward pass: the turn the other way."
    worst, case = float(off.max()), {"side": name}
    if got is None or not bool(got.any()):
        message = f"no gradient reaches {name}: what comes back is cut off from what went in"
        return Cause("rope.grad.severed", message, worst, case, help_)
    cut = np.flatnonzero((got == 0).flatten(0, 2).all(0).numpy())
    if len(cut) and set(np.flatnonzero(off > WRONG)) <= set(cut):
        listed = ", ".join(map(str, cut[:4])) + (", .." if len(cut) > 4 else "")
        message = f"no gradient reaches lanes {listed} of {name}, {len(cut)} of {len(off)}; the other lanes get theirs"
        help_ = "Take detach, numpy and no_grad away from these lanes."
        return Cause("rope.grad.severed", message, worst, case | {"lanes": cut[:4].tolist()}, help_)
    message = f"the gradient of {name} is off by up to {worst:.3g}; it should be that of the turn the other way"
    return Cause("rope.grad.not_inverse", message, worst, case, help_)
