"""One page for a run, or for several: what was trained, how it went, and what the choices inside the model did."""
