"""Translation as a task: pairs to batches, the loss of target words, translations and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.attention import capture
from anymax.data.batches.pairs import PairBatch, gather
from anymax.data.parallel.prepared import PreparedParallel, prepare_parallel, reopen_parallel
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.text.lines import check_lines
from anymax.data.units.units import Units
from anymax.decoding import Hypotheses
from anymax.display import Line, Texts, marked
from anymax.distributed.ranks import Ranks
from anymax.evaluation.translation import Tokenize, score_sentences
from anymax.models.language_model.building import output_rates
from anymax.models.language_model.model import evaluating
from anymax.models.translation.model import Translator
from anymax.training.observed import Observed, Sentence
from anymax.training.task_config import Report
from anymax.training.tasks.pair_task import PairTask, side_by_side
from anymax.training.tasks.translation.config import Search, TranslationConfig
from anymax.training.tasks.translation.translating import OpenedTranslator, Progress, new_model, translate

# Pairs whose attention is looked at in one call.
OBSERVED_PAIRS = 16


def build(config: TranslationConfig, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> TranslationTask:
    """The task of a run in `folder`: with the units that lie there already, or with new ones of the text."""
    with ranks.first_alone():
        if PreparedParallel.saved_units(folder) is None:
            prepared = prepare_parallel(config.data, progress=announce)
        else:
            prepared = reopen_parallel(config.data, folder, progress=announce)
    most = config.model.max_positions
    for split in prepared.splits:
        prepared.check_lengths(split, most_source=most, most_target=most)
    prepared.split("valid")
    model = new_model(config, prepared.source_units, prepared.target_units)
    return TranslationTask(config, prepared, model, ranks, seed=seed)


class Translated(NamedTuple):
    """Sentences of a split, in its order."""

    sources: list[str]
    translations: list[str]
    references: list[str]
    found: list[Hypotheses]

    @property
    def written(self) -> list[str]:
        return self.translations

    def side_by_side(self) -> list[str]:
        """A few of them to look at, on lines of their own that fit a terminal."""
        return side_by_side(source=self.sources, translation=self.translations, reference=self.references)

    def texts(self, how: str, source: str) -> Texts:
        """All of them, with the words of translations marked that differ from the reference."""
        scores = score_sentences(self.translations, self.references, "chrf")
        lines = tuple(
            Line((text, reference, marked(translation, reference)), score)
            for text, translation, reference, score in zip(
                self.sources, self.translations, self.references, scores, strict=True
            )
        )
        return Texts(
            "Translations beside their references",
            ("source", "reference", "translation"),
            lines,
            score="chrF",
            source=source,
            note=f"Searched with {how}. Marked: what differs from the reference. chrF: of the sentence, by sacrebleu; "
            "more is better.",
        )


class TranslationTask(PairTask):
    """Predict every word of a translation from its source and the words before it.

    Args:
        seed: decides the order of the batches.
    """

    scored = ("bleu",)

    def __init__(
        self, config: TranslationConfig, prepared: PreparedParallel, model: Translator, ranks: Ranks, *, seed: int
    ) -> None:
        super().__init__(config, prepared, model, ranks, seed=seed)
        self.config = config
        self.prepared = prepared
        self.model: Translator = model

    @property
    def eos(self) -> tuple[int, int]:
        return self.prepared.source_units.lexicon.eos, self._target_units.lexicon.eos

    def arguments(self, batch: PairBatch) -> tuple[Tensor, ...]:
        return tuple(part.to(self.ranks.device, non_blocking=True) for part in batch)

    def decode_split(self, split: Split, number: int | None = None) -> Translated:
        return self.translate_split(split, number)

    def translate_split(
        self,
        split: Split,
        number: int | None = None,
        *,
        search: Search | None = None,
        progress: Progress | None = None,
    ) -> Translated:
        """Translations of the first sentences of a split, by default greedy ones."""
        chosen = range(len(self.prepared.split(split)))[:number]
        return self.decode_pairs(split, chosen, search or replace(self.config.search, beam=1), progress)

    def decode_pairs(
        self, split: Split, chosen: Sequence[int], search: Search, progress: Progress | None = None
    ) -> Translated:
        pairs, lines = self.prepared.split(split), self.prepared.lines(split)
        found = translate(
            [self.model],
            [pairs.source(i) for i in chosen],
            search,
            eos=self._target_units.lexicon.eos,
            unk=self._target_units.lexicon.unk,
            source_eos=self.prepared.source_units.lexicon.eos,
            progress=progress,
        )
        numbers = [int(pairs.numbers[i]) for i in chosen]
        return Translated(
            [lines.sources[i] for i in numbers],
            [self._target_units.text(each.best.words) for each in found],
            [lines.references[i] for i in numbers],
            found,
        )

    def tokenize(self) -> Tokenize:
        """How BLEU finds words: lines that were written as they are read have none yet."""
        return "none" if self._target_units.splitting == "spaces" else "13a"

    @property
    def _target_units(self) -> Units:
        return self.prepared.target_units

    def save(self, folder: Path) -> None:
        self.prepared.save(folder)

    def identity(self) -> dict[str, str]:
        return self.prepared.identity()

    def lr_factors(self) -> dict[nn.Parameter, float]:
        return output_rates(self.config.model.output, self.model.output)

    def report(self, split: Split, options: Any = None, *, announce: Announce) -> Report:
        from anymax.training.tasks.translation.report import report_on

        return report_on(self, split, options or self.config.evaluation_options, announce=announce)

    def texts_for(self, lines: Sequence[str], *, announce: Announce) -> list[Texts]:
        check_lines(lines)
        announce(f"translating {len(lines):,} lines")
        search, units = self.config.search, (self.prepared.source_units, self._target_units)
        translations = OpenedTranslator([self.model], *units, search).translate(lines)
        return [
            Texts(
                "Translations of your lines",
                ("source", "translation"),
                tuple(Line(pair) for pair in zip(lines, translations, strict=True)),
                note=f"Searched with {search.sentence()}.",
            )
        ]

    def next_commands(self) -> list[list[str]]:
        return [["translate"], ["analyze heads"]]

    def observe(self, split: Split, *, limit: int, seed: int) -> Iterator[Observed]:
        chosen = self.drawn(split, limit, seed)
        for first in range(0, len(chosen), OBSERVED_PAIRS):
            yield self._observed(split, chosen[first : first + OBSERVED_PAIRS])

    @torch.no_grad()
    def _observed(self, split: Split, chosen: list[int]) -> Observed:
        """Where heads look in some pairs, the words of the translation before each given."""
        pairs = self.prepared.split(split)
        source_units, target_units = self.prepared.source_units, self._target_units
        eos = target_units.lexicon.eos
        widths = (int(lengths[chosen].max()) for lengths in (pairs.source_lengths, pairs.target_lengths))
        batch = gather(pairs, chosen, *widths, eos=eos, source_eos=source_units.lexicon.eos)
        with evaluating(self.model), capture(self.model) as weights:
            source, source_mask, ids, _ = self.arguments(batch)
            self.model.hidden(ids, self.model.encode(source, source_mask), source_mask)
        sources = [Sentence.of(source_units, pairs.source(i).tolist()) for i in chosen]
        targets = [Sentence.of(target_units, [eos, *pairs.target(i)[:-1].tolist()]) for i in chosen]
        return Observed(
            {kind: [layer.cpu() for layer in layers] for kind, layers in weights.items()},
            {"encoder": sources, "decoder": targets, "cross": targets},
            {"encoder": sources, "decoder": targets, "cross": sources},
        )
