"""Masked language modelling as a task: texts to rows with hidden pieces, and how well those are told."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.attention import capture
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.data.batches.masked import MaskedBatch, MaskedBatches
from anymax.data.multilingual.prepared import PreparedTexts, prepare_texts, reopen_texts
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.units.word_pieces import INSIDE, WordPieces
from anymax.display import Texts
from anymax.distributed.ranks import Ranks
from anymax.mappings import LearnedEntmax
from anymax.models.bert.model import Bert
from anymax.models.language_model.model import evaluating
from anymax.models.layers import fsdp_groups, learned_alphas
from anymax.models.sizes import check_fits_memory
from anymax.training.observed import Observed, Sentence
from anymax.training.task import Step, Task
from anymax.training.task_config import Report
from anymax.training.tasks.masked_language_modeling.config import MaskedLanguageModelingConfig

# Rows whose hidden pieces are shown after an evaluation, and how many pieces of each.
SHOWN_ROWS, SHOWN_PIECES = 3, 4
# Rows whose attention is looked at in one call.
OBSERVED_ROWS = 8


class Measured(NamedTuple):
    """How well the hidden pieces of a text are told, as sums over them."""

    loss_sum: float
    right: float
    hidden: float

    def metrics(self) -> dict[str, float]:
        """The means."""
        return {"loss": self.loss_sum / max(1.0, self.hidden), "accuracy": self.right / max(1.0, self.hidden)}


def build(
    config: MaskedLanguageModelingConfig, folder: Path, ranks: Ranks, *, seed: int, announce: Announce
) -> MaskedLanguageModelingTask:
    """The task of a run in `folder`: with the word pieces that lie there already, or with new ones of the texts."""
    with ranks.first_alone():
        if PreparedTexts.saved_pieces(folder) is None:
            prepared = prepare_texts(config.data, progress=announce)
        else:
            prepared = reopen_texts(config.data, folder, progress=announce)
    prepared.split("valid")
    return MaskedLanguageModelingTask(config, prepared, new_model(config, prepared.pieces), ranks, seed=seed)


def new_model(config: MaskedLanguageModelingConfig, pieces: WordPieces) -> Bert:
    """A model that masked words train, its parameters drawn at random."""
    check_fits_memory(lambda: config.model.build(len(pieces)))
    return config.model.build(len(pieces))


class MaskedLanguageModelingTask(Task):
    """Tell pieces that were hidden from those around them.

    Args:
        seed: decides rows and masks. Those of valid and test are the same at every evaluation.
    """

    goal = "loss"
    item = "hidden piece"

    def __init__(
        self, config: MaskedLanguageModelingConfig, prepared: PreparedTexts, model: Bert, ranks: Ranks, *, seed: int
    ) -> None:
        self.config = config
        self.prepared = prepared
        self.model: Bert = model
        self.ranks = ranks
        self.seed = seed
        self._shown: list[str] = []

    def batches(self, split: Split) -> MaskedBatches:
        return self._batches(split, shares=self.config.data.normal_shares)

    def step(self, model: nn.Module, batch: MaskedBatch, carry: None) -> Step:
        loss_sum = model(*self._on_device(batch), "sum")
        return Step(loss_sum, int((batch.target != IGNORE_INDEX).sum()))

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        measured = self.measure(split)
        metrics = Measured(*map(sum, zip(*measured.values(), strict=True))).metrics()
        if len(measured) > 1:
            for name, of_text in measured.items():
                metrics |= {f"{what}/{name}": value for what, value in of_text.metrics().items()}
        return metrics

    def measure(self, split: Split) -> dict[str, Measured]:
        """How well the hidden pieces of every text are told; each row of a text is read once."""
        batches = self.ordered(split)
        sums = torch.zeros(len(batches.names), 3, dtype=torch.float64)
        shown: list[str] = []
        head = self.model.prediction_head
        with torch.no_grad(), evaluating(self.model):
            for batch in batches:
                ids, mask, segments, target = self._on_device(batch)
                is_counted = target != IGNORE_INDEX
                hidden, wanted = self.model.encode(ids, mask, segments)[is_counted], target[is_counted]
                losses = -head.log_prob(hidden, wanted)
                guesses = head.topk(hidden, 1).words[:, 0]
                of_text = batch.texts[:, None].expand_as(batch.target)[is_counted.cpu()]
                values = torch.stack([losses, guesses == wanted, torch.ones_like(losses)], 1)
                sums.index_add_(0, of_text, values.double().cpu())
                if len(shown) < SHOWN_ROWS:
                    shown += self._show(batch, guesses.cpu())
        self._shown = shown[:SHOWN_ROWS]
        total = self.ranks.sum(sums.flatten().tolist())
        return {name: Measured(*total[3 * text : 3 * text + 3]) for text, name in enumerate(batches.names)}

    def ordered(self, split: Split) -> MaskedBatches:
        """This rank's share of every row of every text of a split, with the same hidden pieces in every call."""
        return self._batches(split, in_order=True)

    def examples(self) -> list[str]:
        return self._shown

    def sample(self) -> str | None:
        return "\n".join(self._shown) or None

    def texts(self, split: Split, *, limit: int, seed: int, announce: Announce) -> list[Texts]:
        from anymax.training.tasks.masked_language_modeling.texts import hidden_pieces

        return [hidden_pieces(self, split, limit=limit, seed=seed, announce=announce)]

    def texts_for(self, lines: Sequence[str], *, announce: Announce) -> list[Texts]:
        from anymax.training.tasks.masked_language_modeling.texts import own_masks

        return [own_masks(self, lines, announce=announce)]

    def next_commands(self) -> list[list[str]]:
        return [["export", "exported"], ["analyze heads"]]

    def save(self, folder: Path) -> None:
        self.prepared.save(folder)

    def identity(self) -> dict[str, str]:
        return self.prepared.identity()

    def watch(self) -> dict[str, float]:
        return learned_alphas(self.model)

    def undecayed(self) -> set[nn.Parameter]:
        """Alphas, which decay would pull to the middle of their range."""
        learned = (module for module in self.model.modules() if isinstance(module, LearnedEntmax))
        return {parameter for module in learned for parameter in module.parameters()}

    def report(self, split: Split, options: Any = None, *, announce: Announce) -> Report:
        from anymax.training.tasks.masked_language_modeling.report import report_on

        return report_on(self, split, announce=announce)

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return self.model.forward_methods()

    def groups(self) -> list[list[nn.Module]]:
        return fsdp_groups(self.model)

    def why_unobserved(self) -> str | None:
        return None

    def observe(self, split: Split, *, limit: int, seed: int) -> Iterator[Observed]:
        """Where heads look in rows as they are trained on, but with nothing hidden."""
        rows = self.drawn_rows(split, limit, seed)
        while some := list(islice(rows, OBSERVED_ROWS)):
            yield self._observed(some)

    def drawn_rows(self, split: Split, limit: int, seed: int) -> Iterator[MaskedBatch]:
        """Some rows of a split, one by one in its order, with what is hidden in every evaluation."""
        batches = MaskedBatches(
            self._streams(split),
            self.prepared.pieces,
            self.config.batching.block,
            1,
            seed=self.seed,
            masking=self.config.masking,
            in_order=True,
            two_segments=self._two_segments,
        )
        number = len(batches)
        chosen = set(random.Random(seed).sample(range(number), min(limit, number)))
        return (row for place, row in enumerate(batches) if place in chosen)

    @torch.no_grad()
    def _observed(self, rows: Sequence[MaskedBatch]) -> Observed:
        width = max(row.ids.shape[1] for row in rows)
        ids = torch.full((len(rows), width), self.prepared.pieces.pad)
        mask, segments = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        for place, row in enumerate(rows):
            length = row.ids.shape[1]
            ids[place, :length] = torch.where(row.target != IGNORE_INDEX, row.target, row.ids)
            mask[place, :length], segments[place, :length] = row.mask, row.segments
        device = self.ranks.device
        with evaluating(self.model), capture(self.model) as weights:
            self.model.encode(ids.to(device), mask.to(device), segments.to(device))
        sentences = [
            sentence_of(self.prepared.pieces, row[: int(length)].tolist())
            for row, length in zip(ids, mask.sum(1), strict=True)
        ]
        of_kinds = {kind: [layer.cpu() for layer in layers] for kind, layers in weights.items()}
        named = dict.fromkeys(of_kinds, sentences)
        return Observed(of_kinds, named, named)

    def _show(self, batch: MaskedBatch, guesses: Tensor) -> list[str]:
        """Each row's first hidden pieces, with what the model takes them for."""
        pieces, lines, used = self.prepared.pieces, list[str](), 0
        for row, target in zip(batch.ids, batch.target, strict=True):
            hidden = (target != IGNORE_INDEX).nonzero().squeeze(1)
            told = guesses[used : used + len(hidden)]
            used += len(hidden)
            if len(hidden):
                end = min(int(hidden[:SHOWN_PIECES][-1]) + SHOWN_PIECES, int((row != pieces.pad).sum()))
                pairs = zip(
                    pieces.pieces(target[hidden[:SHOWN_PIECES]]), pieces.pieces(told[:SHOWN_PIECES]), strict=True
                )
                words = ", ".join(f"{right} as {guess}" for right, guess in pairs)
                lines.append(f"{' '.join(pieces.decode(row[1:end]))} | {words}")
        return lines

    def _batches(self, split: Split, *, shares: Sequence[float] | None = None, in_order: bool = False) -> MaskedBatches:
        batching = self.config.batching
        return MaskedBatches(
            self._streams(split),
            self.prepared.pieces,
            batching.block,
            batching.batch_size,
            seed=self.seed,
            shares=shares,
            masking=self.config.masking,
            in_order=in_order,
            two_segments=self._two_segments,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )

    @property
    def _two_segments(self) -> bool:
        return self.config.model.num_segments > 1

    def _streams(self, split: Split) -> dict[str, Tensor]:
        return {name: encoded.tokens() for name, encoded in self.prepared.split(split).items()}

    def _on_device(self, batch: MaskedBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parts = (batch.ids, batch.mask, batch.segments, batch.target)
        ids, mask, segments, target = (part.to(self.ranks.device, non_blocking=True) for part in parts)
        return ids, mask, segments, target


def sentence_of(pieces: WordPieces, ids: Sequence[int]) -> Sentence:
    """Ids as people read them; a piece that is marked belongs to the word before it."""
    names, words = pieces.pieces(ids), list[int]()
    for name in names:
        begins = not (words and name.startswith(INSIDE) and len(name) > len(INSIDE))
        words.append(len(words) and words[-1] + begins)
    bare = (name.removeprefix(INSIDE) if len(name) > len(INSIDE) else name for name in names)
    return Sentence(tuple(bare), tuple(words))
