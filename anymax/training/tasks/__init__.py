"""Tasks: a folder each, with the config, which imports no torch, and the task."""
