"""Rows in, rows out: the numerical work, each kernel with a torch reference that defines it and a faster twin."""

from anymax.kernels.backend import register_backend, use_backend

__all__ = ["register_backend", "use_backend"]
