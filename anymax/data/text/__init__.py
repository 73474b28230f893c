"""Texts: where they lie, their lines and their words."""
