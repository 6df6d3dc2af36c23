"""Evaluation of causal models on texts longer than their training texts, with each context extension method."""
