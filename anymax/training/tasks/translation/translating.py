"""Translating with trained runs: text in, text out, many sentences at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anymax.data.parallel.prepared import PreparedParallel
from anymax.data.units.units import Units
from anymax.decoding import Generator, Hypotheses, Hypothesis, beam_search
from anymax.models.sizes import check_fits_memory
from anymax.models.translation.model import Translator
from anymax.training.checkpoint.averaging import average_checkpoints
from anymax.training.checkpoint.checkpoints import Checkpoints, Which
from anymax.training.checkpoint.tensors import load_model
from anymax.training.run_folder.folder import CHECKPOINTS, read_config
from anymax.training.tasks.translation.config import Search, TranslationConfig

# Called with the sentences translated so far, and all.
Progress = Callable[[int, int], None]


def translate(
    models: Sequence[Translator],
    sources: Sequence[Tensor],
    search: Search,
    *,
    eos: int,
    unk: int,
    source_eos: int | None = None,
    num_best: int = 1,
    progress: Progress | None = None,
) -> list[Hypotheses]:
    """The best translations of sentences, in their order; those of about one length go together.

    Args:
        models: one, or several whose probabilities are averaged.
        sources: ids of sentences, "<eos>" at the end.
        eos, unk: ids of the target.
        source_eos: the id of "<eos>" in the source; by default that of the target.
        num_best: how many translations of each; there are fewer where fewer have a probability.
    """
    padding = eos if source_eos is None else source_eos
    device = next(models[0].parameters()).device
    return decode(
        models,
        sources,
        search,
        inputs_of=lambda rows: padded(rows, padding, device),
        most=[search.longest(len(source) - 1) for source in sources],
        eos=eos,
        banned=() if search.unknown else (unk,),
        num_best=num_best,
        progress=progress,
    )


def decode(
    models: Sequence[Generator],
    rows: Sequence[Tensor],
    search: Search,
    *,
    inputs_of: Callable[[Sequence[Tensor]], Any],
    most: Sequence[int],
    eos: int,
    banned: Sequence[int] = (),
    num_best: int = 1,
    progress: Progress | None = None,
) -> list[Hypotheses]:
    """The best that models write for rows of ids, in their order; those of about one length go together.

    Args:
        inputs_of: what the models start from, for some of the rows.
        most: the most words or subwords for each row.
        eos: the id that ends what is written.
        banned: ids that are never written.
        num_best: how many for each row; there are fewer where fewer have a probability.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, Hypotheses] = {}
    for first in range(0, len(order), search.batch_size):
        chosen = order[first : first + search.batch_size]
        results = beam_search(
            models,
            inputs_of([rows[i] for i in chosen]),
            eos=eos,
            max_length=[most[i] for i in chosen],
            beam=search.beam,
            num_best=num_best,
            min_length=search.min_length,
            length_penalty=search.penalty,
            banned=banned,
            stop_when_full=search.stop_when_full,
        )
        found |= dict(zip(chosen, results, strict=True))
        if progress is not None:
            progress(len(found), len(order))
    return [found[i] for i in range(len(rows))]


@dataclass(frozen=True, eq=False)
class OpenedTranslator:
    """Trained translators, to use: several give the mean of their probabilities.

    Args:
        models: in evaluation mode.
        source_units, target_units: what ids stand for.
        search: how sentences are translated, unless a call says otherwise.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import Search, open_translator, train
        >>> _ = train(recipes.find("drawn.copy")().toy(), "run")
        >>> translator = open_translator("run")
        >>> found = translator.search_lines(["ab ac", ""], search=Search(beam=3), num_best=2)
        >>> [len(hypotheses) for hypotheses in found]
        [2, 0]
    """

    models: Sequence[Translator]
    source_units: Units
    target_units: Units
    search: Search

    def translate(self, lines: Sequence[str], *, search: Search | None = None) -> list[str]:
        """The best translation of each line; that of an empty line is empty."""
        return [self.text(found[0]) if found else "" for found in self.search_lines(lines, search=search)]

    def search_lines(
        self,
        lines: Sequence[str],
        *,
        search: Search | None = None,
        num_best: int = 1,
        first_line: int = 1,
    ) -> list[tuple[Hypothesis, ...]]:
        """The best translations of each line, best first; none of an empty one.

        Args:
            first_line: the number of the first line, for errors.
        """
        eos = self.source_units.lexicon.eos
        encoded = [self.source_units.encode_line(line) for line in lines]
        for number, ids in enumerate(encoded, first_line):
            self._check_fits(number, len(ids) + 1)
        numbers = [i for i, ids in enumerate(encoded) if ids]
        target = self.target_units.lexicon
        found = translate(
            self.models,
            [torch.tensor([*encoded[i], eos]) for i in numbers],
            search or self.search,
            eos=target.eos,
            unk=target.unk,
            source_eos=eos,
            num_best=num_best,
        )
        results: list[tuple[Hypothesis, ...]] = [() for _ in lines]
        for i, hypotheses in zip(numbers, found, strict=True):
            results[i] = hypotheses.ranked
        return results

    def text(self, hypothesis: Hypothesis) -> str:
        """A translation as it is read."""
        return self.target_units.text(hypothesis.words)

    def _check_fits(self, number: int, length: int) -> None:
        for model in self.models:
            if model.max_positions is not None and length > model.max_positions:
                raise ValueError(
                    f"line {number} must have at most the model's {model.max_positions} positions, got {length} units "
                    "with its end; cut it into sentences"
                )


