"""Translation as a task: its config, the task, and what is reported of a trained run."""
