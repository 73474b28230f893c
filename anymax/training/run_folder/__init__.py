"""The folder of a run: config, lock, metrics."""
