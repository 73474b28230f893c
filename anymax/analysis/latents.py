"""What a discrete latent does in a trained model: the images it makes, the messages it sends, how sparse it became.

Shapes: rows and columns of a gallery, S x S pixels of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anymax.data.batches import generator_of
from anymax.data.images import Images
from anymax.training import read_metrics
from anymax.training.bit_vectors import BitVectorTask
from anymax.training.image_task import ImageTask
from anymax.training.semi_supervised import SemiSupervisedTask
from anymax.training.signalling import SignallingTask

COLUMNS = 10
SEED = 1


@dataclass(frozen=True, eq=False)
class Gallery:
    """Images in rows.

    Args:
        images: (rows, columns, pixels) from 0 to 1.
        rows: what each row is.
        columns: what each column is, or None.
    """

    title: str
    images: Tensor
    rows: list[str]
    columns: list[str] | None = None


@dataclass(frozen=True, eq=False)
class Looked:
    """What there is to see of a run.

    Args:
        gallery: None where the images are features that nobody can look at.
        counts: of a game, how often each message is the likeliest, the most frequent first; else None.
        curves: metrics of the validation split by step.
        calls: how often the loss was called for each example, by step of training.
    """

    gallery: Gallery | None
    counts: list[int] | None
    curves: dict[int, dict[str, float]]
    calls: dict[int, float]


@torch.no_grad()
def look(task: ImageTask, folder: Path) -> Looked:
    """Look at a trained task on images of its test split, and at the records of its run."""
    records, test = read_metrics(folder), task.images["test"]
    curves = {r["step"]: r["metrics"] for r in records if r["kind"] == "evaluation"}
    calls = {r["step"]: r["log"]["calls"] for r in records if r["kind"] == "train"}
    if isinstance(task, SemiSupervisedTask):
        return Looked(None if test.side is None else _classes(task), None, curves, calls)
    if isinstance(task, BitVectorTask):
        return Looked(_codes(task, test), None, curves, calls)
    assert isinstance(task, SignallingTask)
    messages = _messages(task)
    counts = messages.bincount(minlength=task.config.num_messages).sort(descending=True).values.tolist()
    return Looked(None if test.side is None else _senders(messages, test), counts, curves, calls)


def _classes(task: SemiSupervisedTask) -> Gallery:
    """What every class makes of the same Gaussian vectors."""
    shape = (5, task.config.vector_size)
    vectors = torch.cat([torch.zeros(1, shape[1]), torch.randn(shape, generator=generator_of(SEED, 0, "vectors"))])
    made = task.model.generate(vectors)
    rows = ["mean"] + [f"draw {number}" for number in range(1, len(vectors))]
    return Gallery("What each class generates", made, rows, [str(label) for label in range(made.shape[1])])


def _codes(task: BitVectorTask, images: Images) -> Gallery:
    """Images of the test split, what their likeliest codes make of them, and what codes drawn at random make."""
    levels = images.values[:COLUMNS]
    _, latent = task.model.estimate(levels)
    drawn = torch.randint(0, 2, (COLUMNS, task.config.num_bits), generator=generator_of(SEED, 0, "codes"))
    made = [images.numbers(torch.arange(COLUMNS)), task.model.generate(latent.mode())]
    return Gallery(
        "Images, their likeliest codes, and codes drawn at random",
        torch.stack([*made, task.model.generate(drawn.to(made[0].dtype))]),
        ["image", "of its code", "random code"],
    )


def _messages(task: SignallingTask) -> Tensor:
    """The likeliest message for every image of the test split."""
    parts = torch.arange(len(task.images["test"])).split(500)
    return torch.cat([task.model.sender(task.seen("test", rows)).argmax(-1) for rows in parts])


def _senders(messages: Tensor, images: Images) -> Gallery:
    """Some of the images that the most frequent messages stand for."""
    frequent = messages.bincount().topk(min(8, int(messages.unique().numel()))).indices
    made, rows = [], []
    for message in frequent.tolist():
        found = (messages == message).nonzero().squeeze(1)[:COLUMNS]
        blank = torch.zeros(COLUMNS - len(found), images.size)
        made.append(torch.cat([images.numbers(found), blank]))
        rows.append(f"message {message}")
    return Gallery("Images of the most frequent messages", torch.stack(made), rows)
