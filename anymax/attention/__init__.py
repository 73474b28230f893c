"""Multi-head attention with any mapping in place of softmax, positions, and caches for decoding.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
