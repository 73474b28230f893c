"""Optimizers, learning-rate schedules, and the update of a step."""
