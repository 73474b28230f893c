"""Perplexity and all it depends on."""
