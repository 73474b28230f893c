"""Discrete latents: the three tasks of Correia et al. 2020 with every estimator, and quick forms on embedded images.

Settings are those of the published code; where it differs from the published text, `docs/concepts/latents.md` says so.
The likelihood of codes is measured on 1,000 images of a split; `--measured None` takes all of them, as published. Calls
are means over images, where the paper has the median for codes. Test figures are of the best checkpoint; the published
accuracies of `ssvae` are of the last epoch.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from anymax.data.images.config import ImageSet
from anymax.latent import (
    BitMappingConfig,
    DenseMarginalConfig,
    EstimatorConfig,
    GumbelConfig,
    IndependentConfig,
    NVILConfig,
    ScoreFunctionConfig,
    SparseMapConfig,
    SparseMarginalConfig,
    SumAndSampleConfig,
    TopKSparsemaxConfig,
)
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig
from anymax.training.optim.schedules import Constant
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.semi_supervised.config import SemiSupervisedConfig
from anymax.training.tasks.signalling.config import SignallingConfig

TAKES = "the quick ones under a minute, the others hours to days on two cores"

Classes = Literal["sparse", "dense", "sfe", "sfe_plus", "nvil", "gumbel", "st_gumbel", "sum_and_sample"]

Messages = Literal["sparse", "dense", "sfe", "sfe_success", "sfe_plus", "nvil", "gumbel", "st_gumbel", "sum_and_sample"]
Codes = Literal["sparsemap", "budget", "topk", "sfe", "sfe_plus", "nvil", "gumbel", "st_gumbel"]

MNIST = ImageSet("mnist", valid=10_000)
WARM_LR = 1e-3
# The learning rate each was published with, from a grid of five.
CLASSES: dict[str, tuple[EstimatorConfig, float]] = {
    "sparse": (SparseMarginalConfig(), 5e-4),
    "dense": (DenseMarginalConfig(), 1e-3),
    "sfe": (ScoreFunctionConfig("average"), 1e-4),
    "sfe_plus": (ScoreFunctionConfig("sample"), 1e-4),
    "nvil": (NVILConfig(), 1e-3),
    "gumbel": (GumbelConfig(1e-4), 1e-3),
    "st_gumbel": (GumbelConfig(1e-4, hard=True), 1e-3),
    "sum_and_sample": (SumAndSampleConfig(1), 1e-3),
}
# The learning rate and the weight of the entropy each was published with, from a grid of nine. For the last none is
# published; without a baseline it ends in one message for all.
MESSAGES: dict[str, tuple[EstimatorConfig, float, float]] = {
    "sparse": (SparseMarginalConfig(), 5e-3, 0.1),
    "dense": (DenseMarginalConfig(), 1e-3, 0.1),
    "sfe": (ScoreFunctionConfig("average"), 1e-3, 0.05),
    "sfe_success": (ScoreFunctionConfig("average"), 1e-3, 0.01),
    "sfe_plus": (ScoreFunctionConfig("sample"), 1e-3, 0.05),
    "nvil": (NVILConfig(), 1e-3, 0.1),
    "gumbel": (GumbelConfig(1e-5), 1e-3, 0.01),
    "st_gumbel": (GumbelConfig(1e-5, hard=True), 1e-3, 0.01),
    "sum_and_sample": (SumAndSampleConfig(1, baseline="average"), 1e-3, 0.1),
}
# What Fashion-MNIST needs instead: learning rate, weight of the entropy, and the divisor of scores, the best of a grid.
CLOTHES: dict[str, tuple[float, float, float]] = {
    "sparse": (5e-3, 0.1, 10.0),
    "dense": (1e-3, 0.1, 1.0),
    "sfe": (1e-3, 0.1, 1.0),
    "sfe_success": (1e-3, 0.05, 1.0),
    "sfe_plus": (1e-3, 0.05, 1.0),
    "nvil": (1e-3, 0.1, 1.0),
    "gumbel": (1e-3, 0.1, 1.0),
    "st_gumbel": (1e-3, 0.1, 1.0),
    "sum_and_sample": (1e-3, 0.1, 1.0),
}
# Those whose receiver draws its pick, and learns from success alone.
BY_SUCCESS = {"sfe_success": ScoreFunctionConfig("average"), "sfe_plus": ScoreFunctionConfig("sample")}
# For 32 and for 128 bits: what they were published with, from a grid of three learning rates.
SHORT_CODES: dict[str, tuple[EstimatorConfig, BitMappingConfig, float, int]] = {
    "sparsemap": (SparseMarginalConfig(), SparseMapConfig(), 2e-3, 64),
    "budget": (SparseMarginalConfig(), SparseMapConfig(16), 2e-3, 64),
    "topk": (SparseMarginalConfig(), TopKSparsemaxConfig(10), 2e-3, 64),
    "sfe": (ScoreFunctionConfig("average"), IndependentConfig(), 1e-3, 64),
    "sfe_plus": (ScoreFunctionConfig("sample"), IndependentConfig(), 1e-3, 64),
    "nvil": (NVILConfig(), IndependentConfig(), 1e-3, 64),
    "gumbel": (GumbelConfig(1e-5), IndependentConfig(), 1e-3, 64),
    "st_gumbel": (GumbelConfig(1e-5, hard=True), IndependentConfig(), 1e-3, 64),
}
LONG_CODES: dict[str, tuple[EstimatorConfig, BitMappingConfig, float, int]] = {
    **SHORT_CODES,
    "sparsemap": (SparseMarginalConfig(), SparseMapConfig(), 2e-3, 16),
    "budget": (SparseMarginalConfig(), SparseMapConfig(64), 2e-3, 16),
    "topk": (SparseMarginalConfig(), TopKSparsemaxConfig(10), 1e-3, 64),
    "nvil": (NVILConfig(), IndependentConfig(), 5e-4, 64),
    "gumbel": (GumbelConfig(1e-4), IndependentConfig(), 1e-3, 64),
    "st_gumbel": (GumbelConfig(1e-5, hard=True), IndependentConfig(), 5e-4, 64),
}


def ssvae(estimator: Classes = "sparse") -> RunConfig:
    """MNIST with a tenth of the labels, class as a latent: 96.87% published for sparse, 96.93% for dense, of test."""
    found, lr = CLASSES[estimator]
    return RunConfig(
        SemiSupervisedConfig(MNIST, found, "sparsemax" if estimator == "sparse" else "softmax", warm_rate=WARM_LR / lr),
        AdamConfig(lr, weight_decay=1e-5),
        Constant(),
        epochs=300.0,
        evaluate_every=7040,
        checkpoint_every=7040,
        log_every=100,
    )


def ssvae_quick(estimator: Classes = "sparse") -> RunConfig:
    """Digits of scikit-learn with a tenth of the labels, class as a latent: under a minute."""
    published = ssvae(estimator)
    task = SemiSupervisedConfig.of(published.task)
    task = replace(task, images=ImageSet(), num_labelled=129, warm_epochs=50, warm_rate=1.0)
    return replace(published, task=task, optimizer=AdamConfig(1e-3), epochs=150.0, evaluate_every=380)


def signalling(estimator: Messages = "sparse") -> RunConfig:
    """256 messages, 16 images of clothes: the published game on images at hand, with settings searched for them.

    Fashion-MNIST shows ten kinds of clothes, so the images of a game differ, but not in kind; what all have in common
    is taken off before they are scaled to length 1.
    """
    published = signalling_features(estimator)
    task = SignallingConfig.of(published.task)
    lr, entropy, scale = CLOTHES[estimator]
    images = ImageSet("fashion-mnist", valid=10_000)
    task = replace(task, images=images, distinct="images", centred=True, entropy=entropy, scale=scale)
    return replace(published, task=task, optimizer=AdamConfig(lr))


def signalling_features(estimator: Messages = "sparse") -> RunConfig:
    """The published game about features: 93.35% won for sparse, 93.37% for dense, 55.36% for the best other.

    Its features are those of ImageNet, of 463 kinds, each of length 1. `--images.path` is your own folder, with
    train.safetensors and test.safetensors.
    """
    found, lr, entropy = MESSAGES[estimator]
    return RunConfig(
        SignallingConfig(
            ImageSet(path=Path("features")),
            found,
            "sparsemax" if estimator == "sparse" else "softmax",
            pick=BY_SUCCESS.get(estimator),
            entropy=entropy,
        ),
        AdamConfig(lr),
        Constant(),
        epochs=500.0,
        evaluate_every=2500,
        checkpoint_every=2500,
        log_every=100,
    )


def signalling_quick(estimator: Messages = "sparse") -> RunConfig:
    """32 messages, 8 images of digits: under a minute."""
    published = signalling(estimator)
    task = SignallingConfig.of(published.task)
    task = replace(task, images=ImageSet(), num_messages=32, num_candidates=8, dim=32, num_units=32)
    return replace(published, task=task, epochs=20.0, evaluate_every=500)


def bits(estimator: Codes = "topk") -> RunConfig:
    """Fashion-MNIST in 32 bits: 3.62 bits a pixel published for topk, 3.72 for sparsemap, 3.57 for gumbel."""
    return _code(32, *SHORT_CODES[estimator])


def bits_128(estimator: Codes = "topk") -> RunConfig:
    """Fashion-MNIST in 128 bits: 3.61 bits a pixel published for topk, 3.67 for sparsemap, 3.49 for gumbel."""
    return _code(128, *LONG_CODES[estimator])


def bits_quick(estimator: Codes = "topk") -> RunConfig:
    """Digits of scikit-learn in 16 bits: under a minute."""
    published = bits(estimator)
    task = BitVectorsConfig.of(published.task)
    mapping = SparseMapConfig(8) if estimator == "budget" else task.mapping
    task = replace(task, images=ImageSet(), num_bits=16, mapping=mapping)
    return replace(published, task=task, epochs=30.0, evaluate_every=210)


def _code(
    num_bits: int, estimator: EstimatorConfig, mapping: BitMappingConfig, lr: float, batch_size: int
) -> RunConfig:
    return RunConfig(
        BitVectorsConfig(
            ImageSet("fashion-mnist", valid=5_000), num_bits, estimator, mapping, batch_size=batch_size, measured=1000
        ),
        AdamConfig(lr),
        Constant(),
        epochs=100.0,
        evaluate_every="epoch",
        log_every=100,
    )