def open_translator(
    runs: str | Path | Sequence[str | Path], *, which: Which = "best", average: int | None = None
) -> OpenedTranslator:
    """The translator of a run, or of several as an ensemble; the text they were trained on is not needed.

    Args:
        runs: the folder of a run, or those of several translators of the same vocabulary.
        which: the step of a checkpoint, "last", or "best", which is the last where none was evaluated.
        average: take the mean weights of this number of last checkpoints instead.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_translator, train
        >>> _ = train(recipes.find("drawn.copy")().toy(), "run")
        >>> translations = open_translator("run").translate(["ab ac", "ad"])
        >>> len(translations)
        2
    """
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if not folders:
        raise ValueError("runs must be one folder at least, got none")
    opened = [_open(folder, which, average) for folder in folders]
    for folder, other in zip(folders[1:], opened[1:], strict=True):
        for side in ("source_units", "target_units"):
            ours, theirs = getattr(opened[0], side), getattr(other, side)
            if ours.hash != theirs.hash:
                raise ValueError(
                    f"runs of an ensemble must have the same units, but those of {folder} are not those of "
                    f"{folders[0]}; train both on one text with the same units"
                )
    return replace(opened[0], models=[model for each in opened for model in each.models])


def _open(folder: Path, which: Which, average: int | None) -> OpenedTranslator:
    config = read_config(folder).task
    if not isinstance(config, TranslationConfig):
        raise ValueError(
            f"run must be of a translator, got {folder} ({type(config).__name__}); anymax generate continues a text "
            "with a language model"
        )
    units = PreparedParallel.saved_units(folder)
    if units is None:
        raise ValueError(f"folder must hold a trained run, but {folder} has no units; train or resume it first")
    model = new_model(config, *units)
    load_weights(model, folder, which, average)
    return OpenedTranslator([model.eval()], *units, config.search)


def load_weights(model: nn.Module, folder: Path, which: Which, average: int | None) -> None:
    """Give a model the weights of a run.

    Args:
        which: the step of a checkpoint, "last" or "best".
        average: take the mean weights of this number of last checkpoints instead.
    """
    if average is None:
        checkpoint = Checkpoints(folder / CHECKPOINTS).load(which)
        load_model(model, checkpoint.tensors["model"], checkpoint.file("model"))
    else:
        averaged = average_checkpoints(folder, last=average)
        load_model(model, averaged, folder / CHECKPOINTS)


def new_model(config: TranslationConfig, source: Units, target: Units) -> Translator:
    """The model of a config, its parameters drawn at random, for the units of both sides."""
    size = len(target.lexicon)
    if config.search.beam > size:
        raise ValueError(f"search.beam must be at most the {size} words of the target, got {config.search.beam}")
    check_fits_memory(lambda: config.model.build(source.lexicon, target.lexicon))
    return config.model.build(source.lexicon, target.lexicon)


def padded(sentences: Sequence[Tensor], eos: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Sentences as rows of one tensor, and where their units stand."""
    width = max(map(len, sentences))
    source, mask = torch.full((len(sentences), width), eos), torch.zeros(len(sentences), width, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        source[row, : len(sentence)] = sentence
        mask[row, : len(sentence)] = True
    return source.to(device), mask.to(device)
