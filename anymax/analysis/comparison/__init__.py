"""Runs of several recipes side by side."""
