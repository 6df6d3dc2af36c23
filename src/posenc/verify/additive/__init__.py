"""Codes that are added to the tokens."""
