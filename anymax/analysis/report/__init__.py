"""The page of runs: what was trained, how it went, and what the choices inside the model did."""
