"""Parallel text: sentences and their translations, from files to pairs of ids."""
