"""Whole models, which take their input layer, output layer and mapping as arguments.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
