"""anymax: everything that can stand where softmax stands, where a model turns scores into a choice.

The names below are loaded when first used, so that the command line answers without importing torch.
"""

from anymax import lazy
from anymax.version import __version__

_HOMES = {
    "anymax.kernels": ["use_backend"],
    "anymax.mappings": [
        "Entmax",
        "LearnedEntmax",
        "LearnedTau",
        "annealed_tau",
        "argmax",
        "entmax",
        "gumbel_softmax",
        "normmax",
        "regularized_argmax",
        "sigsoftmax",
        "softmax",
        "sparsemax",
        "subset_marginals",
        "topk_sparsemax",
        "topk_sparsemax_is_exact",
    ],
    "anymax.transforms": ["PLIF", "MonotonicNetwork", "Sig"],
    "anymax.losses": [
        "entmax_loss",
        "fenchel_young_loss",
        "linear_cross_entropy",
        "linear_entmax_loss",
        "linear_mixture_loss",
        "sparsemax_loss",
    ],
}
_FOLDERS = [
    "analysis",
    "attention",
    "bench",
    "cli",
    "compat",
    "data",
    "display",
    "evaluation",
    "kernels",
    "latent",
    "losses",
    "mappings",
    "models",
    "recipes",
    "regularizers",
    "structured",
    "training",
    "transforms",
    "vocabulary",
]
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {**_HOME_OF, **{folder: f"anymax.{folder}" for folder in _FOLDERS}})
