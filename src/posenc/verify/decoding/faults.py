"""Faults of attention: the scores that it has under each, in the order in which equals are named."""

from typing import Any

import torch

from posenc.verify.decoding.scores import (
    alibi,
    both,
    by_head,
    exponents_off,
    geometric,
    half,
    index,
    one_base,
    other,
    over_heads,
    product,
    turn,
    xpos,
)

_GIVEN = "Look up the positions that are given: cos[positions], not cos[:seq]."
_AXES = "Turn along the sequence: bring x to (batch, heads, seq, dim), or broadcast the table over heads."
BASES = (10_000.0, 100_000.0, 160_000.0, 500_000.0, 1_000_000.0, 5_000_000.0, 10_000_000.0)  # that models have
_TABLE = "Make the table as long as the longest text, or let it grow."
# code, the scores under the fault, what they are, how to mend it
RULES: dict[str, list[tuple[str, Any, str, str]]] = {
    "rope": [
        (
            "positions.given_ignored",
            lambda s, q, k, p: both(s, q, k, index(p)),
            "are those of positions 0, 1, 2, .. whatever positions are given",
            _GIVEN,
        ),
        (
            "rope.not_applied",
            lambda s, q, k, p: (product(q, k), torch.zeros(())),
            "do not depend on positions at all",
            "Turn q and k before their product.",
        ),
        (
            "rope.layout.wrong_pairing",
            lambda s, q, k, p: both(s, q, k, p.double(), layout=other(s)),
            "are those of the other pairing of lanes",
            "Pair the lanes as the weights were trained: half (i, i + d/2), or interleaved (2i, 2i + 1).",
        ),
        (
            "rope.layout.mixed",
            lambda s, q, k, p: (
                product(turn(s, q, p.double()), turn(s, k, p.double(), layout=other(s))),
                torch.zeros(()),
            ),
            "are those of q turned in one pairing of lanes and k in the other",
            "Turn both with the same pairing.",
        ),
        (
            "rope.layout.mixed",
            lambda s, q, k, p: (
                product(turn(s, q, p.double(), layout=other(s)), turn(s, k, p.double())),
                torch.zeros(()),
            ),
            "are those of q turned in one pairing of lanes and k in the other",
            "Turn both with the same pairing.",
        ),
        (
            "rope.sign.one_side",
            lambda s, q, k, p: (product(turn(s, q, p.double()), turn(s, k, p.double(), sign=-1.0)), torch.zeros(())),
            "depend on the sum of two positions instead of their difference: one side turns backwards",
            "Turn q and k the same way.",
        ),
        (
            "rope.sign.one_side",
            lambda s, q, k, p: (product(turn(s, q, p.double(), sign=-1.0), turn(s, k, p.double())), torch.zeros(())),
            "depend on the sum of two positions instead of their difference: one side turns backwards",
            "Turn q and k the same way.",
        ),
        *(
            (
                "rope.query.off_by_one",
                lambda s, q, k, p, off=off: (
                    product(turn(s, q, p.double() + off), turn(s, k, p.double())),
                    torch.zeros(()),
                ),
                f"are those of queries {off:+g} position from their keys",
                "Turn the q and the k of one token by the same position.",
            )
            for off in (1.0, -1.0)
        ),
        (
            "rope.query.not_turned",
            lambda s, q, k, p: (product(q, turn(s, k, p.double())), torch.zeros(())),
            "are those of turned keys and plain queries",
            "Turn q as well.",
        ),
        (
            "rope.key.not_turned",
            lambda s, q, k, p: (product(turn(s, q, p.double()), k), torch.zeros(())),
            "are those of turned queries and plain keys",
            "Turn k as well.",
        ),
        (
            "rope.config.theta_not_read",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=geometric(s.rotary_dim, 10000.0)),
            "are those of base 10000, whatever base is asked",
            "Read the base from the configuration.",
        ),
        *(
            (
                "rope.side.differ",
                lambda s, q, k, p, base=base, on=on: (one_base(s, q, k, p.double(), base, on), torch.zeros(())),
                f"are those of {'queries' if on == 'q' else 'keys'} turned with base {base:,.0f}, the others as asked",
                "Turn q and k by one table.",
            )
            for base in BASES
            for on in "kq"
        ),
        (
            "rope.heads.differ",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=over_heads(s)),
            "are those of frequencies that fall on from head to head, over the lanes of all heads",
            "Form angles over the lanes of one head, and broadcast them over heads.",
        ),
        (
            "rope.config.scaling_ignored",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=geometric(s.rotary_dim, s.base)),
            "are those without the scaling that is asked",
            "Scale the frequencies as the configuration says.",
        ),
        (
            "rope.partial.factor_not_read",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=geometric(s.head_dim, s.base), rotary=s.head_dim),
            "are those of all lanes turned, where only some should be",
            "Turn the first rotary_dim lanes and pass the others through.",
        ),
        (
            "rope.partial.head_dim_used",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=geometric(s.rotary_dim, s.base, s.head_dim)),
            "have frequencies whose exponents are divided by head_dim instead of by rotary_dim",
            "inv_freq = base ** (-arange(0, rotary_dim, 2) / rotary_dim).",
        ),
        (
            "rope.axis.heads",
            lambda s, q, k, p: both(s, q, k, by_head(q)),
            "are those of a turn by the number of the head",
            _AXES,
        ),
        (
            "rope.axis.heads",
            lambda s, q, k, p: both(s, q, k, p.double()[: q.shape[1], None].expand(-1, q.shape[2])),
            "are those of a turn by the position that has the head's number",
            _AXES,
        ),
        (
            "rope.precision.positions_bf16",
            lambda s, q, k, p: both(s, q, k, half(p, torch.bfloat16)),
            "are those of positions rounded to bfloat16: whole numbers end at 256",
            "Keep positions in float32 or int64 until the cosine and sine are taken.",
        ),
        (
            "rope.precision.positions_fp16",
            lambda s, q, k, p: both(s, q, k, half(p, torch.float16)),
            "are those of positions rounded to float16: whole numbers end at 2048",
            "Keep positions in float32 or int64 until the cosine and sine are taken.",
        ),
        (
            "rope.precision.frequencies_bf16",
            lambda s, q, k, p: both(s, q, k, p.double(), inv_freq=s.inv_freq.to(torch.bfloat16).double()),
            "are those of frequencies rounded to bfloat16",
            "Keep inv_freq in float32.",
        ),
        *(
            (
                "rope.table.too_short",
                lambda s, q, k, p, end=end: both(s, q, k, p.double().clamp(max=end - 1)),
                f"are those of a table that ends before position {where}, where all farther tokens share its last row",
                _TABLE,
            )
            for end, where in ((512, 900), (1024, 1024), (2048, 2048))
        ),
        *(
            (
                "rope.table.wraps",
                lambda s, q, k, p, end=end: both(s, q, k, (p % end).double()),
                f"are those of positions that begin again at {end}",
                _TABLE,
            )
            for end in (64, 128, 256, 512, 1024, 2048)
        ),
    ],
    "xpos": [
        (
            "positions.given_ignored",
            lambda s, q, k, p: xpos(s, q, k, index(p)),
            "are those of positions 0, 1, 2, .. whatever positions are given",
            _GIVEN,
        ),
        (
            "xpos.scale.missing",
            lambda s, q, k, p: xpos(s, q, k, p.double(), 0.0, 0.0),
            "are those of the turn without xPos's sizes",
            "Multiply q by zeta ** (p / scale_base) and k by its inverse.",
        ),
        (
            "xpos.scale.inverted",
            lambda s, q, k, p: xpos(s, q, k, p.double(), -1.0, 1.0),
            "grow with distance: the sizes of q and k are exchanged",
            "Multiply q by zeta ** (p / scale_base) and k by its inverse.",
        ),
        (
            "xpos.scale.same_side",
            lambda s, q, k, p: xpos(s, q, k, p.double(), 1.0, 1.0),
            "depend on the sum of two positions: q and k are scaled alike",
            "Scale k by the inverse of what scales q.",
        ),
    ],
    "alibi": [
        (
            "positions.given_ignored",
            lambda s, q, k, p: (product(q, k), alibi(s, index(p))),
            "are those of positions 0, 1, 2, .. whatever positions are given",
            "Take distances between the positions that are given.",
        ),
        (
            "alibi.no_effect",
            lambda s, q, k, p: (product(q, k), torch.zeros(())),
            "have no bias at all",
            "Add -slope * distance to each score before the softmax.",
        ),
        (
            "alibi.sign",
            lambda s, q, k, p: (product(q, k), alibi(s, p.double(), sign=-1.0)),
            "grow with distance: far keys are favoured",
            "Subtract slope * distance.",
        ),
        (
            "alibi.slopes.not_power_of_two",
            lambda s, q, k, p: (product(q, k), alibi(s, p.double(), slopes="geometric")),
            "have slopes in one geometric row where the number of heads is no power of two",
            "Take the slopes of the next lower power of two, then every second one of twice as many.",
        ),
        (
            "alibi.slopes.exponent_off_by_one",
            lambda s, q, k, p: (product(q, k), exponents_off(s, p.double())),
            "have slopes that begin at 1 instead of 2^(-8/heads)",
            "slope of head h (from 0) = 2 ** (-8 * (h + 1) / heads).",
        ),
        (
            "alibi.scale.applied_to_bias",
            lambda s, q, k, p: (product(q, k), alibi(s, p.double()) * s.scale),
            "have a bias that is divided by sqrt(head_dim) with q.k",
            "Scale q.k first and add the bias then.",
        ),
    ],
}
