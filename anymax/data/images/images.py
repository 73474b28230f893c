"""Sets of images with labels: digits that come with scikit-learn, MNIST and Fashion-MNIST, or your own features.

Shapes: N images, D numbers of an image (its pixels, row by row).
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import os
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from anymax.data.batches.batches import generator_of
from anymax.data.images.config import ImageSet
from anymax.data.text.corpus import Split
from anymax.data.text.named import find_root
from anymax.files import check_file, load_tensors

BRIGHTEST = 255
# Of the images and of the labels; "train" or "t10k" goes in.
IDX_NAMES = ("{}-images-idx3-ubyte", "{}-labels-idx1-ubyte")
IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
# Of 16 grey levels; a fifth of the digits is the test split.
DIGITS_BRIGHTEST = 16
DIGITS_TEST = 360
# Bytes of a file that are read at once, and in all: forty times the images of MNIST.
CHUNK = 1 << 20
MOST_BYTES = 1 << 31
# A label of a million would make a model with as many classes.
MOST_CLASSES = 1 << 16


@dataclass(frozen=True, eq=False)
class Images:
    """Some images.

    Args:
        values: uint8 (N, D) pixels from 0 to 255, or float (N, D) features.
        labels: int64 (N,), what each shows.
        side: how many pixels wide and high an image is; None for features.
    """

    values: Tensor
    labels: Tensor
    side: int | None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """How many numbers an image has."""
        return self.values.shape[1]

    @property
    def num_classes(self) -> int:
        """How many labels there are, from 0."""
        return int(self.labels.max()) + 1

    def numbers(self, rows: Tensor) -> Tensor:
        """Some of the images as float32 numbers: pixels from 0 to 1, features as they are."""
        values = self.values.index_select(0, rows.flatten()).unflatten(0, rows.shape).float()
        return values / BRIGHTEST if self.values.dtype == torch.uint8 else values

    def take(self, rows: Tensor) -> Images:
        """Some of the images."""
        return Images(self.values[rows], self.labels[rows], self.side)


def open_images(config: ImageSet) -> dict[Split, Images]:
    """The splits of a set: what is held out of the training images is "valid"."""
    train, test = _features(config) if config.path is not None else _named(config)
    order = torch.randperm(len(train), generator=generator_of(config.split_seed, 0, "held out"))
    held_out = config.num_valid(len(train))
    return {"train": train.take(order[held_out:]), "valid": train.take(order[:held_out]), "test": test}


def _named(config: ImageSet) -> tuple[Images, Images]:
    if config.name == "digits":
        return _digits()
    folder = find_root(config.name, config.root) / config.name
    train, test = _idx(folder, "train"), _idx(folder, "t10k")
    if train.side != test.side:
        raise ValueError(
            f"images of train and test must be equally large, got {train.side} and {test.side} pixels in {folder}"
        )
    return train, test


@cache
def _digits() -> tuple[Images, Images]:
    if importlib.util.find_spec("sklearn") is None:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn, which is not installed; run: pip install 'anymax[images]'",
            name="sklearn",
        )
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = torch.from_numpy(found.data).double() * (BRIGHTEST / DIGITS_BRIGHTEST)
    whole = Images(levels.round().to(torch.uint8), torch.from_numpy(found.target).long(), 8)
    # Writers follow each other in the set, so that the last images are by others than the first.
    rows = torch.arange(len(whole))
    return whole.take(rows[:-DIGITS_TEST]), whole.take(rows[-DIGITS_TEST:])


def _idx(folder: Path, prefix: str) -> Images:
    """Images and labels as the files of MNIST hold them, compressed or not."""
    images, shape = _read_idx(folder / IDX_NAMES[0].format(prefix), IMAGES_MAGIC)
    labels, _ = _read_idx(folder / IDX_NAMES[1].format(prefix), LABELS_MAGIC)
    if shape[0] != len(labels):
        raise ValueError(f"{folder} must have a label for each image, got {shape[0]} images and {len(labels)} labels")
    return Images(images.reshape(shape[0], -1), labels.long(), shape[1])


def _read_idx(path: Path, magic: int) -> tuple[Tensor, tuple[int, ...]]:
    """The numbers of a file and their shape; its header is checked against its length."""
    found = next((p for p in (path.with_name(f"{path.name}.gz"), path) if p.exists()), None)
    if found is None:
        raise FileNotFoundError(f"{path} is not there, nor {path.name}.gz; put the files of the set into {path.parent}")
    check_file(found, "a file of the set")
    try:
        with gzip.open(found) if found.suffix == ".gz" else open(found, "rb") as file:
            return _parse_idx(file, magic, found)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{found} is damaged or was cut: it cannot be unpacked ({error}); bring it anew") from error


def _parse_idx(file: gzip.GzipFile | BufferedReader, magic: int, path: Path) -> tuple[Tensor, tuple[int, ...]]:
    dims = 1 if magic == LABELS_MAGIC else 3
    head = file.read(4 + 4 * dims)
    if len(head) < 4 + 4 * dims or struct.unpack(">i", head[:4])[0] != magic:
        raise ValueError(f"{path} must begin with the number {magic} of its format, got {head[:4]!r}")
    shape = struct.unpack(f">{dims}i", head[4:])
    expected, data = math.prod(shape), bytearray()
    described = " x ".join(map(str, shape))
    if expected > MOST_BYTES or len(set(shape[1:])) > 1:
        raise ValueError(
            f"{path} must hold images as wide as high and at most {MOST_BYTES:,} numbers, got {described} in its "
            "header; bring it anew"
        )
    # One byte more shows that there are too many; whatever else a small packed file holds is not unpacked.
    while len(data) <= expected and (chunk := file.read(min(CHUNK, expected + 1 - len(data)))):
        data += chunk
    if min(shape) < 1 or len(data) != expected:
        raise ValueError(
            f"{path} must hold {described} numbers, as its header says, and at least one, "
            f"got {len(data):,}; bring it anew"
        )
    return torch.frombuffer(data, dtype=torch.uint8), shape


def _features(config: ImageSet) -> tuple[Images, Images]:
    """Features from safetensors files train and test, each with `features` (N, D) and `labels` (N,)."""
    assert config.path is not None
    train, test = (_read_features(config.path / f"{name}.safetensors") for name in ("train", "test"))
    if train.size != test.size:
        raise ValueError(
            f"features of train and test must be equally many, got {train.size} and {test.size} in {config.path}"
        )
    return train, test


def _read_features(path: str | os.PathLike[str]) -> Images:
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is not there; save features and labels with safetensors.torch.save_file")
    check_file(path, "a safetensors file")
    tensors = load_tensors(path)
    if not {"features", "labels"} <= tensors.keys():
        raise ValueError(f"{path} must hold the tensors features and labels, got {', '.join(sorted(tensors))}")
    features, labels = tensors["features"], tensors["labels"]
    if features.dim() != 2 or labels.shape != features.shape[:1] or not features.numel():
        raise ValueError(
            f"features must be (N, D) and labels (N,), got {tuple(features.shape)} and {tuple(labels.shape)} in "
            f"{path}; N and D are at least 1"
        )
    if features.is_complex() or not bool(features.float().isfinite().all()):
        raise ValueError(f"features must be finite, got others, or {features.dtype}, in {path}")
    if labels.is_floating_point() or labels.is_complex() or not _are_classes(labels.long()):
        raise ValueError(
            f"labels must be whole numbers from 0, got others, or {labels.dtype}, in {path}; the largest is at most "
            f"{MOST_CLASSES - 1:,}"
        )
    return Images(features.float(), labels.long(), None)


def _are_classes(labels: Tensor) -> bool:
    return bool(((labels >= 0) & (labels < MOST_CLASSES)).all())
