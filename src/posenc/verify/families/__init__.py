"""Families of conventions: each defines what is right, what is free, and which faults are known."""
