"""anymax: everything that can stand where softmax stands, where a model turns scores into a choice.

The names below are loaded when first used, so that the command line answers without importing torch.
"""

from anymax import lazy
from anymax.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy.attach(__name__)
