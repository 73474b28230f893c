"""The processes of a run, and models on several of them."""
