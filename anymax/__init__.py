"""anymax: everything that can stand where softmax stands, where a model turns scores into a choice.

The names below are loaded when first used, so that the command line answers without importing torch.
"""

import importlib
from typing import Any

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
    "attention",
    "bench",
    "compat",
    "data",
    "kernels",
    "losses",
    "mappings",
    "models",
    "transforms",
    "vocabulary",
]
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _FOLDERS:
        value = importlib.import_module(f"anymax.{name}")
    else:
        raise AttributeError(f"module 'anymax' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_FOLDERS])
