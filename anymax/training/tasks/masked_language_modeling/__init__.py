"""Masked language modelling: BERT learns to tell pieces of text that were hidden from those around them."""
