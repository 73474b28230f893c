"""The Transformer: the config of its shape, and the one block that encoders and decoders are stacks of."""
