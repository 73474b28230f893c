"""Triplets for post-editing: sentences, their machine translations, and those as people corrected them."""
