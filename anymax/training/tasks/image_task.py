"""What tasks on images share: their data, what identifies it, and how a model is measured on a split."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.data.images.config import ImageSet
from anymax.data.images.images import Images, open_images
from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.training.checkpoint.tensors import whole_copy
from anymax.training.task import Task

# What evaluation draws is the same at every step and in every run.
EVALUATION_SEED = 20200724
# Images in a row of what a latent does, and the seed of what is drawn for it.
COLUMNS, GALLERY_SEED = 10, 1


class ImageTask(Task):
    """A task on a set of images, all in memory.

    Args:
        seed: decides the order of the batches, and what else a task draws from its data.
    """

    item = "image"
    goal = "loss"

    def __init__(self, images: ImageSet, ranks: Ranks, *, seed: int) -> None:
        self.ranks = ranks
        self.seed = seed
        self.images: dict[Split, Images] = open_images(images)

    @abstractmethod
    def make_model(self) -> nn.Module:
        """The model with new parameters."""

    @abstractmethod
    def measure(self, model: nn.Module, split: Split) -> dict[str, float]:
        """How well a whole model does on a split."""

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The metrics of `measure`; every rank measures all of the split."""
        copy = whole_copy(model, self.make_model).eval()
        with torch.random.fork_rng():
            torch.manual_seed(EVALUATION_SEED)
            return self.measure(copy, split)

    def save(self, folder: Path) -> None:
        """Nothing: the config names the images."""

    def identity(self) -> dict[str, str]:
        train = self.images["train"]
        digest = hashlib.sha256(train.labels.numpy().tobytes())
        digest.update(train.values[:1000].contiguous().numpy().tobytes())
        return {"set of images": digest.hexdigest()}


def parts(number: int, size: int) -> Iterator[Tensor]:
    """The numbers from 0 to `number`, `size` at a time."""
    return iter(torch.arange(number).split(size))


class Means:
    """Means of several numbers over images, added up part by part."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add values of some images, (B,) each."""
        self._count += len(next(iter(values.values())))
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.double().sum())

    def means(self) -> dict[str, float]:
        """The mean of each over all images that were added."""
        return {name: total / self._count for name, total in self._sums.items()}
