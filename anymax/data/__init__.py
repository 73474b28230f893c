"""Text for language models: corpora, lexicons, encoded files and batches.

Names are loaded when first used, so that corpora and lexicons can be read without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
