"""Training steps of AWD-LSTMs against plain torch."""
