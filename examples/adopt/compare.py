"""Load the weights of each model before into the model after; compare outputs, gradients and a step's processor time.

Differences are relative to the length of the vector, and times to the model before.

python examples/adopt/compare.py
"""

import statistics
import sys
import time

import gpt_after
import gpt_before
import torch
import vit_after
import vit_before


def without_buffers(state):
    """Return a checkpoint for the GPT after: its frequencies are not stored."""
    return {name: tensor for name, tensor in state.items() if name != "inv_freq"}


def with_a_flat_table(state):
    """Return a checkpoint for the ViT after: the table loses its first dimension."""
    state["pos_embed.weight"] = state.pop("pos_embed")[0]
    return state


def step(model, x):
    """Return outputs of one step of training, and all gradients as one vector."""
    model.zero_grad()
    out = model(x)
    out.square().mean().backward()
    grads = {name.replace("pos_embed.weight", "pos_embed"): p.grad.flatten() for name, p in model.named_parameters()}
    return out.detach(), torch.cat([grads[name] for name in sorted(grads)])


def ratio(after, before, x, runs):
    """Return the processor time of a step after over that before: medians of interleaved runs."""
    times = {after: [], before: []}
    for run in range(runs + 1):
        for model in (after, before) if run % 2 else (before, after):
            start = time.process_time()
            step(model, x)
            times[model] += [time.process_time() - start] * (run > 0)  # the first run warms up
    return statistics.median(times[after]) / statistics.median(times[before])


def main(runs=9):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids, images = torch.randint(96, (2, 256)), torch.randn(2, 3, 224, 224)
    worst = 0.0
    for name, before, after, adapt, x in (
        ("GPT", gpt_before.GPT(), gpt_after.GPT(), without_buffers, ids),
        ("ViT", vit_before.ViT(), vit_after.ViT(), with_a_flat_table, images),
    ):
        after.load_state_dict(adapt(before.state_dict()), strict=True)
        off, apart = (float((a - b).norm() / b.norm()) for a, b in zip(step(after, x), step(before, x), strict=True))
        took = ratio(after, before, x, runs)
        print(f"{name}: outputs differ by {off:.1e}, gradients by {apart:.1e}; a step takes {took:.2f}")
        worst = max(worst, off, apart)
    before.resize(20), after.resize(20)
    images = torch.randn(1, 3, 320, 320)
    with torch.no_grad():
        off = float((after(images) - before(images)).norm())
    print(f"ViT at 320 pixels: outputs differ by {off:.1e}")
    if not max(worst, off) < 1e-5:
        sys.exit("compare: the models differ.")


if __name__ == "__main__":
    main()
