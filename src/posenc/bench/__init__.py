"""Measure on the user's machine: time relative to a baseline of the same round, and peak memory in a fresh process."""
