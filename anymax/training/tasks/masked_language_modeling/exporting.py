"""The model of a run in Hugging Face's layout, for transformers to open."""

from __future__ import annotations

from pathlib import Path

from anymax.data.multilingual.prepared import PreparedTexts
from anymax.data.units.word_pieces import SETTINGS, TOKENIZER, VOCABULARY, WordPieces
from anymax.models.bert.checkpoint import CONFIG, WEIGHTS, save_bert
from anymax.models.bert.model import Bert
from anymax.training.checkpoint.checkpoints import Checkpoints, Which
from anymax.training.checkpoint.tensors import load_model
from anymax.training.run_folder.folder import CHECKPOINTS, read_config
from anymax.training.tasks.masked_language_modeling.config import MaskedLanguageModelingConfig
from anymax.training.tasks.masked_language_modeling.task import new_model


def export(run: Path, folder: Path, *, step: int | None = None) -> list[str]:
    """Write the model and the word pieces of a run; the names of the files that were written.

    Args:
        folder: new or empty.
        step: the checkpoint to use, by default the best.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"folder must be new or empty, got {folder}; name another, or remove what is there")
    model, pieces = open_bert(run, "best" if step is None else step)
    save_bert(model, folder)
    pieces.save_files(folder)
    return [CONFIG, WEIGHTS, TOKENIZER, SETTINGS, VOCABULARY]


def open_bert(run: Path, which: Which = "best") -> tuple[Bert, WordPieces]:
    """The BERT of a run and its word pieces, to use; the texts it was trained on are not needed.

    Args:
        which: the step of a checkpoint, "last", or "best", which is the last where none was evaluated.
    """
    config = MaskedLanguageModelingConfig.of(read_config(run).task)
    pieces = PreparedTexts.saved_pieces(run)
    if pieces is None:
        raise ValueError(f"folder must hold a trained run, but {run} has no word pieces; train or resume it first")
    checkpoint = Checkpoints(run / CHECKPOINTS).load(which)
    model = new_model(config, pieces)
    load_model(model, checkpoint.tensors["model"], checkpoint.file("model"))
    return model.eval(), pieces
