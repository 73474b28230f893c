"""Which images a model learns from, as plain data that imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

NAMES = ("digits", "mnist", "fashion-mnist")


@dataclass(frozen=True)
class ImageSet:
    """A set of images with labels, and how much of its training part is held out.

    Args:
        name: digits (8 x 8 pixels, come with scikit-learn), mnist or fashion-mnist (28 x 28).
        path: a folder with your own features instead: train.safetensors and test.safetensors, each with `features`
            (N, D) and `labels` (N,).
        root: the folder that holds the folders of mnist and fashion-mnist; by default the environment variable
            ANYMAX_DATA.
        valid: how many of the training images are held out, or which share of them.
        split_seed: decides which.
    """

    name: str = "digits"
    path: Path | None = None
    root: Path | None = None
    valid: float = 0.1
    split_seed: int = 1

    def __post_init__(self) -> None:
        if self.path is None and self.name not in NAMES:
            raise ValueError(f"name must be one of {', '.join(NAMES)}, got {self.name!r}; give features as path")
        if self.path is not None and self.root is not None:
            raise ValueError(f"root is for named sets, got it with the path {self.path}; leave one of them out")
        if not 0 < self.valid < math.inf:
            raise ValueError(f"valid must be above 0 and finite, got {self.valid}")

    @property
    def sets(self) -> tuple[str, ...]:
        """The named set that is read, or the folder of your own features where it is not there."""
        if self.path is not None:
            return () if self.path.exists() else (str(self.path),)
        return (self.name,)

    def num_valid(self, total: int) -> int:
        """The number of training images that are held out."""
        number = round(self.valid * total) if self.valid < 1 else round(self.valid)
        if not 0 < number < total:
            raise ValueError(f"valid must leave images on both sides of {total:,}, got {self.valid:g}; give another")
        return number

    def toy(self) -> ImageSet:
        """The same at a size for tests: the digits."""
        return ImageSet()
