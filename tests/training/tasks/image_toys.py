"""The three tasks on images at a size for tests."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from anymax.data.images.config import ImageSet
from anymax.data.images.images import Images
from anymax.latent import (
    DenseMarginalConfig,
    GumbelConfig,
    IndependentConfig,
    NVILConfig,
    ScoreFunctionConfig,
    SparseMarginalConfig,
    SumAndSampleConfig,
    TopKSparsemaxConfig,
)
from anymax.training import AdamConfig, Constant, Ranks, RunConfig
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.image_task import ImageTask
from anymax.training.tasks.semi_supervised.config import SemiSupervisedConfig
from anymax.training.tasks.signalling.config import SignallingConfig

ImageConfig = SemiSupervisedConfig | SignallingConfig | BitVectorsConfig

DIGITS = ImageSet()
NVIL = NVILConfig(8)
CLASSES = SemiSupervisedConfig(DIGITS, SparseMarginalConfig(), "sparsemax").toy()
GAMES = SignallingConfig(DIGITS, SparseMarginalConfig(), "sparsemax").toy()
CODES = BitVectorsConfig(DIGITS, 6, SparseMarginalConfig(), TopKSparsemaxConfig(4)).toy()
# Estimators without luck.
EXACT: dict[str, ImageConfig] = {
    "classes": CLASSES,
    "classes of softmax": SemiSupervisedConfig(DIGITS, DenseMarginalConfig()).toy(),
    "games": GAMES,
    "games of softmax": SignallingConfig(DIGITS, DenseMarginalConfig()).toy(),
    "codes": CODES,
    "codes of independent bits": BitVectorsConfig(DIGITS, 6, DenseMarginalConfig(), IndependentConfig()).toy(),
}
# Estimators that draw, and most of which keep a state: what was before, how many steps, a network.
DRAWN: dict[str, ImageConfig] = {
    "classes by average": SemiSupervisedConfig(DIGITS, ScoreFunctionConfig("average")).toy(),
    "classes by nvil": SemiSupervisedConfig(DIGITS, NVIL).toy(),
    "classes relaxed": SemiSupervisedConfig(DIGITS, GumbelConfig(0.1, every=2)).toy(),
    "classes by sum and sample": SemiSupervisedConfig(DIGITS, SumAndSampleConfig(baseline="average")).toy(),
    "games by average": SignallingConfig(
        DIGITS, ScoreFunctionConfig("average"), pick=ScoreFunctionConfig("average")
    ).toy(),
    "games by sample": SignallingConfig(
        DIGITS, ScoreFunctionConfig("sample"), pick=ScoreFunctionConfig("sample")
    ).toy(),
    "games relaxed": SignallingConfig(DIGITS, GumbelConfig(0.1, every=2, hard=True, published=True)).toy(),
    "codes by nvil": BitVectorsConfig(DIGITS, 6, NVIL, IndependentConfig()).toy(),
    "codes relaxed": BitVectorsConfig(DIGITS, 6, GumbelConfig(0.1, every=2, published=True), IndependentConfig()).toy(),
}


def build(config: ImageConfig, ranks: Ranks | None = None, seed: int = 1) -> ImageTask:
    torch.manual_seed(seed)
    return config.build(Path(), ranks or Ranks(), seed=seed, announce=lambda *_: None)


def run(config: ImageConfig, steps: int, lr: float = 1e-2, **changes: object) -> RunConfig:
    return RunConfig(config, AdamConfig(lr), Constant(), steps=steps, threads=1, device="cpu", **changes)


def black_or_white(task: ImageTask) -> None:
    """Give a task images of which nothing is left to be drawn."""
    task.images = {
        split: Images(torch.where(images.values > 100, 255, 0).to(torch.uint8), images.labels, images.side)
        for split, images in task.images.items()
    }


def without_noise(task: ImageTask) -> ImageTask:
    """A task whose steps and measures do the same every time, where its estimator does."""
    black_or_white(task)
    if isinstance(task.config, SemiSupervisedConfig):
        size, last = task.config.vector_size, task.model.infer[1][-1]
        with torch.no_grad():
            last.weight[size:] = 0
            last.bias[size:] = -40
    return task


def small_batches(config: ImageConfig) -> ImageConfig:
    """Batches so small that some of five ranks go without."""
    labelled = {"num_labelled": 6} if isinstance(config, SemiSupervisedConfig) else {}
    return replace(config, batch_size=4, **labelled)


def some_batches(task: ImageTask) -> Iterator[Any]:
    """Those of the first epoch and some of the second: for classes, the last warm one and full ones among them."""
    batches = task.batches("train")
    return islice(chain(batches, batches), 5)


@torch.no_grad()
def measure(task: ImageTask, split: str = "valid") -> dict[str, float]:
    return task.evaluate(task.model, split)
