"""The configuration of masked language modelling, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anymax.checks import check_counts
from anymax.data.batches.config import Masking
from anymax.data.multilingual.config import MultilingualText
from anymax.models.bert.config import BertConfig
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.masked_language_modeling.task import MaskedLanguageModelingTask


@dataclass(frozen=True)
class PackedLines:
    """Rows of as many neighbouring lines of one text as fit.

    Args:
        block: the most tokens of a row, "[CLS]" included.
        batch_size: rows in a batch, over all ranks.
    """

    block: int
    batch_size: int

    def __post_init__(self) -> None:
        check_counts(2, block=self.block)
        check_counts(batch_size=self.batch_size)


@dataclass(frozen=True)
class MaskedLanguageModelingConfig(TaskConfig):
    """A BERT, the texts it learns from, and how pieces of them are hidden.

    Args:
        masking: how pieces are hidden, drawn anew each time a row comes.
    """

    data: MultilingualText
    model: BertConfig
    batching: PackedLines
    _: KW_ONLY
    masking: Masking = field(default_factory=Masking)

    def __post_init__(self) -> None:
        if self.batching.block > self.model.max_positions:
            raise ValueError(
                f"batching.block must be at most model.max_positions, {self.model.max_positions}, got "
                f"{self.batching.block}; a row has a position for each token"
            )

    def run_name(self, recipe: str) -> str:
        return "-".join(self.data.names) if self.data.paths else recipe

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> MaskedLanguageModelingTask:
        """The task of a run in `folder`; texts are read, or found as an earlier run left them."""
        from anymax.training.tasks.masked_language_modeling.task import build

        return build(self, folder, ranks, seed=seed, announce=announce)

    def export(self, run: Path, folder: Path, *, step: int | None = None) -> list[str]:
        from anymax.training.tasks.masked_language_modeling.exporting import export

        return export(run, folder, step=step)

    def toy(self) -> Self:
        """The same at a size for tests, on text that is in every Python."""
        model = self.model.toy()
        return replace(self, data=self.data.toy(), model=model, batching=PackedLines(min(self.batching.block, 32), 8))
