"""Attention by entmax against torch's attention and the entmax package."""
