"""Ways to parallel text: two files, a table, a folder with either, or rows in memory."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from anymax.data.parallel.corpus import ParallelCorpus
from anymax.data.parallel.pairs import (
    TABLES,
    FilePairs,
    Languages,
    MemoryPairs,
    PairSource,
    TablePairs,
    table_of,
    texts_of,
)
from anymax.data.text.corpus import PathLike, Split, cut_lines, find_splits, name_of_file, split_of
from anymax.data.text.words import Splitting


def parallel_of_files(
    files: Mapping[Split, tuple[PathLike, PathLike]],
    languages: Languages = ("source", "target"),
    *,
    name: str | None = None,
    splitting: Splitting = "marked",
    encoding: str = "utf-8",
    drop_empty: bool = False,
) -> ParallelCorpus:
    r"""A corpus whose splits are given as two files each, of source and target, line by line; plain or gzip.

    Args:
        files: of each split the file of the source and that of the target.
        languages: what source and target are called.
        name: what the corpus is called; by default the name of the first file.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        encoding: how characters are written, such as latin-1.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import parallel_of_files
        >>> for file, text in {"a.de": "der Hund\n", "a.en": "the dog\n"}.items():
        ...     _ = Path(file).write_text(text)
        >>> corpus = parallel_of_files({"train": ("a.de", "a.en")}, ("de", "en"))
        >>> next(corpus.pairs("train"))[:2]
        ('der Hund', 'the dog')
    """
    if "train" not in files:
        raise ValueError(f"files must name those of the train split, got {', '.join(files) or 'none'}")
    sources: dict[Split, PairSource] = {
        split: FilePairs(Path(source), Path(target), encoding) for split, (source, target) in files.items()
    }
    return _begun(name or name_of_file(Path(files["train"][0])), languages, sources, splitting, drop_empty)


def parallel_from_files(
    source: PathLike,
    target: PathLike,
    languages: Languages = ("source", "target"),
    *,
    valid: float = 0.05,
    test: float = 0.05,
    splitting: Splitting = "marked",
    encoding: str = "utf-8",
    drop_empty: bool = False,
) -> ParallelCorpus:
    r"""A corpus of two files, or of two folders with files named for the splits.

    Two files are cut: the last lines are the test split, those before them valid, the rest train.

    Args:
        source, target: the files or folders.
        languages: what source and target are called.
        valid, test: the share of the pairs for each, rounded, but at least one; 0 leaves the split out.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        encoding: how characters are written, such as latin-1.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import parallel_from_files
        >>> for language, text in {"de": "der Hund\n", "en": "the dog\n"}.items():
        ...     _ = Path(f"text.{language}").write_text(text * 20)
        >>> corpus = parallel_from_files("text.de", "text.en", ("de", "en"))
        >>> len(corpus.lines("train").sources), len(corpus.lines("test").sources)
        (18, 1)
    """
    source, target = Path(source), Path(target)
    if source.is_dir() and target.is_dir():
        ours, theirs = find_splits(source), find_splits(target)
        if ours.keys() != theirs.keys():
            raise ValueError(
                f"{source} and {target} must have files for the same splits, got {', '.join(ours)} and "
                f"{', '.join(theirs)}; add those that are missing"
            )
        files = {split: (ours[split], theirs[split]) for split in ours}
        return parallel_of_files(
            files, languages, name=source.name, splitting=splitting, encoding=encoding, drop_empty=drop_empty
        )
    num_pairs = sum(1 for _ in FilePairs(source, target, encoding).pairs())
    edges = cut_lines(num_pairs, valid, test, f"{source} and {target}")
    sources = {split: FilePairs(source, target, encoding, *edge) for split, edge in edges.items()}
    return _begun(name_of_file(source), languages, sources, splitting, drop_empty)


def parallel_from_table(
    path: PathLike,
    languages: Languages | None = None,
    *,
    valid: float = 0.05,
    test: float = 0.05,
    splitting: Splitting = "marked",
    encoding: str = "utf-8",
    drop_empty: bool = False,
) -> ParallelCorpus:
    r"""A corpus cut from one .tsv or .jsonl, see `TablePairs`, as `parallel_from_files` cuts two files.

    Args:
        path: the table, with a column or a key for each language.
        languages: those of source and target, as keys of a .jsonl or a first line of a .tsv name them; a .tsv without
            such a line needs none.
        valid, test: the share of the pairs for each, rounded, but at least one; 0 leaves the split out.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        encoding: how characters are written, such as latin-1.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import parallel_from_table
        >>> _ = Path("pairs.jsonl").write_text('{"de": "der Hund", "en": "the dog"}\n' * 20)
        >>> corpus = parallel_from_table("pairs.jsonl", ("de", "en"))
        >>> next(corpus.pairs("train"))[:2]
        ('der Hund', 'the dog')
    """
    path = Path(path)
    if table_of(path) is None:
        raise ValueError(
            f"{path} must be a table of pairs whose name ends in {' or '.join(TABLES)}, or in those with .gz; rename "
            "it, or give a text in two files as source and target"
        )
    num_pairs = sum(1 for _ in TablePairs(path, languages, encoding).pairs())
    edges = cut_lines(num_pairs, valid, test, str(path))
    sources = {split: TablePairs(path, languages, encoding, *edge) for split, edge in edges.items()}
    return _begun(_table_name(path), languages or ("source", "target"), sources, splitting, drop_empty)


def parallel_in_folder(
    folder: PathLike,
    languages: Languages | None,
    *,
    splitting: Splitting = "marked",
    encoding: str = "utf-8",
    drop_empty: bool = False,
) -> ParallelCorpus:
    r"""A corpus whose splits are found by their names in a folder.

    Either tables, train.tsv or train.jsonl, or two files for each split, train.de and train.en, which are named for
    their language at the end, before a .txt or .gz: val.lc.norm.tok.de.gz.

    Args:
        folder: where the files lie.
        languages: those of source and target, as names of files, columns or keys have them; None for .tsv files
            without a line of names.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        encoding: how characters are written, such as latin-1.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import parallel_in_folder
        >>> for file, text in {"train.de": "der Hund\n", "train.en": "the dog\n"}.items():
        ...     _ = Path(file).write_text(text)
        >>> parallel_in_folder(".", ("de", "en")).lines("train").sources
        ['der Hund']
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; check the name, or bring the parallel text there")
    files = [path for path in sorted(folder.iterdir()) if not path.is_dir() and not path.name.startswith(".")]
    tables = [path for path in files if table_of(path)]
    if tables:
        found = find_splits(folder, tables)
        rows: dict[Split, PairSource] = {split: TablePairs(path, languages, encoding) for split, path in found.items()}
        return _begun(folder.resolve().name, languages or ("source", "target"), rows, splitting, drop_empty)
    if languages is None:
        raise ValueError(
            f"{folder} holds files for each language, so languages must say which is the source and which the target, "
            "got None; give languages, such as ('en', 'de') (--data.languages en de)"
        )
    source, target = languages
    named = sorted({language_of(path) for path in files if split_of(path.name)})
    if not {source, target} <= {*named}:
        raise ValueError(
            f"{folder} must have files that end in .{source} and in .{target}, such as train.{source}, got those of "
            f"{', '.join(named) or 'no language'}; add them, or give other languages"
        )
    sides = [find_splits(folder, [path for path in files if language_of(path) == language]) for language in languages]
    if sides[0].keys() != sides[1].keys():
        raise ValueError(
            f"{folder} must have a file in {source} and one in {target} for each split, got {', '.join(sides[0])} in "
            f"{source} and {', '.join(sides[1])} in {target}; add those that are missing"
        )
    pairs: dict[Split, PairSource] = {
        split: FilePairs(path, sides[1][split], encoding) for split, path in sides[0].items()
    }
    return _begun(folder.resolve().name, languages, pairs, splitting, drop_empty)


