"""Parallel text from Hugging Face data sets with a `translation` column, through the datasets package.

A set is written to plain files in the cache, once; delete its folder there to bring it anew. One that lies on disk is
written again where its files have changed.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from anymax.data.parallel.corpus import ParallelCorpus
from anymax.data.parallel.opening import parallel_from_files, parallel_in_folder
from anymax.data.parallel.pairs import Languages, texts_of
from anymax.data.prepared.cache import default_cache, digest, plain_name
from anymax.data.text.corpus import Split, split_of
from anymax.data.text.hub import ANNOUNCED, bringing
from anymax.data.text.words import Splitting


def open_hub(
    name: str,
    subset: str | None,
    languages: Languages | None,
    *,
    valid: float,
    test: float,
    splitting: Splitting = "marked",
    drop_empty: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ParallelCorpus:
    """A data set by its name, or by the folder that `save_to_disk` wrote; one without a valid split is cut.

    Args:
        subset: which of its parts, such as "de-en".
        languages: those of source and target, keys of `translation`.
        valid, test: the shares that are cut from a set with a train split alone.
    """
    if languages is None:
        raise ValueError(
            f"languages must say which of {name} is the source and which the target, got None; give languages, such as "
            "('de', 'en') (--data.languages de en)"
        )
    # The order of the languages is no part of what is brought.
    what = digest("hub", name, subset, *sorted(languages), *_states(Path(name)))
    folder = default_cache() / "hub" / f"{plain_name('-'.join([name, *([subset] if subset else [])]))}-{what}"
    if not folder.is_dir():
        _bring(name, subset, languages, folder, progress)
    if any(split_of(path.name) == "valid" for path in folder.iterdir()):
        return parallel_in_folder(folder, languages, splitting=splitting, drop_empty=drop_empty)
    source, target = (folder / f"train.{language}" for language in languages)
    return parallel_from_files(
        source, target, languages, valid=valid, test=test, splitting=splitting, drop_empty=drop_empty
    )


def _states(folder: Path) -> list[str]:
    """What differs where a saved set was saved again; nothing for names of the hub."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    stats = [(path, path.stat()) for path in files]
    return [f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]


def _bring(
    name: str, subset: str | None, languages: Languages, folder: Path, progress: Callable[[str], None] | None
) -> None:
    by_hand = "write it to a .jsonl file and give that as path"
    with bringing(name, folder, by_hand) as part:
        splits = _splits(name, subset)
        if "train" not in splits:
            raise ValueError(f"it must have a train split, got {', '.join(splits) or 'none'}")
        # The train split last, as it is the largest, and what is wrong with a set shows in the others.
        for split in sorted(splits, key=lambda split: split == "train"):
            _write(part, split, splits[split](), languages, f"{name} {split}", progress)


def _splits(name: str, subset: str | None) -> dict[Split, Callable[[], Iterable[Mapping[str, Any]]]]:
    """The rows of each split, which are loaded when they are called for."""
    datasets = importlib.import_module("datasets")
    if Path(name).is_dir():
        saved = datasets.load_from_disk(name)
        parts = saved if isinstance(saved, Mapping) else {"train": saved}
        return {split: partial(iter, parts[part]) for part in parts if (split := split_of(part))}
    load = partial(datasets.load_dataset, name, subset, streaming=True)
    parts = datasets.get_dataset_split_names(name, subset)
    return {split: partial(load, split=part) for part in parts if (split := split_of(part))}


def _write(
    folder: Path,
    split: Split,
    rows: Iterable[Mapping[str, Any]],
    languages: Languages,
    what: str,
    progress: Callable[[str], None] | None,
) -> None:
    number = 0
    paths = [folder / f"{split}.{language}" for language in languages]
    with (
        open(paths[0], "w", encoding="utf-8", newline="\n") as source,
        open(paths[1], "w", encoding="utf-8", newline="\n") as target,
    ):
        for number, row in enumerate(rows, start=1):
            ours, theirs = texts_of(row, languages, f"row {number} of {what}")
            source.write(f"{ours}\n")
            target.write(f"{theirs}\n")
            if progress is not None and number % ANNOUNCED == 0:
                progress(f"bringing {what}: {number:,} pairs")
    if progress is not None:
        progress(f"bringing {what}: {number:,} pairs")
