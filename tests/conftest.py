"""One thread of arithmetic in each test process: two processes share the cores of a small machine."""

import torch

torch.set_num_threads(1)
