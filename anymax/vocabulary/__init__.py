"""Ids to vectors and back, for vocabularies of any size: bands of words, input layers, output layers, tying.

Names are loaded when first used, so that a config can hold `Bands` without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.vocabulary.adaptive_input import AdaptiveInput as AdaptiveInput
    from anymax.vocabulary.adaptive_output import AdaptiveOutput as AdaptiveOutput
    from anymax.vocabulary.bands import Bands as Bands
    from anymax.vocabulary.character_input import CharacterInput as CharacterInput
    from anymax.vocabulary.cost import Cost as Cost
    from anymax.vocabulary.cost import measure_cost as measure_cost
    from anymax.vocabulary.fixed_input import FixedInput as FixedInput
    from anymax.vocabulary.full_output import FullOutput as FullOutput
    from anymax.vocabulary.mixture_output import MixtureOutput as MixtureOutput
    from anymax.vocabulary.output import OutputLayer as OutputLayer
    from anymax.vocabulary.output import TopK as TopK
    from anymax.vocabulary.sparse_output import SparseOutput as SparseOutput
    from anymax.vocabulary.tying import tie_ as tie_

_HOME_OF = {
    "AdaptiveInput": "adaptive_input",
    "AdaptiveOutput": "adaptive_output",
    "Bands": "bands",
    "CharacterInput": "character_input",
    "Cost": "cost",
    "FixedInput": "fixed_input",
    "FullOutput": "full_output",
    "MixtureOutput": "mixture_output",
    "OutputLayer": "output",
    "SparseOutput": "sparse_output",
    "TopK": "output",
    "measure_cost": "cost",
    "tie_": "tying",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
