"""Training: the config of a run, the one loop for every task, checkpoints, several processes.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
