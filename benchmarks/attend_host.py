"""Say what a call of attention with ALiBi takes on the host and on the GPU: `python benchmarks/attend_host.py`."""

import sys
import time
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

import posenc
from posenc import positions
from posenc.attention import attend

N, HEADS, HEAD_DIM, CALLS = 8192, 8, 64, 20

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here: nothing was measured.")
    q, k, v = (torch.randn(1, HEADS, N, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    alibi, pos = posenc.ALiBi(n_heads=HEADS).cuda(), positions.arange(N, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__)
    for backend in ("flex", "auto"):
        work = partial(attend, q, k, v, alibi, pos, backend=backend)
        for _ in range(5):
            work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            work()
        host = (time.perf_counter() - begin) / CALLS
        torch.cuda.synchronize()
        both = (time.perf_counter() - begin) / CALLS
        print(f"{backend}: {1e6 * host:.0f} us on the host, {1e6 * both:.0f} us until it is done")
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            work()
            torch.cuda.synchronize()
        print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=14, max_name_column_width=50))
