"""Rotary object with a cache by (offset, length), partial width, and more keywords than offset."""

import torch


class Rotary(torch.nn.Module):
    def __init__(self, dim=32, theta=10000.0, seq_before_head_dim=False):
        super().__init__()
        self.register_buffer("freqs", theta ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)
        self._held = {}

    def _segment(self, start, stop, device):
        if (start, stop) not in self._held:
            if len(self._held) > 8:
                self._held.clear()
            t = torch.arange(start, stop, device=device, dtype=torch.float32)
            self._held[start, stop] = torch.outer(t, self.freqs.float())
        return self._held[start, stop]

    def rotate_queries_or_keys(self, t, seq_dim=-2, offset=0, scale=None):
        n = t.shape[seq_dim]
        a = self._segment(int(offset), int(offset) + n, t.device)
        r = 2 * a.shape[-1]
        x = t[..., :r].float().unflatten(-1, (-1, 2))
        m = torch.stack((torch.stack((a.cos(), a.sin()), -1), torch.stack((-a.sin(), a.cos()), -1)), -2)
        y = (x.unsqueeze(-2) @ m).squeeze(-2).flatten(-2)
        return torch.cat((y.to(t.dtype), t[..., r:]), -1)


def build():
    return Rotary()


STYLE = "lucidrains"
SPEC = {"encoding": "rope", "head_dim": 80, "rotary_dim": 32, "base": 10000.0, "layout": "interleaved"}
EXPECT = "pass"
