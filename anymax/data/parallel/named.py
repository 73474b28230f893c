"""Parallel text with a name: the usual translation sets, which lie below a root as they were packed or as plain files.

Each set is also found as two files for every split: NAME/train.en and NAME/train.de, valid and test likewise. All files
may be packed with gzip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anymax.data.text.named import ROOT_VARIABLE, AbsentCorpus, find_root

if TYPE_CHECKING:
    from anymax.data.parallel.corpus import ParallelCorpus
    from anymax.data.parallel.pairs import Languages
    from anymax.data.text.corpus import Split
    from anymax.data.text.words import Splitting

Form = Literal["raw", "tokenized"]
ENDINGS = ("", ".gz", ".xml", ".xml.gz")


@dataclass(frozen=True)
class Stems:
    """The files of a set in one form, below its folder, without the language and what comes behind it.

    Args:
        splitting: how their lines become words.
        train, valid, test: {pair} stands for the languages as de-en, in either order, {test} for the test set.
    """

    splitting: Splitting
    train: str
    valid: str
    test: str = "{test}"


@dataclass(frozen=True)
class NamedPairs:
    """A named set.

    Args:
        languages: source and target, where none are given.
        others: further languages, each in any pair with the first of `through`.
        forms: where its files lie in each form there is; the first is the usual one.
        tests: the test sets; the first is the usual one.
        through: the languages of which every pair must hold one; none where every pair is there.
    """

    languages: Languages
    forms: dict[Form, Stems]
    tests: tuple[str, ...]
    others: tuple[str, ...] = ()
    through: str | None = None

    def check(self, name: str, languages: Languages | None, form: Form | None, test_set: str | None) -> None:
        """Refuse what the set does not have."""
        if languages is not None and not self._has(languages):
            known = ", ".join(dict.fromkeys([*self.languages, *self.others]))
            rule = f"two of {known}" + ("" if self.through is None else f", one of them {self.through}")
            raise ValueError(
                f"languages of {name} must be {rule}, got {' '.join(languages)}; give another pair, or your own text"
            )
        if form is not None and form not in self.forms:
            raise ValueError(f"form of {name} must be {' or '.join(self.forms)}, got {form!r}; leave it out")
        if test_set is not None and test_set not in self.tests:
            raise ValueError(f"test_set of {name} must be one of {', '.join(self.tests)}, got {test_set!r}")

    def _has(self, languages: Languages) -> bool:
        is_known = {*languages} <= {*self.languages, *self.others} and languages[0] != languages[1]
        return is_known and (self.through is None or self.through in languages)


IWSLT17 = "{pair}/IWSLT17.TED."
KFTT = "kftt-data-1.0/data/"
SETS: dict[str, NamedPairs] = {
    # 29,000 pairs of captions. Elliott et al. 2016.
    "multi30k": NamedPairs(
        ("en", "de"),
        {
            "raw": Stems("marked", "raw/train", "raw/val", "raw/{test}"),
            "tokenized": Stems("spaces", "tok/train.lc.norm.tok", "tok/val.lc.norm.tok", "tok/{test}.lc.norm.tok"),
        },
        ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"),
        others=("fr",),
    ),
    # About 200,000 pairs from talks. Cettolo et al. 2017.
    "iwslt17": NamedPairs(
        ("de", "en"),
        {"raw": Stems("marked", "{pair}/train.tags.{pair}", IWSLT17 + "dev2010.{pair}", IWSLT17 + "{test}.{pair}")},
        ("tst2015", "tst2014", "tst2013", "tst2012", "tst2011", "tst2010"),
        others=("ar", "fr", "ja", "ko", "zh"),
        through="en",
    ),
    # About 330,000 pairs from articles on Kyoto. Neubig 2011.
    "kftt": NamedPairs(
        ("ja", "en"),
        {
            "tokenized": Stems("spaces", f"{KFTT}tok/kyoto-train.cln", f"{KFTT}tok/kyoto-dev", f"{KFTT}tok/{{test}}"),
            "raw": Stems("marked", f"{KFTT}orig/kyoto-train", f"{KFTT}orig/kyoto-dev", f"{KFTT}orig/{{test}}"),
        },
        ("kyoto-test",),
    ),
    # About 610,000 pairs. Bojar et al. 2016.
    "wmt16-roen": NamedPairs(("ro", "en"), {"raw": Stems("marked", "train", "newsdev2016")}, ("newstest2016",)),
    # About 4.5 million pairs, tokenized. Luong et al. 2015.
    "wmt14-ende": NamedPairs(
        ("en", "de"),
        {"tokenized": Stems("spaces", "train", "newstest2013")},
        ("newstest2014", "newstest2015", "newstest2012"),
    ),
}


def open_named(
    name: str,
    languages: Languages | None = None,
    *,
    root: Path | None = None,
    form: Form | None = None,
    test_set: str | None = None,
    splitting: Splitting | None = None,
    drop_empty: bool = False,
) -> ParallelCorpus:
    """A named set.

    Args:
        languages: source and target.
        root: the folder that holds the folder of the set; by default the environment variable ANYMAX_DATA.
        form: "raw" as written or "tokenized", where a set has both.
        test_set: one of its test sets.
        splitting: how lines become words, where the files hold something else than the set usually does.
    """
    from anymax.data.parallel.opening import parallel_of_files

    named = SETS[name]
    named.check(name, languages, form, test_set)
    folder = find_root(name, root) / name
    stems = next(iter(named.forms.values())) if form is None else named.forms[form]
    languages = languages or named.languages
    splits: dict[Split, str] = {"train": stems.train, "valid": stems.valid, "test": stems.test}
    test = test_set or named.tests[0]
    files: dict[Split, tuple[Path, Path]] = {}
    for split, stem in splits.items():
        # A test set that was asked for by its name is not replaced by another.
        plain = [] if split == "test" and test_set is not None else [split]
        pairs = ("-".join(languages), "-".join(reversed(languages)))
        tried = dict.fromkeys([*(stem.format(pair=pair, test=test) for pair in pairs), *plain])
        files[split] = _found(name, folder, tried, languages)
    return parallel_of_files(files, languages, name=name, splitting=splitting or stems.splitting, drop_empty=drop_empty)


def _found(name: str, folder: Path, stems: dict[str, None], languages: Languages) -> tuple[Path, Path]:
    """The two files of the first stem that both languages have."""
    for stem in stems:
        source, target = (next(_there(folder, f"{stem}.{language}"), None) for language in languages)
        if source is not None and target is not None:
            return source, target
    wanted = " or ".join(f"{stem}.{languages[0]} and {stem}.{languages[1]}" for stem in stems)
    raise AbsentCorpus(
        f"{name} must lie in {folder}, which has no {wanted} (or those with .gz); bring the set there, or give the "
        f"folder above it as root or in the environment variable {ROOT_VARIABLE}"
    )


def _there(folder: Path, name: str) -> Iterator[Path]:
    # A broken link or a pipe counts, so that opening it says what is wrong.
    paths = (folder / f"{name}{ending}" for ending in ENDINGS)
    return (path for path in paths if path.exists() or path.is_symlink())
