"""Positions and row numbers that belong to tokens."""
