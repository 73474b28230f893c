"""The rank of log-probabilities."""
