"""Seven outputs on one experiment: a free vector for each of 500 contexts, random distributions over 200 words.

Ganea et al. 2019 do not report their numbers of contexts, words and dimensions. These separate the outputs and take
seconds: at 8 dimensions a linear softmax misses modes that others find, with enough dimensions all find them.
Learning rates were tuned for each output alone; docs/results lists what was tried.
"""

from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig
from anymax.training.optim.schedules import Cosine
from anymax.training.tasks.dirichlet.config import DirichletConfig
from anymax.transforms import MonotonicNetworkConfig, PLIFConfig, SigConfig
from anymax.vocabulary import FullOutputConfig, MixtureOutputConfig, SparseOutputConfig

TAKES = "3 to 24 seconds on one core"


def dirichlet(
    output: FullOutputConfig | MixtureOutputConfig | SparseOutputConfig,
    *,
    lr: float,
    steps: int = 1000,
    dim: int = 8,
    concentration: float = 0.01,
) -> RunConfig:
    """An output and how it is trained: whole batches, Adam, a learning rate that falls to zero."""
    return RunConfig(
        DirichletConfig(500, 200, dim, concentration, output),
        AdamConfig(lr),
        Cosine(),
        steps=steps,
        log_every=100,
        evaluate_every=250,
    )


def linear() -> RunConfig:
    """Dirichlet experiment: softmax of products, whose log-probabilities have rank d + 1."""
    return dirichlet(FullOutputConfig(), lr=0.3)


def scaled() -> RunConfig:
    """Dirichlet experiment: softmax of products times one learned number, PLIF of one piece."""
    return dirichlet(FullOutputConfig(transform=PLIFConfig(1, rate=0.2)), lr=0.3)


def sigsoftmax() -> RunConfig:
    """Dirichlet experiment: sig-softmax, whose scores have one fixed knee."""
    return dirichlet(FullOutputConfig(transform=SigConfig()), lr=0.3)


def plif() -> RunConfig:
    """Dirichlet experiment: softmax of a learned piecewise linear increasing function of the scores."""
    return dirichlet(FullOutputConfig(transform=PLIFConfig(1_000, rate=0.2)), lr=0.1)


def monotone() -> RunConfig:
    """Dirichlet experiment: softmax of a learned increasing network of the scores, 8 sigmoids and a line."""
    return dirichlet(FullOutputConfig(transform=MonotonicNetworkConfig(8, bound=5.0, chunk=8)), lr=0.1)


def mixture() -> RunConfig:
    """Dirichlet experiment: a mixture of five softmaxes, their latents and prior computed from the context's vector."""
    return dirichlet(MixtureOutputConfig(5, bias=False), lr=0.1)


def sparse() -> RunConfig:
    """Dirichlet experiment: entmax with alpha 1.5 and its own loss, which gives most words no probability."""
    return dirichlet(SparseOutputConfig(1.5), lr=0.2)
