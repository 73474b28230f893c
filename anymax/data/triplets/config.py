"""Which triplets a post-editor learns from, and in which word pieces, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anymax.checks import check_counts, check_positive, check_shares, given
from anymax.data.multilingual.config import Pieces
from anymax.data.triplets.drawn import DrawnTriplets

if TYPE_CHECKING:
    from anymax.data.parallel.corpus import ParallelCorpus

# Sets that lie below a root as they are named, each a folder with files as `Triplets.path` has.
SETS = ("ape-wmt-keystrokes", "ape-mlqe-pe-ende", "ape-wmt18-ende-smt")
DRAWN = "drawn"


@dataclass(frozen=True)
class Triplets:
    r"""What to read, and what the ids of a model stand for. Texts are tokenized, their words separated by spaces.

    Args:
        corpus: the name of a set: ape-wmt-keystrokes, ape-mlqe-pe-ende or ape-wmt18-ende-smt; or drawn, which needs no
            files.
        path: your own triplets instead: a folder with three files for every split, train.src, train.mt and train.pe for
            sentences, translations and corrections, line by line, plain or gzip; valid (or dev) and test likewise.
        further: folders with more triplets for train, of which train alone is read, such as synthetic ones; where there
            is no such folder here, the one below the root.
        oversample: how often an epoch has each triplet of the own train, for one of each further one.
        held_out: how many triplets of train become valid, and how many test, where a folder has neither.
        held_out_seed: decides which.
        train_share: the share of the own train that is read, drawn by held_out_seed, a smaller one from a larger; valid
            and test stay as they are.
        test_set: a part of the names of the files of test, where a folder has several, such as 2017.
        drawn: how many triplets of drawn, and of what.
        root: the folder that holds the folders of named sets; by default the environment variable ANYMAX_DATA.
        encoding: how the characters of files are written, such as latin-1.
        pieces: the word pieces of all three texts.
        most_source, most_target: triplets of train are left out whose sentence and translation have more pieces
            together, or whose correction has more; None keeps all.
        drop_empty: leave out triplets of which a part is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import Triplets, prepare_triplets
        >>> for ending, text in {"src": "the cats\n", "mt": "der Katzen\n", "pe": "die Katzen\n"}.items():
        ...     _ = Path(f"train.{ending}").write_text(text * 20)
        >>> prepared = prepare_triplets(Triplets(path=Path("."), held_out=2), cache="cache")
        >>> len(prepared.split("train")), len(prepared.split("valid")), len(prepared.split("test"))
        (16, 2, 2)
    """

    corpus: str = SETS[0]
    path: Path | None = None
    further: tuple[Path, ...] = ()
    oversample: int = 1
    held_out: int = 1_000
    held_out_seed: int = 1
    train_share: float = 1.0
    test_set: str | None = None
    drawn: DrawnTriplets = field(default_factory=DrawnTriplets)
    root: Path | None = None
    encoding: str = "utf-8"
    pieces: Pieces = field(default_factory=lambda: Pieces(splitting="spaces"))
    most_source: int | None = 200
    most_target: int | None = 100
    drop_empty: bool = False

    def __post_init__(self) -> None:
        if self.path is None and self.corpus not in (*SETS, DRAWN):
            raise ValueError(
                f"corpus must be one of {', '.join([*SETS, DRAWN])}, got {self.corpus!r}; give your own triplets "
                "as path"
            )
        if self.pieces.splitting != "spaces":
            raise ValueError(
                f"pieces.splitting must be 'spaces', as triplets are words separated by spaces, got "
                f"{self.pieces.splitting!r}; tokenize other texts first"
            )
        check_counts(oversample=self.oversample, held_out=self.held_out)
        check_counts(**given(most_source=self.most_source, most_target=self.most_target))
        check_positive(train_share=self.train_share)
        check_shares(train_share=self.train_share)
        if self.oversample > 1 and not self.further:
            raise ValueError(
                f"oversample must be 1 without further triplets, got {self.oversample}; every triplet comes as often"
            )
        self._check_ignored()

    @property
    def sets(self) -> tuple[str, ...]:
        """The named set that is read, where files are needed."""
        return () if self.path is not None or self.corpus == DRAWN else (self.corpus,)

    def _check_ignored(self) -> None:
        """Refuse what has no effect on the text that was asked for."""
        is_drawn, usual = self.path is None and self.corpus == DRAWN, Triplets
        for name, has_effect, what in (
            ("root", bool(self.further) or (self.path is None and not is_drawn), "named sets"),
            ("drawn", is_drawn, "corpus drawn"),
            ("held_out", not is_drawn, "files"),
            ("held_out_seed", not is_drawn, "files"),
            ("train_share", not is_drawn, "files"),
            ("test_set", not is_drawn, "files"),
            ("encoding", not is_drawn or bool(self.further), "files"),
        ):
            default = DrawnTriplets() if name == "drawn" else usual.__dataclass_fields__[name].default
            if getattr(self, name) != default and not has_effect:
                raise ValueError(f"{name} is for {what}, got {getattr(self, name)!r} with {self.name}; leave it out")

    @property
    def name(self) -> str:
        """What was asked for, for messages."""
        return self.corpus if self.path is None else str(self.path)

    @property
    def is_own(self) -> bool:
        """Whether it is your own text, and no named set."""
        return self.path is not None

    def without_set(self) -> Triplets:
        """The same without what only the named set has, so that another text can take its place."""
        return replace(self, drawn=DrawnTriplets(), root=None, test_set=None, held_out=1_000, held_out_seed=1)

    def tested_on(self) -> Triplets:
        """What decides the triplets of the test split, with all else at its default."""
        usual = Triplets()
        return replace(
            self,
            pieces=usual.pieces,
            train_share=usual.train_share,
            further=(),
            oversample=1,
            most_source=usual.most_source,
            most_target=usual.most_target,
        )

    def open(self) -> ParallelCorpus:
        """The triplets as pairs, whose source is the sentence, a tab and its translation."""
        from anymax.data.triplets.opening import triplets_in_folder, with_further

        if self.path is None and self.corpus == DRAWN:
            own = self.drawn.open()
        else:
            own = triplets_in_folder(
                self.folder,
                held_out=self.held_out,
                seed=self.held_out_seed,
                train_share=self.train_share,
                test_set=self.test_set,
                encoding=self.encoding,
                drop_empty=self.drop_empty,
            )
        further = [self._further_folder(folder) for folder in self.further]
        return with_further(own, further, encoding=self.encoding, drop_empty=self.drop_empty)

    def _further_folder(self, folder: Path) -> Path:
        from anymax.data.text.named import ROOT_VARIABLE, AbsentCorpus, find_root

        below = folder if folder.is_dir() else find_root(str(folder), self.root) / folder
        if not below.is_dir():
            raise AbsentCorpus(
                f"further triplets must lie in {folder} or {below}, with files train.src, train.mt and train.pe; bring "
                f"them there, or give the folder above as root or in the environment variable {ROOT_VARIABLE}"
            )
        return below

    @property
    def folder(self) -> Path:
        """Where the own triplets lie."""
        if self.path is not None:
            return self.path
        from anymax.data.text.named import AbsentCorpus, find_root

        folder = find_root(self.corpus, self.root) / self.corpus
        if not folder.is_dir():
            raise AbsentCorpus(
                f"{self.corpus} must lie in {folder}, with files train.src, train.mt and train.pe; bring the set "
                "there, or give another root"
            )
        return folder

    def toy(self) -> Triplets:
        """The same at a size for tests: triplets that need no files."""
        return Triplets(DRAWN, drawn=DrawnTriplets().toy(), pieces=self.pieces.toy(), most_source=80, most_target=40)
