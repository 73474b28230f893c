"""Rows in, rows out: the numerical work, each kernel with a torch reference that defines it and a faster twin."""

from anymax.kernels.backend import use_backend

__all__ = ["use_backend"]
