"""What each stack makes of a model's configuration: frequencies, gain, score factor, length; without torch.

`compare.compare` compares, `rules.choose` and `rules.known` give the stacks.
"""
