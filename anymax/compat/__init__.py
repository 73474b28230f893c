"""The public faces of peer packages, over ours: change the import, keep the program."""

from anymax.compat import entmax

__all__ = ["entmax"]
