"""Scores in, scores out: increasing functions of one number, to put between a linear layer and its mapping.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
