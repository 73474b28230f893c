"""LSTM language models: plain, and the AWD-LSTM."""
