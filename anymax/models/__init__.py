"""Whole models, which take their input layer, output layer and mapping as arguments, and text drawn from them.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.models.generation import generate as generate
    from anymax.models.transformer_config import TransformerConfig as TransformerConfig
    from anymax.models.transformer_lm import TransformerLM as TransformerLM

_HOME_OF = {
    "TransformerConfig": "transformer_config",
    "TransformerLM": "transformer_lm",
    "generate": "generation",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
