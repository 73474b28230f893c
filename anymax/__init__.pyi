from anymax import analysis as analysis
from anymax import attention as attention
from anymax import bench as bench
from anymax import cli as cli
from anymax import compat as compat
from anymax import data as data
from anymax import display as display
from anymax import evaluation as evaluation
from anymax import kernels as kernels
from anymax import latent as latent
from anymax import losses as losses
from anymax import mappings as mappings
from anymax import models as models
from anymax import recipes as recipes
from anymax import regularizers as regularizers
from anymax import structured as structured
from anymax import training as training
from anymax import transforms as transforms
from anymax import vocabulary as vocabulary
from anymax.kernels import use_backend
from anymax.losses import (
    entmax_loss,
    fenchel_young_loss,
    linear_cross_entropy,
    linear_entmax_loss,
    linear_mixture_loss,
    sparsemax_loss,
)
from anymax.mappings import (
    Entmax,
    LearnedEntmax,
    LearnedTau,
    annealed_tau,
    argmax,
    entmax,
    gumbel_softmax,
    normmax,
    regularized_argmax,
    sigsoftmax,
    softmax,
    sparsemax,
    subset_marginals,
    topk_sparsemax,
    topk_sparsemax_is_exact,
)
from anymax.transforms import PLIF, MonotonicNetwork, Sig
from anymax.version import __version__

__all__ = [
    "PLIF",
    "Entmax",
    "LearnedEntmax",
    "LearnedTau",
    "MonotonicNetwork",
    "Sig",
    "__version__",
    "annealed_tau",
    "argmax",
    "entmax",
    "entmax_loss",
    "fenchel_young_loss",
    "gumbel_softmax",
    "linear_cross_entropy",
    "linear_entmax_loss",
    "linear_mixture_loss",
    "normmax",
    "regularized_argmax",
    "sigsoftmax",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "subset_marginals",
    "topk_sparsemax",
    "topk_sparsemax_is_exact",
    "use_backend",
]
