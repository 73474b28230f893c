"""How good a model is: perplexity with all it depends on, losses by frequency, what it chooses, the rank of its
log-probabilities, models that follow the text, and n-grams to compare with.

Names are loaded when first used, so that importing this package costs nothing.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
