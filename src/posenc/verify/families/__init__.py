"""The families of conventions: each says what is right, what is free, and which faults are known."""
