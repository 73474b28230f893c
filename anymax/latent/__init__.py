"""Discrete latents inside a model, and estimators that train through them: two separate arguments.

Names are loaded when first used, so that a config can hold `AnnealedTemperature` without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.latent.annealed_temperature import AnnealedTemperature as AnnealedTemperature
    from anymax.latent.bit_mappings import Independent as Independent
    from anymax.latent.bit_mappings import SparseMap as SparseMap
    from anymax.latent.bit_mappings import TopKSparsemax as TopKSparsemax
    from anymax.latent.bit_vector import BitVector as BitVector
    from anymax.latent.choice import Choice as Choice
    from anymax.latent.estimate import Estimate as Estimate
    from anymax.latent.estimate import Estimator as Estimator
    from anymax.latent.estimate import LossGiven as LossGiven
    from anymax.latent.gumbel import Gumbel as Gumbel
    from anymax.latent.gumbel import StraightThroughGumbel as StraightThroughGumbel
    from anymax.latent.latent import Latent as Latent
    from anymax.latent.marginal import DenseMarginal as DenseMarginal
    from anymax.latent.marginal import SparseMarginal as SparseMarginal
    from anymax.latent.nvil import NVIL as NVIL
    from anymax.latent.score_function import ScoreFunction as ScoreFunction
    from anymax.latent.sum_and_sample import SumAndSample as SumAndSample
    from anymax.latent.support import Support as Support

_HOME_OF = {
    "NVIL": "nvil",
    "AnnealedTemperature": "annealed_temperature",
    "BitVector": "bit_vector",
    "Choice": "choice",
    "DenseMarginal": "marginal",
    "Estimate": "estimate",
    "Estimator": "estimate",
    "Gumbel": "gumbel",
    "Independent": "bit_mappings",
    "Latent": "latent",
    "LossGiven": "estimate",
    "ScoreFunction": "score_function",
    "SparseMap": "bit_mappings",
    "SparseMarginal": "marginal",
    "StraightThroughGumbel": "gumbel",
    "SumAndSample": "sum_and_sample",
    "Support": "support",
    "TopKSparsemax": "bit_mappings",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
