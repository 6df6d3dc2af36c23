"""Programs that run in a stack's own environment: each builds small models and measures what their layers rotate."""
