"""Say what a cell of the study learns from as many tokens in other steps: `python benchmarks/study_batches.py`."""

import time
from dataclasses import replace

import torch

from posenc.study import cell
from posenc.study.config import Cell, Config
from posenc.study.subjects import Reading
from posenc.study.text import load

if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| encoding | tokens of a step | steps | bits at 64 bytes | processor s |\n| --- | --- | --- | --- | --- |")
    for encoding in ("learned", "rope"):
        for tokens, steps in ((4096, 160), (2048, 320), (1024, 640), (1024, 500)):
            config = replace(Config(), tokens_per_step=tokens, test_lens=(64,))
            subject, this = Reading(config, load([], config)), Cell(encoding, "text", "64x2x4", 0)
            begin, model = time.process_time(), cell.build(config, subject, this)
            for _ in cell.train(model, config, subject, this, steps):
                pass
            spent = time.process_time() - begin
            bits = subject.test(model.eval(), cell.CPU)["bits_by_length"]["64"]
            print(f"| {encoding} | {tokens} | {steps} | {bits:.2f} | {spent:.1f} |", flush=True)
