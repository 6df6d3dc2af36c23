"""Context extension: the effects of each method, its spelling in each stack, and the evaluation of models."""
