"""The page of a run, section by section: what was trained, how it went, and what the choices inside the model did."""
