"""Training steps of Transformer language models against plain torch."""
