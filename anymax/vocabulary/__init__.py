"""Ids to vectors and back, for vocabularies of any size: bands of words, input layers, output layers, tying.

Names are loaded when first used, so that a config can hold `Bands` without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
