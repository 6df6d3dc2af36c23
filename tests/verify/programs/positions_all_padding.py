"""Left padding: pads get 1, a row of padding only is allowed, the mask may be bool."""

import torch


def positions(attention_mask, q_len):
    m = attention_mask.to(torch.bool)
    place = m.to(torch.int32).cumsum(1, dtype=torch.int64).sub_(1)
    place = torch.where(m, place, torch.ones_like(place))
    return place.narrow(1, m.size(1) - q_len, q_len)


def build():
    return positions


STYLE = "position_fn"
SPEC = {"kind": "positions", "padding": "left"}
EXPECT = "pass"
