"""Correcting with trained runs: sentences and their translations in, corrected translations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from anymax.data.batches.triplets import EditInputs, edit_inputs
from anymax.data.triplets.prepared import SOURCE_MARKS, PreparedTriplets
from anymax.data.units.word_pieces import SPECIALS, WordPieces
from anymax.decoding import Hypotheses
from anymax.models.post_editing.edit_model import EditModel
from anymax.models.sizes import check_fits_memory
from anymax.training.checkpoint.checkpoints import Which
from anymax.training.run_folder.folder import read_config
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.translation.config import Search
from anymax.training.tasks.translation.translating import Progress, decode, load_weights, padded


def correct(
    models: Sequence[EditModel],
    rows: Sequence[Tensor],
    search: Search,
    pieces: WordPieces,
    *,
    progress: Progress | None = None,
) -> list[Hypotheses]:
    """The best corrections of translations, in their order; those of about one length go together.

    Args:
        models: one, or several whose probabilities are averaged.
        rows: ids of sentences, "[SEP]", their translations, and "<T>".
    """
    device = next(models[0].parameters()).device
    positions = min(model.max_positions for model in models)

    def inputs_of(some: Sequence[Tensor]) -> EditInputs:
        return edit_inputs(*padded(some, pieces.last, device), pieces, max_positions=positions)

    banned = {pieces.ids[word] for word in SPECIALS} | {pieces.first}
    return decode(
        models,
        rows,
        search,
        inputs_of=inputs_of,
        most=[search.longest(_translation_length(row, pieces)) for row in rows],
        eos=pieces.last,
        banned=sorted(banned - {pieces.unk} if search.unknown else banned),
        progress=progress,
    )


@dataclass(frozen=True, eq=False)
class OpenedPostEditor:
    """Trained post-editors, to use: several give the mean of their probabilities.

    Args:
        models: in evaluation mode.
        pieces: what ids stand for.
        search: how translations are corrected, unless a call says otherwise.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_post_editor, train
        >>> _ = train(recipes.find("ape_small.transformer")().toy(), "run")
        >>> editor = open_post_editor("run")
        >>> len(editor.models), editor.search.beam
        (1, 4)
    """

    models: Sequence[EditModel]
    pieces: WordPieces
    search: Search

    def correct(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        *,
        search: Search | None = None,
        first_line: int = 1,
        progress: Progress | None = None,
    ) -> list[str]:
        """The corrected translation of each sentence; lines are words separated by spaces.

        A sentence or a translation without words is an error.

        Args:
            first_line: the number of the first line, for errors.
        """
        if len(sources) != len(translations):
            raise ValueError(
                f"sources and translations must be as many as each other, got {len(sources):,} and "
                f"{len(translations):,}; give a translation for every sentence"
            )
        rows = []
        for number, (source, translation) in enumerate(zip(sources, translations, strict=True), first_line):
            sides = self._encoded(number, "source", source), self._encoded(number, "translation", translation)
            rows.append(torch.tensor([*sides[0], self.pieces.sep, *sides[1], self.pieces.last]))
        found = correct(self.models, rows, search or self.search, self.pieces, progress=progress)
        return [self.pieces.text(each.best.words) for each in found]

    def _encoded(self, number: int, what: str, line: str) -> list[int]:
        ids = self.pieces.encode(line)
        if not ids:
            raise ValueError(f"line {number} must have a {what}, got an empty line; leave the line out of both texts")
        most = min(model.max_positions for model in self.models)
        if len(ids) > most:
            raise ValueError(
                f"line {number} must have a {what} of at most the model's {most} positions, got {len(ids)} word "
                "pieces; cut it into sentences"
            )
        return ids


def open_post_editor(
    runs: str | Path | Sequence[str | Path], *, which: Which = "best", average: int | None = None
) -> OpenedPostEditor:
    """The post-editor of a run, or of several as an ensemble; the text they were trained on is not needed.

    Args:
        runs: the folder of a run, or those of several post-editors of the same vocabulary.
        which: the step of a checkpoint, "last", or "best", which is the last where none was evaluated.
        average: take the mean weights of this number of last checkpoints instead.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_post_editor, train
        >>> _ = train(recipes.find("ape_small.transformer")().toy(), "run")
        >>> len(open_post_editor("run").correct(sources=["aa ab"], translations=["aa ba"]))
        1
    """
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if not folders:
        raise ValueError("runs must be one folder at least, got none")
    opened = [_open(folder, which, average) for folder in folders]
    for folder, other in zip(folders[1:], opened[1:], strict=True):
        if other.pieces.hash != opened[0].pieces.hash:
            raise ValueError(
                f"runs of an ensemble must have the same word pieces, but those of {folder} are not those of "
                f"{folders[0]}; train both with the same pieces"
            )
    return replace(opened[0], models=[model for each in opened for model in each.models])


def new_model(config: PostEditingConfig, pieces: WordPieces) -> EditModel:
    """The model of a config, its parameters drawn at random, for these pieces."""
    check_fits_memory(lambda: config.model.build(pieces))
    return config.model.build(pieces)


def _open(folder: Path, which: Which, average: int | None) -> OpenedPostEditor:
    config = read_config(folder).task
    if not isinstance(config, PostEditingConfig):
        raise ValueError(
            f"run must be of a post-editor, got {folder} ({type(config).__name__}); anymax translate takes translators"
        )
    pieces = PreparedTriplets.saved_pieces(folder)
    if pieces is None:
        raise ValueError(f"folder must hold a trained run, but {folder} has no word pieces; train or resume it first")
    model = new_model(config, pieces)
    load_weights(model, folder, which, average)
    return OpenedPostEditor([model.eval()], pieces, config.search)


def _translation_length(row: Tensor, pieces: WordPieces) -> int:
    return len(row) - SOURCE_MARKS - row.tolist().index(pieces.sep)
