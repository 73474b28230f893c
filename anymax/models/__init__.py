"""Whole models, which take their input layer, output layer and mapping as arguments, and text drawn from them.

Names are loaded when first used, so that a config can be made without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'anymax.models' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"anymax.models.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
