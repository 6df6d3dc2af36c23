"""Whole models, compared with their configuration."""

from posenc.verify.models.check import check_model, verify_model

__all__ = ["check_model", "verify_model"]
