"""Multi-head attention in which any mapping can stand where softmax stands, positions, and caches for decoding.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
