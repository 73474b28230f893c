"""Your own text, as `anymax train book.txt` has it: the default model, trained for as long as suits the text's size.

Steps rise with the square root of the size: a text of 30 MB is read once, one of 300 KB ten times. Training stops
earlier where the validation loss no longer falls. docs/how-to/train-a-language-model.md has what it reaches.
"""

import math
from dataclasses import replace
from pathlib import Path

from anymax.data.text.config import Text, Words
from anymax.data.text.corpus import num_bytes
from anymax.models import Tie
from anymax.recipes.small import ADAPTIVE_IN, ADAPTIVE_OUT, BODY, small
from anymax.training.config import RunConfig
from anymax.training.optim.schedules import NonMonotone
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig

# Bytes of a text that is read once.
READ_ONCE = 30_000_000
MOST_EPOCHS = 40
# A text that is read more often than this is small enough to be memorised.
FEW_EPOCHS = 4
DROPOUT, LESS_DROPOUT = 0.3, 0.1


def own_text(path: Path) -> RunConfig:
    """Your own text, a file or a folder: adaptive input and output, as often as its size asks for (ADP-T)."""
    size = num_bytes(path)
    epochs = epochs_of(size)
    is_short = epochs > FEW_EPOCHS
    run = small("sotu", ADAPTIVE_IN, ADAPTIVE_OUT, epochs=epochs, tie=Tie(projections=True), units=Words(min_count=2))
    task = LanguageModelingConfig.of(run.task)
    body = replace(BODY, dropout=DROPOUT if is_short else LESS_DROPOUT)
    model = replace(task.model, body=body)
    return replace(
        run,
        task=replace(task, data=Text(path=path, units=task.data.units), model=model),
        evaluate_every="epoch" if is_short else run.evaluate_every,
        stop=NonMonotone(window=3),
    )


def epochs_of(size: int) -> float:
    """How often a text of a number of bytes is read: whole epochs, or a part of one where it is large."""
    epochs = math.sqrt(READ_ONCE / max(1, size))
    return min(MOST_EPOCHS, round(epochs)) if epochs >= 1 else round(epochs, 3)


def toy(path: Path) -> RunConfig:
    """The same at a size for tests."""
    run = own_text(path).toy()
    task = LanguageModelingConfig.of(run.task)
    return replace(run, task=replace(task, data=replace(task.data, path=path)))
