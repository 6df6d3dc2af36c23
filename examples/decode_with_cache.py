# %% [markdown]
"""Decode with a cache of rotated keys: the same tokens as reading everything again, at a fraction of the cost.

A rotary key depends on its own position only, so it is rotated once, when it is new, and cached rotated. `attend` gets
`rotated=True`, the positions of the new queries and those of all keys. A small decoder trains briefly on Python's help
texts, then writes one.

    python examples/decode_with_cache.py [--steps 250] [--tokens 300]
"""

# %%
import argparse
import sys
import textwrap
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

import posenc
from posenc import positions

D_MODEL, HEADS, LAYERS, TRAIN_LEN, BATCH, TEMPERATURE = 64, 4, 2, 320, 4, 0.6


# %% The parts
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(2))
        self.qkv, self.out = nn.Linear(D_MODEL, 3 * D_MODEL), nn.Linear(D_MODEL, D_MODEL)
        self.mlp = nn.Sequential(nn.Linear(D_MODEL, 4 * D_MODEL), nn.GELU(), nn.Linear(4 * D_MODEL, D_MODEL))

    def forward(self, x, rope, placed, k_placed, cache):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        q, k = rope.rotate(q, k, placed)  # the new tokens only: cached keys are rotated already
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        x = x + self.out(posenc.attend(q, k, v, rope, placed, k_placed, rotated=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x)), (k, v)


class Decoder(nn.Module):
    def __init__(self, n_tokens):
        super().__init__()
        self.tokens, self.rope = nn.Embedding(n_tokens, D_MODEL), posenc.RoPE(head_dim=D_MODEL // HEADS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(D_MODEL, n_tokens)

    def forward(self, tokens, cache=None):
        past_len = cache[0][0].shape[2] if cache else 0
        placed = self.rope.place(positions.continued(past_len, tokens.shape[1]))  # once, for all layers
        k_placed = self.rope.place(positions.arange(past_len + tokens.shape[1]))
        x, kept = self.tokens(tokens), []
        for i, layer in enumerate(self.layers):
            x, keys_and_values = layer(x, self.rope, placed, k_placed, cache[i] if cache else None)
            kept.append(keys_and_values)
        return self.head(F.layer_norm(x, (D_MODEL,))), kept


def train(model, text, steps):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        batch = text[torch.randint(len(text) - TRAIN_LEN, (BATCH, 1)) + torch.arange(TRAIN_LEN + 1)]
        loss = F.cross_entropy(model(batch[:, :-1])[0].transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def choose(logits, noise):
    return (logits / TEMPERATURE + noise).argmax(-1)


def decode(model, prompt, noise, *, use_cache):
    """Return all tokens and the milliseconds of each step; the same `noise` draws the same samples either way."""
    tokens, cache, times = prompt, None, []
    for drawn in noise:
        begin = time.perf_counter()
        logits, kept = model(tokens[:, -1:] if cache else tokens, cache)
        tokens = torch.cat((tokens, choose(logits[:, -1:], drawn)), 1)
        cache = kept if use_cache else None
        times.append(1e3 * (time.perf_counter() - begin))
    return tokens, torch.tensor(times)


def step_cost(k_len, *, rotated):
    """Return the milliseconds of one query's attention to a long cache, of rotated or unrotated keys."""
    rope, pos, k_pos = posenc.RoPE(head_dim=64), positions.arange(1, start=k_len - 1), positions.arange(k_len)
    q, (k, v), times = torch.randn(1, 8, 1, 64), torch.randn(2, 1, 8, k_len, 64), []
    for _ in range(7):
        begin = time.perf_counter()
        posenc.attend(q, k, v, rope, pos, k_pos, rotated=rotated)
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


# %% The run
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=250, help="training steps")
    parser.add_argument("--tokens", type=int, default=300, help="tokens to decode")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # small models gain nothing from more, and the numbers do not depend on the cores
    torch.manual_seed(0)

    raw = " ".join(" ".join(topics[key] for key in sorted(topics)).split()).encode()
    alphabet = sorted(set(raw))
    model = Decoder(len(alphabet))
    train(model, torch.tensor([alphabet.index(byte) for byte in raw]), options.steps)
    prompt = torch.tensor([[alphabet.index(byte) for byte in b"The statement "]])
    noise = -torch.empty(options.tokens, len(alphabet)).exponential_().log()  # Gumbel noise: its argmax is a sample
    with torch.no_grad():
        tokens, with_cache = decode(model, prompt, noise, use_cache=True)
        others, without = decode(model, prompt, noise, use_cache=False)
        one_pass = choose(model(tokens[:, :-1])[0][:, prompt.shape[1] - 1 :], noise)
        print(textwrap.fill(bytes(alphabet[i] for i in tokens[0]).decode(errors="replace"), 100))

        marks = [n for n in (25, 100, 200, 300, 600, 1200) if n <= options.tokens]
        print(f"\n{'milliseconds per token, at token':<34}" + "".join(f"{n:>9}" for n in marks))
        for way, times in {"cache of rotated keys": with_cache, "no cache": without}.items():
            print(f"{way:<34}" + "".join(f"{float(times[n - 25 : n].median()):>9.2f}" for n in marks))
        lengths = (1024, 4096, 16384)
        print(f"\n{'only attention, keys in cache':<34}" + "".join(f"{n:>9}" for n in lengths))
        for way, rotated in {"rotated once: rotated=True": True, "rotated again at each step": False}.items():
            print(f"{way:<34}" + "".join(f"{step_cost(n, rotated=rotated):>9.2f}" for n in lengths))

    same = torch.equal(tokens, others) and torch.equal(one_pass, tokens[:, prompt.shape[1] :])
    print(f"\nwith a cache, without, and in one pass over the finished text: the same {options.tokens} tokens: {same}")
    if not same:
        sys.exit("decode_with_cache: the cache changes the decoded tokens.")


if __name__ == "__main__":
    main([] if "ipykernel" in sys.modules else None)  # a notebook has other arguments
