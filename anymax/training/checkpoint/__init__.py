"""Checkpoints: a run's tensors and state on disk and back."""
