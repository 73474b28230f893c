"""Distributions drawn at random, which an output layer should express."""
