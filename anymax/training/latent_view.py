"""LatentView: what a discrete latent of a trained model does, as images and counts.

Shapes: C classes of images, V values of the latent, N bits of a code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Gallery:
    """Images in rows.

    Args:
        images: (rows, columns, pixels) from 0 to 1.
        rows: what each row is.
        columns: what each column is, or None.
        source: what they were made from.
    """

    title: str
    images: Tensor
    rows: list[str]
    columns: list[str] | None = None
    source: str = "test split"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the images."""
        return {"title": self.title, "rows": self.rows, "columns": self.columns, "source": self.source}


@dataclass(frozen=True, eq=False)
class BitEffects:
    """What the bits of a code do.

    Args:
        on: of each bit, in what share of the likeliest codes of images it is on, (N,).
        change: of each bit, how far a pixel between 0 and 1 moves on average where the bit is turned, (N,).
        turned: the images of some codes, and the same with one bit turned.
    """

    on: Tensor
    change: Tensor
    turned: Gallery

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"on": self.on.tolist(), "change": self.change.tolist(), "turned": self.turned.as_dict()}


@dataclass(frozen=True, eq=False)
class LatentView:
    """What a discrete latent does with images of the test split.

    Args:
        values: what its values are called, as "messages".
        gallery: None where the images are features that cannot be shown.
        by_class: of images of each class, how many have each value as their likeliest, (C, V); None where values are
            too many to count.
        support: of each number of values, how many images have that number of values with a probability; empty where
            every value always has one.
        bits: of a code of bits, what each bit does; else None.
    """

    values: str
    gallery: Gallery | None
    by_class: Tensor | None = None
    support: dict[int, int] = field(default_factory=dict)
    bits: BitEffects | None = None

    @property
    def counts(self) -> list[int] | None:
        """How often each value is the likeliest, the most frequent first; None where they are not counted."""
        return None if self.by_class is None else self.by_class.sum(0).sort(descending=True).values.tolist()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "values": self.values,
            "gallery": None if self.gallery is None else self.gallery.as_dict(),
            "by_class": None if self.by_class is None else self.by_class.tolist(),
            "support": {str(number): images for number, images in self.support.items()},
            "bits": None if self.bits is None else self.bits.as_dict(),
        }


def count_by_class(labels: Tensor, values: Tensor, num_values: int) -> Tensor:
    """How many images of each class have each value, (C, V).

    Args:
        labels, values: the class and the value of each image.
    """
    num_classes = int(labels.max()) + 1
    cells = (labels * num_values + values).bincount(minlength=num_classes * num_values)
    return cells.view(num_classes, num_values)


def count_sizes(sizes: Tensor) -> dict[int, int]:
    """Of each size, how many images have it."""
    found, counts = sizes.unique(return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))
