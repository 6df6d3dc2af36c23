"""Biases, slopes, buckets and index tables."""
