"""BERT: an encoder that transformers reads and writes too, with any mapping in its heads."""
