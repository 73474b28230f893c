"""Sets of images: digits that come with a package, files as MNIST has them, features of one's own; what is held out."""

import contextlib
import gzip
import os
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor

from anymax.data.images.config import ImageSet
from anymax.data.images.images import IDX_NAMES, Images, open_images

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
SIDE = 3


def idx(values: Tensor) -> bytes:
    """A file of MNIST's format."""
    magic = IMAGES_MAGIC if values.dim() == 3 else LABELS_MAGIC
    return struct.pack(f">{1 + values.dim()}i", magic, *values.shape) + bytes(values.flatten().tolist())


def write_idx(root: Path, *, packed: bool = False, name: str = "mnist", **changed: bytes) -> ImageSet:
    """A set of twenty training and five test images below a root, with some of its files changed."""
    folder = root / name
    folder.mkdir(parents=True)
    for prefix, number in (("train", 20), ("t10k", 5)):
        images, labels = drawn(prefix, number)
        for template, values in zip(IDX_NAMES, (images, labels), strict=True):
            file, kind = template.format(prefix), template.split("-")[1]
            data = changed.get(f"{prefix}_{kind}", idx(values))
            (folder / (f"{file}.gz" if packed else file)).write_bytes(gzip.compress(data) if packed else data)
    return ImageSet(name, root=root, valid=4)


def drawn(prefix: str, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(prefix))
    images = torch.randint(256, (number, SIDE, SIDE), generator=generator)
    return images, torch.arange(number) % 10


def write_features(folder: Path, **changed: dict[str, Tensor]) -> ImageSet:
    folder.mkdir(exist_ok=True)
    for split, number in (("train", 12), ("test", 3)):
        tensors = {"features": torch.randn(number, 6), "labels": torch.arange(number) % 4}
        save_file(changed.get(split, tensors), folder / f"{split}.safetensors")
    return ImageSet(path=folder, valid=0.25)


def rows_of(images: Images) -> list[tuple[float, ...]]:
    """Every image with its label, to be compared whatever the order."""
    return [(*values.tolist(), label.item()) for values, label in zip(images.values, images.labels, strict=True)]


def test_digits_are_divided_into_three_parts_that_are_all_of_them():
    splits = open_images(ImageSet())
    assert {split: len(images) for split, images in splits.items()} == {"train": 1293, "valid": 144, "test": 360}
    found = load_digits()
    expected = np.c_[np.round(found.data * 255 / 16), found.target].astype(int)
    together = [row for images in splits.values() for row in rows_of(images)]
    assert sorted(together) == sorted(map(tuple, expected.tolist()))
    assert rows_of(splits["test"]) == list(map(tuple, expected[-360:].tolist()))
    for images in splits.values():
        assert images.values.dtype == torch.uint8 and (images.size, images.side, images.num_classes) == (64, 8, 10)


def test_pixels_become_numbers_from_zero_to_one():
    train = open_images(ImageSet())["train"]
    numbers = train.numbers(torch.tensor([3, 1]))
    assert numbers.dtype == torch.float32
    assert torch.equal(numbers, train.values[[3, 1]] / 255)
    assert train.numbers(torch.arange(len(train))).aminmax() == (0, 1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_files_are_read_packed_or_not(tmp_path: Path, name: str, packed: bool):
    splits = open_images(write_idx(tmp_path, packed=packed, name=name))
    assert [len(splits[split]) for split in ("train", "valid", "test")] == [16, 4, 5]
    for prefix, number, found in (
        ("t10k", 5, rows_of(splits["test"])),
        ("train", 20, [*rows_of(splits["train"]), *rows_of(splits["valid"])]),
    ):
        images, labels = drawn(prefix, number)
        expected = torch.cat([images.flatten(1), labels.unsqueeze(1)], 1)
        assert sorted(found) == sorted(map(tuple, expected.tolist()))
    assert splits["train"].side == SIDE


def test_the_environment_tells_where_named_sets_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = replace(write_idx(tmp_path), root=None)
    monkeypatch.delenv("ANYMAX_DATA", raising=False)
    with pytest.raises(ValueError, match=r"mnist needs the folder it lies in; give root, or set .* ANYMAX_DATA"):
        open_images(config)
    monkeypatch.setenv("ANYMAX_DATA", str(tmp_path))
    assert len(open_images(config)["test"]) == 5


IMAGES = idx(drawn("train", 20)[0])


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("train_images", b"<html>", "train-images-idx3-ubyte must begin with the number 2051"),
        ("train_images", idx(torch.arange(20)), "must begin with the number 2051 of its format"),
        ("train_labels", IMAGES, "train-labels-idx1-ubyte must begin with the number 2049"),
        ("train_images", b"", "must begin with the number 2051"),
        ("train_images", IMAGES[:-1], "must hold 20 x 3 x 3 numbers, as its header says, .* got 179"),
        ("train_images", IMAGES + b"0", "must hold 20 x 3 x 3 numbers, as its header says, .* got 181"),
        ("train_images", IMAGES[:16], "must hold 20 x 3 x 3 numbers, as its header says, .* got 0"),
        ("t10k_images", idx(torch.zeros(0, 3, 3)), "must hold 0 x 3 x 3 numbers, .* at least one, got 0"),
        ("t10k_images", idx(torch.zeros(5, 4, 4).int()), "equally large, got 3 and 4 pixels"),
        ("train_images", idx(torch.zeros(20, 3, 4).int()), "images as wide as high .*got 20 x 3 x 4 in its header"),
        ("train_images", struct.pack(">4i", 2051, *[2**31 - 1] * 3), "at most 2,147,483,648 numbers, got 2147483647 x"),
        ("train_images", struct.pack(">4i", 2051, -20, -3, -3) + b"0", "must hold -20 x -3 x -3 numbers"),
        ("train_labels", struct.pack(">2i", 2049, 2**30), "must hold 1073741824 numbers, .* got 0"),
        ("t10k_labels", idx(torch.arange(4)), "a label for each image, got 5 images and 4 labels"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path: Path, file: str, data: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        open_images(write_idx(tmp_path, **{file: data}))


def test_a_file_that_is_missing_is_named_with_the_folder_it_belongs_to(tmp_path: Path):
    config = write_idx(tmp_path)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte is not there, nor .*\.gz; put the files"):
        open_images(config)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"no gzip", lambda data: data[:-2] + b"  "])
