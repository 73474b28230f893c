"""Words from a model: greedy, sampled or by beam search, for every model that generates.

Names are loaded when first used, so that a length penalty can be named without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
