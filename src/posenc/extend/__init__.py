"""A longer context: what each method changes, how each stack spells it, and how well a model reads longer texts."""