def test_a_packed_file_that_was_cut_is_reported(tmp_path: Path, damage):
    config = write_idx(tmp_path, packed=True)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is damaged or was cut"):
        open_images(config)


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path):
    zeros = bytes(30_000_000)
    config = write_idx(tmp_path, packed=True, train_images=IMAGES + zeros)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"must hold 20 x 3 x 3 numbers, as its header says, .* got 181"):
        open_images(config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(zeros) / 10


@pytest.mark.parametrize("packed", [False, True])
def test_any_bytes_are_refused_in_words(tmp_path: Path, packed: bool):
    config, generator = write_idx(tmp_path, packed=packed), random.Random(0)
    features = write_features(tmp_path / "features")
    mine = [tmp_path / "mnist" / ("train-images-idx3-ubyte" + ".gz" * packed), features.path / "train.safetensors"]
    for path, which in zip(mine, (config, features), strict=True):
        whole = path.read_bytes()
        for _ in range(40):
            place = generator.randrange(len(whole))
            damaged = [whole[:place], generator.randbytes(place), whole[:place] + b"\xff\xff" + whole[place + 2 :]]
            path.write_bytes(damaged[generator.randrange(3)])
            # A changed pixel is an image too.
            with contextlib.suppress(ValueError):
                open_images(which)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"train\.safetensors must be a safetensors file, got a pipe"):
        open_images(features)


def test_features_are_taken_as_they_are(tmp_path: Path):
    splits = open_images(write_features(tmp_path))
    assert [len(splits[split]) for split in ("train", "valid", "test")] == [9, 3, 3]
    test = splits["test"]
    assert (test.size, test.side, test.num_classes) == (6, None, 3)
    assert torch.equal(test.numbers(torch.arange(3)), test.values)


GOOD = {"features": torch.ones(5, 6), "labels": torch.arange(5)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"features": GOOD["features"]}, "must hold the tensors features and labels, got features"),
        ({**GOOD, "features": torch.ones(5, 2, 3)}, r"features must be \(N, D\) and labels \(N,\), got \(5, 2, 3\)"),
        ({**GOOD, "labels": torch.arange(4)}, r"got \(5, 6\) and \(4,\)"),
        ({**GOOD, "features": torch.full((5, 6), torch.nan)}, "features must be finite"),
        ({**GOOD, "labels": torch.ones(5)}, "labels must be integers from 0, got others, or torch.float32"),
        ({**GOOD, "labels": torch.arange(5) - 1}, "labels must be integers from 0"),
        ({**GOOD, "labels": torch.full((5,), 10**12)}, "labels must be integers from 0.*at most 65,535"),
        ({**GOOD, "labels": torch.full((5,), -1).to(torch.uint64)}, "labels must be .*or torch.uint64"),
        ({**GOOD, "features": torch.ones(5, 6, dtype=torch.complex64)}, "features must be finite.*or torch.complex64"),
        ({"features": torch.ones(0, 6), "labels": torch.arange(0)}, "N and D are at least 1"),
        ({**GOOD, "features": torch.ones(5, 7)}, "features of train and test must be equally many, got 7 and 6"),
    ],
)
def test_features_that_cannot_be_used_are_refused(tmp_path: Path, tensors: dict[str, Tensor], message: str):
    with pytest.raises(ValueError, match=message):
        open_images(write_features(tmp_path, train=tensors))


def test_features_that_are_missing_are_named(tmp_path: Path):
    config = write_features(tmp_path)
    (tmp_path / "test.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.safetensors is not there; save features and labels"):
        open_images(config)


def test_the_seed_decides_which_images_are_held_out():
    one, again, other = (open_images(config) for config in (ImageSet(split_seed=1), ImageSet(), ImageSet(split_seed=2)))
    assert rows_of(one["valid"]) == rows_of(again["valid"])
    assert sorted(rows_of(one["valid"])) != sorted(rows_of(other["valid"]))
    assert rows_of(one["test"]) == rows_of(other["test"])


@pytest.mark.parametrize(("valid", "total", "number"), [(0.1, 1437, 144), (10_000, 60_000, 10_000), (1, 5, 1)])
def test_a_number_or_a_share_is_held_out(valid: float, total: int, number: int):
    assert ImageSet(valid=valid).num_valid(total) == number


@pytest.mark.parametrize(("valid", "total"), [(5, 5), (6, 5), (0.01, 5), (0.99, 5)])
def test_something_must_be_left_on_both_sides(valid: float, total: int):
    with pytest.raises(ValueError, match="valid must leave images on both sides of 5"):
        ImageSet(valid=valid).num_valid(total)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar"}, "name must be one of digits, mnist, fashion-mnist, got 'cifar'"),
        ({"path": Path("a"), "root": Path("b")}, "root is for named sets"),
        ({"valid": 0}, "valid must be above 0"),
        ({"valid": float("nan")}, "valid must be above 0"),
    ],
)
def test_a_set_that_makes_no_sense_is_refused(arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        ImageSet(**arguments)
