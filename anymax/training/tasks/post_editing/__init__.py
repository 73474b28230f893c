"""Post-editing as a task: its config, the task, correcting with trained runs, and what is reported of them."""