def parallel_of_rows(
    name: str,
    rows: Mapping[Split, Iterable[Mapping[str, object]]],
    languages: Languages,
    *,
    splitting: Splitting = "marked",
    drop_empty: bool = False,
) -> ParallelCorpus:
    """A corpus of rows in memory, such as the splits of a Hugging Face data set with a `translation` column.

    Args:
        name: what the corpus is called.
        rows: of each split; a row has the sentences by their language, or those under `translation`.
        languages: those of source and target, as the rows have them.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from anymax.data import parallel_of_rows
        >>> rows = [{"translation": {"de": "der Hund", "en": "the dog"}}]
        >>> corpus = parallel_of_rows("tiny", {"train": rows}, ("de", "en"))
        >>> corpus.lines("train").sources
        ['der Hund']
    """
    pairs = {
        split: [texts_of(row, languages, f"{name} {split} row {at}") for at, row in enumerate(some, start=1)]
        for split, some in rows.items()
    }
    return parallel_of_pairs(name, pairs, languages, splitting=splitting, drop_empty=drop_empty)


def parallel_of_pairs(
    name: str,
    pairs: Mapping[Split, Sequence[tuple[str, str]]],
    languages: Languages = ("source", "target"),
    *,
    splitting: Splitting = "marked",
    drop_empty: bool = False,
) -> ParallelCorpus:
    """A corpus of pairs in memory.

    Args:
        name: what the corpus is called.
        pairs: of each split, sentences with their translations.
        languages: what source and target are called.
        splitting: how lines become words, see `split_line`; by default they can be joined to the lines again.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from anymax.data import parallel_of_pairs
        >>> pairs = {"train": [("der Hund", "the dog"), ("die Katze", "the cat")]}
        >>> corpus = parallel_of_pairs("tiny", pairs, ("de", "en"))
        >>> [pair.target for pair in corpus.pairs("train")]
        ['the dog', 'the cat']
    """
    sources = {split: MemoryPairs(f"{name} {split}", some) for split, some in pairs.items()}
    return ParallelCorpus(name, languages, sources, splitting, drop_empty)


def language_of(path: Path) -> str:
    """The language that the name of a file ends in, before .txt and .gz."""
    return Path(path.name.removesuffix(".gz").removesuffix(".txt")).suffix.removeprefix(".")


def _begun(
    name: str, languages: Languages, sources: Mapping[Split, PairSource], splitting: Splitting, drop_empty: bool
) -> ParallelCorpus:
    """The corpus, once every split has shown its first pair: wrong names and empty files cost no work."""
    for source in sources.values():
        next(source.pairs(), None)
    return ParallelCorpus(name, languages, sources, splitting, drop_empty)


def _table_name(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem
