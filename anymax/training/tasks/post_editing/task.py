"""Post-editing as a task: triplets to batches, the loss of corrections, corrections and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.attention import capture
from anymax.data.batches.pairs import PairBatch, gather
from anymax.data.batches.triplets import triplets_of
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.text.lines import check_lines
from anymax.data.triplets.prepared import SOURCE_MARKS, PreparedTriplets, prepare_triplets, reopen_triplets
from anymax.data.units.word_pieces import WordPieces
from anymax.decoding import Hypotheses
from anymax.display import Line, Texts, marked
from anymax.distributed.ranks import Ranks
from anymax.evaluation.translation import Tokenize, score_sentences
from anymax.mappings import LearnedEntmax
from anymax.models.bert.checkpoint import find_bert, load_bert
from anymax.models.bert.model import Bert
from anymax.models.language_model.model import evaluating
from anymax.models.post_editing.config import PostEditorConfig
from anymax.models.post_editing.edit_model import EditModel
from anymax.models.post_editing.model import PostEditor, check_same_sizes
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.observed import Observed
from anymax.training.run_folder.folder import CHECKPOINTS
from anymax.training.task_config import Report
from anymax.training.tasks.masked_language_modeling.task import sentence_of
from anymax.training.tasks.pair_task import PairTask, shorten, side_by_side
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.post_editing.editing import OpenedPostEditor, correct, new_model
from anymax.training.tasks.translation.config import Search
from anymax.training.tasks.translation.translating import Progress

# Triplets whose attention is looked at in one call.
OBSERVED_TRIPLETS = 16


def build(config: PostEditingConfig, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> PostEditingTask:
    """The task of a run in `folder`: with the pieces that lie there already, or with those of its BERT or new ones."""
    bert = None if Checkpoints(folder / CHECKPOINTS).steps() else _bert_of(config, announce)
    with ranks.first_alone():
        if PreparedTriplets.saved_pieces(folder) is None:
            prepared = prepare_triplets(config.data, pieces=_pieces_of_bert(config), progress=announce)
        else:
            prepared = reopen_triplets(config.data, folder, progress=announce)
    for split in prepared.splits:
        prepared.check_lengths(split, max_positions=config.model.max_positions)
    prepared.split("valid")
    model = new_model(config, prepared.pieces)
    if bert is not None:
        assert isinstance(model, PostEditor)
        prepared.pieces.check_fits(bert.vocabulary_size)
        model.begin_from(bert)
    return PostEditingTask(config, prepared, model, ranks, seed=seed)


def _bert_of(config: PostEditingConfig, announce: Announce) -> Bert | None:
    """The BERT that training begins from, checked before any text is read."""
    if config.bert is None:
        return None
    assert isinstance(config.model, PostEditorConfig)
    announce(f"reading {config.bert}")
    encoder = config.model.encoder
    bert = load_bert(config.bert, mapping=encoder.mapping, pooler=False, head=False).model
    check_same_sizes(encoder, bert.config)
    return bert


def _pieces_of_bert(config: PostEditingConfig) -> WordPieces | None:
    """Those of the BERT that training begins from; None where the config says which, or that they are to be learned."""
    if config.bert is None or config.data.pieces.vocabulary is not None:
        return None
    return WordPieces.load(find_bert(config.bert), splitting="spaces")


class PostEdited(NamedTuple):
    """Triplets of a split and what became of their translations, in its order."""

    sources: list[str]
    translations: list[str]
    corrections: list[str]
    references: list[str]
    found: list[Hypotheses]

    @property
    def written(self) -> list[str]:
        return self.corrections

    def side_by_side(self) -> list[str]:
        """A few of them to look at, on lines of their own that fit a terminal."""
        return side_by_side(
            source=self.sources, translation=self.translations, corrected=self.corrections, reference=self.references
        )

    def texts(self, how: str, source: str) -> Texts:
        """All of them, with the words of corrections marked that the translation has not."""
        scores = score_sentences(self.corrections, self.references, "ter")
        lines = tuple(
            Line((text, translation, reference, marked(written, translation)), score)
            for text, translation, reference, written, score in zip(
                self.sources, self.translations, self.references, self.corrections, scores, strict=True
            )
        )
        return Texts(
            "Post-edits beside the corrections of people",
            ("source", "machine translation", "correction", "post-edit"),
            lines,
            score="TER",
            source=source,
            note=f"Searched with {how}. Marked: what the post-edit changed. TER: of the sentence against the "
            "correction, by sacrebleu; less is better.",
        )


class PostEditingTask(PairTask):
    """Predict every piece of a correction from a sentence, its translation and the pieces before.

    Args:
        seed: decides the order of the batches.
    """

    scored = ("ter", "bleu")

    def __init__(
        self, config: PostEditingConfig, prepared: PreparedTriplets, model: EditModel, ranks: Ranks, *, seed: int
    ) -> None:
        super().__init__(config, prepared, model, ranks, seed=seed)
        self.config = config
        self.prepared = prepared
        self.model: EditModel = model

    @property
    def eos(self) -> tuple[int, int]:
        return self.prepared.pieces.last, self.prepared.pieces.last

    def arguments(self, batch: PairBatch) -> tuple[Tensor, ...]:
        triplets = triplets_of(batch, self.prepared.pieces, max_positions=self.model.max_positions)
        parts = (*triplets.inputs, triplets.ids, triplets.target)
        return tuple(part.to(self.ranks.device, non_blocking=True) for part in parts)

    def decode_split(self, split: Split, number: int | None = None) -> PostEdited:
        return self.correct_split(split, number)

    def correct_split(
        self,
        split: Split,
        number: int | None = None,
        *,
        search: Search | None = None,
        progress: Progress | None = None,
    ) -> PostEdited:
        """Corrections of the first triplets of a split, by default greedy ones."""
        chosen = range(len(self.prepared.split(split)))[:number]
        return self.decode_pairs(split, chosen, search or replace(self.config.search, beam=1), progress)

    def decode_pairs(
        self, split: Split, chosen: Sequence[int], search: Search, progress: Progress | None = None
    ) -> PostEdited:
        pairs, all_triplets = self.prepared.split(split), self.prepared.triplets(split)
        sources = [pairs.source(i) for i in chosen]
        found = correct([self.model], sources, search, self.prepared.pieces, progress=progress)
        triplets = [all_triplets[int(pairs.numbers[i])] for i in chosen]
        return PostEdited(
            [triplet.source for triplet in triplets],
            [triplet.translation for triplet in triplets],
            [self.prepared.pieces.text(each.best.words) for each in found],
            [triplet.correction for triplet in triplets],
            found,
        )

    def tokenize(self) -> Tokenize:
        """How BLEU finds words: triplets have them separated by spaces."""
        return "none"

    def save(self, folder: Path) -> None:
        self.prepared.save(folder)

    def identity(self) -> dict[str, str]:
        return self.prepared.identity()

    def undecayed(self) -> set[nn.Parameter]:
        """Alphas, which decay would pull to the middle of their range."""
        learned = (module for module in self.model.modules() if isinstance(module, LearnedEntmax))
        return {parameter for module in learned for parameter in module.parameters()}

    def report(self, split: Split, options: Any = None, *, announce: Announce) -> Report:
        from anymax.training.tasks.post_editing.report import report_on

        return report_on(self, split, options or self.config.evaluation_options, announce=announce)

    def texts_for(self, lines: Sequence[str], *, announce: Announce) -> list[Texts]:
        pairs = _pairs_of(lines)
        announce(f"correcting {len(pairs):,} lines")
        editor = OpenedPostEditor([self.model], self.prepared.pieces, self.config.search)
        corrections = editor.correct([source for source, _ in pairs], [translation for _, translation in pairs])
        shown = (
            Line((source, translation, marked(written, translation)))
            for (source, translation), written in zip(pairs, corrections, strict=True)
        )
        return [
            Texts(
                "Post-edits of your lines",
                ("source", "machine translation", "post-edit"),
                tuple(shown),
                note=f"Searched with {editor.search.sentence()}. Marked: what the post-edit changed.",
            )
        ]

    def next_commands(self) -> list[list[str]]:
        return [["postedit", "--src", "FILE", "--mt", "FILE"], ["analyze heads"]]

    def why_unobserved(self) -> str | None:
        is_one = isinstance(self.model, PostEditor)
        return None if is_one else "the decoder of a dual-source Transformer attends to two texts at once"

    def observe(self, split: Split, *, limit: int, seed: int) -> Iterator[Observed]:
        chosen = self.drawn(split, limit, seed)
        for first in range(0, len(chosen), OBSERVED_TRIPLETS):
            yield self._observed(split, chosen[first : first + OBSERVED_TRIPLETS])

    @torch.no_grad()
    def _observed(self, split: Split, chosen: list[int]) -> Observed:
        """Where heads look in some triplets, the pieces of the correction before each given."""
        pairs, pieces = self.prepared.split(split), self.prepared.pieces
        widths = (int(lengths[chosen].max()) for lengths in (pairs.source_lengths, pairs.target_lengths))
        batch = gather(pairs, chosen, *widths, eos=pieces.last, source_eos=pieces.last)
        source, mask, segments, positions, ids, _ = self.arguments(batch)
        with evaluating(self.model), capture(self.model) as weights:
            self.model.hidden(ids, *self.model.remember((source, mask, segments, positions)))
        lengths = (pairs.source_lengths[chosen] - SOURCE_MARKS).tolist()
        sources = [sentence_of(pieces, row[:length].tolist()) for row, length in zip(source, lengths, strict=True)]
        targets = [
            sentence_of(pieces, row[:length].tolist())
            for row, length in zip(ids, pairs.target_lengths[chosen].tolist(), strict=True)
        ]
        return Observed(
            {kind: [layer.cpu() for layer in layers] for kind, layers in weights.items()},
            {"encoder": sources, "decoder": targets, "cross": targets},
            {"encoder": sources, "decoder": targets, "cross": sources},
        )


def _pairs_of(lines: Sequence[str]) -> list[tuple[str, str]]:
    """The sentence and the machine translation of each line, which a tab separates."""
    check_lines(lines)
    pairs = []
    for number, line in enumerate(lines, 1):
        source, *rest = line.split("\t")
        if len(rest) != 1 or not source.strip() or not rest[0].strip():
            raise ValueError(
                f"line {number} must be a source and its machine translation with a tab between them, "
                f"got {shorten(line)!r}"
            )
        pairs.append((source, rest[0]))
    return pairs
