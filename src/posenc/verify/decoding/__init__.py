"""One pass against a growing cache, and attention of which scores alone are seen."""
