"""Signalling game: one message tells the receiver which image the sender saw."""
