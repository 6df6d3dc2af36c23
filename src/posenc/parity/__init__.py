"""How each stack reads a model's configuration: frequencies, gain, score factor, length; without torch.

`compare.compare` compares; `loading.choose` and `loading.known` return the stacks.
"""
