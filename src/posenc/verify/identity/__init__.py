"""Report what position code computes, without a specification."""
