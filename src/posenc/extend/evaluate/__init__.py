"""How well causal models read longer texts than they were trained on, with each method of stretching."""
