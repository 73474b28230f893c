"""Bringing named corpora from the Hugging Face hub, through the datasets package, as plain text files."""

import contextlib
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from anymax.data.text.corpus import Split

# The train split last: it is the largest, and what is wrong with a set shows in the others.
SPLITS: tuple[Split, ...] = ("test", "valid", "train")
# The words of the held-out files of lm1b that are test and valid; the hub has all 50 files in one split.
LM1B_TEST_WORDS, LM1B_VALID_WORDS = 153_583, 159_354
# How many lines are written between two announcements.
ANNOUNCED = 100_000


@dataclass(frozen=True)
class HubSet:
    """Where a corpus lies on the hub, one row of a table for each line of text.

    Args:
        files: the tables of a split, with {split} in the place of its name.
        column: which value of a row is the line.
        valid: what the hub calls the valid split.
    """

    files: str
    column: str = "text"
    valid: str = "validation"


# Sets that are programs on the hub have a copy as tables there, which the hub made.
COPY = "@refs%2Fconvert%2Fparquet"
HUB_SETS = {
    "wikitext-2": HubSet("hf://datasets/Salesforce/wikitext/wikitext-2-v1/{split}-*.parquet"),
    "wikitext-103": HubSet("hf://datasets/Salesforce/wikitext/wikitext-103-v1/{split}-*.parquet"),
    "ptb": HubSet(f"hf://datasets/ptb-text-only/ptb_text_only{COPY}/penn_treebank/{{split}}/*.parquet", "sentence"),
    "lm1b": HubSet(f"hf://datasets/billion-word-benchmark/lm1b{COPY}/plain_text/{{split}}/*.parquet", valid="test"),
}


def bring(name: str, root: str | os.PathLike[str], *, progress: Callable[[str], None] | None = None) -> Path:
    """Write a corpus of the hub into a folder below the root, as train.txt, valid.txt and test.txt.

    Lines are streamed; the folder is there whole or not at all.

    Args:
        name: one of `HUB_SETS`.
        progress: called with a line that says what is being brought.
    """
    folder = Path(root) / name
    by_hand = f"put its files train.txt, valid.txt and test.txt (or .gz), words separated by spaces, into {folder}"
    with bringing(name, folder, by_hand) as part:
        for split in SPLITS:
            _write(part / f"{split}.txt", _lines(name, split), f"bringing {name} {split}", progress)
    return folder


@contextlib.contextmanager
def bringing(name: str, folder: Path, by_hand: str) -> Iterator[Path]:
    """A folder under a temporary name, which becomes `folder` when all went well.

    Args:
        by_hand: what to do instead, for messages.
    """
    if importlib.util.find_spec("datasets") is None:
        raise ModuleNotFoundError(
            f"{name} is not in {folder.parent}, and bringing it needs the datasets package: pip install "
            f"'anymax[hub]'; or {by_hand}",
            name="datasets",
        )
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(folder)
    # Without a network, or where a set has moved, the datasets package raises errors of many types.
    except Exception as error:
        raise ValueError(f"{name} could not be brought from the hub ({error}); try again, or {by_hand}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _lines(name: str, split: Split) -> Iterator[str]:
    hub = HUB_SETS[name]
    files = hub.files.format(split=hub.valid if split == "valid" else split)
    datasets = importlib.import_module("datasets")
    rows = datasets.load_dataset("parquet", data_files={"train": files}, split="train", streaming=True)
    lines = (row[hub.column].rstrip("\n") for row in rows)
    return _held_out_lines(lines, split) if name == "lm1b" and split != "train" else lines


def _held_out_lines(lines: Iterator[str], split: Split) -> Iterator[str]:
    """The lines of the first held-out file of lm1b for test, of the second for valid, by their number of words."""
    test = list(_taken(lines, LM1B_TEST_WORDS))
    num_words = sum(len(line.split()) for line in test)
    if num_words != LM1B_TEST_WORDS:
        raise ValueError(f"the lines of its test file must hold {LM1B_TEST_WORDS:,} words, they hold {num_words:,}")
    return iter(test) if split == "test" else _taken(lines, LM1B_VALID_WORDS)


def _taken(lines: Iterable[str], num_words: int) -> Iterator[str]:
    """Lines until they hold that number of words."""
    for line in lines:
        yield line
        num_words -= len(line.split())
        if num_words <= 0:
            return


def _write(path: Path, lines: Iterator[str], what: str, progress: Callable[[str], None] | None) -> None:
    num_lines = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        while some := list(islice(lines, ANNOUNCED)):
            file.writelines(f"{line}\n" for line in some)
            num_lines += len(some)
            if progress is not None:
                progress(f"{what}: {num_lines:,} lines")
