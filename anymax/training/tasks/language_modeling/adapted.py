"""The model of a task made to follow the text it is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.evaluation import CachedModel, CachePointer, DynamicEvaluation, adapting, gradient_sizes
from anymax.evaluation.adaptation.config import Adaptation
from anymax.evaluation.adaptation.dynamic import CARRIED_BLOCK
from anymax.training.tasks.language_modeling.config import Evaluation
from anymax.training.tasks.language_modeling.task import LanguageModelingTask


class Adapted(NamedTuple):
    """What to measure, and by which windows."""

    model: nn.Module
    evaluation: Evaluation


@contextmanager
def adapted(
    task: LanguageModelingTask, split: Split, adapt: Adaptation, evaluation: Evaluation, *, announce: Announce
) -> Iterator[Adapted]:
    """The model of a task that follows a split while it is measured on it; afterwards it is as it was."""
    if task.ranks.world_size > 1:
        raise ValueError(
            f"a model that follows its text must read it in one process, got {task.ranks.world_size}; leave torchrun"
        )
    # What is followed is one text from front to end.
    evaluation = replace(evaluation, rows=1)
    if isinstance(adapt, CachePointer):
        yield Adapted(CachedModel(task.model, adapt, num_tokens=len(task.prepared.split(split))), evaluation)
        return
    adapt, evaluation = _segmented(task, adapt, evaluation)

    def progress(done: int, total: int) -> None:
        announce(f"measuring gradients on training text: {done:,} of {total:,} batches")

    train, read = task.prepared.split("train").tokens(), task.prepared.as_read("train").tokens()
    eos, block, sizes = task.prepared.lexicon.eos, task.windows(evaluation).block, None
    if adapt.rule == "rms":
        sizes = gradient_sizes(task.model, train, adapt, eos=eos, block=block, read=read, progress=progress)
    with adapting(task.model, adapt, sizes) as learning:
        yield Adapted(learning, evaluation)


def _segmented(
    task: LanguageModelingTask, dynamic: DynamicEvaluation, evaluation: Evaluation
) -> tuple[DynamicEvaluation, Evaluation]:
    """Windows after each of which a step is taken; where a state is carried, calls of whole segments."""
    block = task.windows(evaluation).block
    if task.model.carries_state:
        segment = dynamic.block or CARRIED_BLOCK
        return dynamic, replace(evaluation, block=max(segment, block - block % segment))
    if dynamic.block is None:
        return dynamic, evaluation
    if dynamic.block > block:
        raise ValueError(f"dynamic.block must be at most the {block} tokens of a window, got {dynamic.block}")
    return replace(dynamic, block=None), replace(evaluation, block=block, context=block - dynamic.block)
