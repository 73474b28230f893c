"""The configuration of language modelling, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anymax.data.random_lengths import RandomLengths as RandomLengths
from anymax.data.text import Text
from anymax.models.language_model_config import LanguageModelConfig, Sparse
from anymax.training.checks import check_counts

if TYPE_CHECKING:
    from anymax.data.prepared import Announce
    from anymax.training.language_modeling import LanguageModelingTask
    from anymax.training.ranks import Ranks


@dataclass(frozen=True)
class Blocks:
    """Rows of one length, whatever lines they cut, in an order drawn anew for each epoch.

    Args:
        block: tokens in a row.
        batch_size: rows in a batch, over all ranks.
    """

    block: int
    batch_size: int


@dataclass(frozen=True)
class Sentences:
    """Whole sentences of about one length in a batch.

    Args:
        max_tokens: the most tokens of a batch over all ranks, padding included.
        block: join neighbouring sentences into rows of at most this many tokens; None gives each a row.
    """

    max_tokens: int
    block: int | None = None


@dataclass(frozen=True)
class Contiguous:
    """Parallel rows read from left to right, for models that carry a state from batch to batch.

    Args:
        batch_size: rows, over all ranks.
        block: tokens of each row in a batch, which is how far gradients reach back.
        random_lengths: draw how many they are around `block` for each batch; None gives all the same.
    """

    batch_size: int
    block: int
    random_lengths: RandomLengths | None = None


Batching = Blocks | Sentences | Contiguous


@dataclass(frozen=True)
class Evaluation:
    """How perplexity is measured; every token is scored once.

    Args:
        block: tokens in a window; None takes that of the batches.
        context: how many of them serve only as context.
        windows: windows of one length, of whole sentences up to it, or of one sentence each.
        first_window: whether the first window scores a whole "block", or no window scores more than the "stride",
            `block` - `context`, as in fairseq.
        rows: for models that carry a state: read the text as so many parallel rows, each of which starts without one.
            It is quicker and a little worse; 1 is exact.
    """

    block: int | None = None
    context: int = 0
    windows: Literal["contiguous", "sentences", "single"] = "contiguous"
    first_window: Literal["block", "stride"] = "block"
    rows: int = 1

    def __post_init__(self) -> None:
        check_counts(block=self.block, rows=self.rows)


@dataclass(frozen=True)
class LanguageModeling:
    """A language model, the text it learns from, and how it is measured."""

    data: Text
    model: LanguageModelConfig
    batching: Batching
    _: KW_ONLY
    evaluation: Evaluation = Evaluation()

    def __post_init__(self) -> None:
        recurrent = self.model.carries_state
        if recurrent != isinstance(self.batching, Contiguous):
            kind = "Contiguous" if recurrent else "Blocks or Sentences"
            raise ValueError(
                f"batching must be {kind} for a {type(self.model.body).__name__}, "
                f"got {type(self.batching).__name__}; a model that carries a state reads its rows in order"
            )
        if self.evaluation.first_window != "block" and recurrent:
            raise ValueError(
                f"evaluation.first_window must be 'block' for a {type(self.model.body).__name__}, which carries a "
                f"state and reads no windows, got {self.evaluation.first_window!r}; leave it out"
            )
        if self.evaluation.rows > 1 and not recurrent:
            raise ValueError(
                f"evaluation.rows must be 1 for a {type(self.model.body).__name__}, which carries no state through "
                f"them, got {self.evaluation.rows}; its windows are read many at a time anyway"
            )

    @property
    def is_likelihood(self) -> bool:
        """Whether the loss is a negative log-probability, so that its exponential is a perplexity."""
        return not isinstance(self.model.output, Sparse)

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> LanguageModelingTask:
        """The task of a run in `folder`; texts are read, or found as an earlier run left them."""
        from anymax.training.language_modeling import build

        return build(self, folder, ranks, seed=seed, announce=announce)

    def toy(self) -> LanguageModeling:
        """The same at a size for tests, on text that needs nothing."""
        return replace(
            self,
            data=self.data.toy(),
            model=self.model.toy(),
            batching=_toy_batching(self.batching),
            evaluation=replace(
                self.evaluation,
                block=16,
                context=min(self.evaluation.context, 8),
                rows=min(self.evaluation.rows, 4),
            ),
        )


def _toy_batching(batching: Batching) -> Batching:
    match batching:
        case Blocks():
            return Blocks(block=16, batch_size=4)
        case Sentences():
            return Sentences(max_tokens=64, block=None if batching.block is None else 16)
        case Contiguous():
            lengths = batching.random_lengths
            return Contiguous(batch_size=4, block=8, random_lengths=None if lengths is None else lengths.toy())
