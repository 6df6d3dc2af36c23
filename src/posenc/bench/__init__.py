"""Measure on the user's own machine: time against a baseline of the same round, and peak memory in a fresh process."""
