"""Texts as ids on disk, made once."""
