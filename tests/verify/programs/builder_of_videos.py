"""Positions of text, pictures and video, as a processor builds them from the sizes of the grids."""

import torch

STYLE = "mrope_positions_fn"
SPEC = {"next_after": "all_axes"}
EXPECT = "pass"


def positions(segments, time_steps):
    parts, start, videos = [], 0, 0
    for segment in segments:
        if isinstance(segment, int):
            parts.append((torch.arange(segment) + start).expand(3, -1))
        else:
            frames, rows, columns = segment
            times = (torch.arange(frames) * time_steps[videos]).long()
            grid = torch.meshgrid(times, torch.arange(rows), torch.arange(columns), indexing="ij")
            parts.append(torch.stack([axis.flatten() for axis in grid]) + start)
            videos += 1
        start = int(parts[-1].max()) + 1
    return torch.cat(parts, 1)


def build():
    return positions
