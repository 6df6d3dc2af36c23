"""What position code computes where nobody has said what it should."""
