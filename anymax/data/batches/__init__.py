"""Batches that can be stopped and resumed anywhere."""
