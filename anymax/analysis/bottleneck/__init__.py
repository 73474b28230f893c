"""What the output layer of a trained language model can express."""
