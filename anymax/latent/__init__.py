"""Discrete latents inside a model, and estimators that train through them: two separate arguments.

Names are loaded when first used, so that configs import no torch.
"""

from anymax import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
