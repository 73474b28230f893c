"""Discrete latents: estimators, a costly decoder, SparseMAP."""
