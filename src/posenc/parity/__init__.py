"""What each stack makes of a model's configuration: frequencies, gain, score factor, length; without torch.

`compare.compare` compares, `loading.choose` and `loading.known` give the stacks.
"""
