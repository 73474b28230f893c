"""Which parallel text a model learns from, and in which units, as plain data that imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anymax.checks import check_counts, check_shares, given
from anymax.data.parallel.drawn import DRAWN, DrawnPairs
from anymax.data.parallel.named import SETS, Form, open_named
from anymax.data.text.config import BPE, Words
from anymax.data.text.words import Splitting

if TYPE_CHECKING:
    from anymax.data.parallel.corpus import ParallelCorpus


@dataclass(frozen=True)
class ParallelText:
    r"""What to read, and what the ids of a model stand for. One of `corpus`, `source` with `target`, `path` and `hub`.

    Args:
        corpus: the name of a set: multi30k, iwslt17, kftt, wmt16-roen or wmt14-ende; or copy or reverse, which are
            drawn and need no files.
        source, target: your own text in two files, line by line, which are cut into splits; or in two folders, each
            with a file for every split.
        path: your own text in one file, a .tsv or .jsonl, which is cut into splits; or a folder with files for every
            split, train.en and train.de or train.tsv.
        hub: a Hugging Face data set with a `translation` column, by its name or by the folder it was saved to.
        subset: which of the parts of that data set, such as "de-en".
        languages: those of source and target, as the names of files, columns and keys have them; by default those of
            the named set.
        form: "raw" or "tokenized", for named sets that have both.
        test_set: which of its test sets, for named sets that have several.
        drawn: how many pairs of copy or reverse, and of what.
        root: the folder that holds the folders of named sets; by default the environment variable ANYMAX_DATA.
        encoding: how the characters of your own text are written, such as latin-1.
        splitting: how lines become words; by default "marked", from which lines come back as they were, and "spaces"
            for sets that are tokenized.
        held_out: the share of your own pairs that becomes valid, and the share that becomes test, where one file or
            two are cut.
        units: words or subwords; those of the source where sides are separate.
        target_units: those of the target where sides are separate; by default as `units`.
        joint: one lexicon for both sides, of the words of both; otherwise one for each.
        most_source, most_target: pairs of train with more units, "<eos>" counted, are left out; None keeps all.
        drop_empty: leave out pairs of which one side is empty; otherwise they are an error.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import ParallelText, prepare_parallel
        >>> _ = Path("pairs.tsv").write_text("der Hund\tthe dog\n" * 20)
        >>> prepared = prepare_parallel(ParallelText(path=Path("pairs.tsv")), cache="cache")
        >>> len(prepared.split("train")), len(prepared.split("valid")), len(prepared.split("test"))
        (18, 1, 1)
    """

    corpus: str = "multi30k"
    source: Path | None = None
    target: Path | None = None
    path: Path | None = None
    hub: str | None = None
    subset: str | None = None
    languages: tuple[str, str] | None = None
    form: Form | None = None
    test_set: str | None = None
    drawn: DrawnPairs = field(default_factory=DrawnPairs)
    root: Path | None = None
    encoding: str = "utf-8"
    splitting: Splitting | None = None
    held_out: float = 0.05
    units: Words | BPE = field(default_factory=lambda: BPE(10_000))
    target_units: Words | BPE | None = None
    joint: bool = True
    most_source: int | None = 256
    most_target: int | None = 256
    drop_empty: bool = False

    def __post_init__(self) -> None:
        own = given(source=self.source, target=self.target, path=self.path, hub=self.hub)
        if own.keys() not in ({"source", "target"}, {"path"}, {"hub"}, set()):
            raise ValueError(
                f"your own text must be source and target, or path, or hub, got {', '.join(own)}; give one of the three"
            )
        if not own and self.corpus not in (*SETS, *DRAWN):
            raise ValueError(
                f"corpus must be one of {', '.join([*SETS, *DRAWN])}, got {self.corpus!r}; give your own text as "
                "source and target, or as path"
            )
        self._check_ignored(is_own=bool(own))
        if not own and self.corpus in SETS:
            SETS[self.corpus].check(self.corpus, self.languages, self.form, self.test_set)
        if self.languages is not None and (len(self.languages) != 2 or len({*self.languages}) != 2):
            raise ValueError(f"languages must be two that differ, got {self.languages}")
        if self.joint and self.target_units is not None:
            raise ValueError(
                f"target_units must be None where units are joint, got {self.target_units}; set joint=False"
            )
        check_counts(2, **given(most_source=self.most_source, most_target=self.most_target))
        check_shares(held_out=self.held_out)

    def _check_ignored(self, *, is_own: bool) -> None:
        """Refuse what has no effect on the text that was asked for."""
        is_set, is_drawn = not is_own and self.corpus in SETS, not is_own and self.corpus in DRAWN
        reasons = {
            "root": (self.root is not None, is_set, "named sets"),
            "form": (self.form is not None, is_set, "named sets"),
            "test_set": (self.test_set is not None, is_set, "named sets"),
            "drawn": (self.drawn != DrawnPairs(), is_drawn, "copy and reverse"),
            "languages": (self.languages is not None, not is_drawn, "texts in languages"),
            "splitting": (self.splitting is not None, not is_drawn, "texts in languages"),
            "subset": (self.subset is not None, self.hub is not None, "hub"),
            "encoding": (self.encoding != "utf-8", is_own and self.hub is None, "your own files"),
            "held_out": (self.held_out != 0.05, is_own, "your own text"),
        }
        for name, (is_given, has_effect, what) in reasons.items():
            if is_given and not has_effect:
                raise ValueError(f"{name} is for {what}, got {getattr(self, name)!r} with {self.name}; leave it out")

    @property
    def name(self) -> str:
        """What was asked for, for messages."""
        if self.source is not None:
            return f"{self.source} and {self.target}"
        return self.hub or (self.corpus if self.path is None else str(self.path))

    @property
    def is_own(self) -> bool:
        """Whether it is your own text, or one of the hub, and no named set."""
        return any(each is not None for each in (self.source, self.path, self.hub))

    @property
    def sets(self) -> tuple[str, ...]:
        """The named set that is read, where files are needed."""
        return () if self.is_own or self.corpus in DRAWN else (self.corpus,)

    def without_set(self) -> ParallelText:
        """The same without what only the named set has, so that another text can take its place."""
        return replace(self, languages=None, form=None, test_set=None, drawn=DrawnPairs(), root=None, splitting=None)

    def tested_on(self) -> ParallelText:
        """What decides the sentences of the test split, with all else at its default."""
        return replace(self, units=Words(), target_units=None, joint=True, most_source=None, most_target=None)

    def open(self, *, progress: Callable[[str], None] | None = None) -> ParallelCorpus:
        """The corpus; the first lines are read, files that are cut once, and a set of the hub is brought.

        Args:
            progress: called with a line that says what is being brought.
        """
        from anymax.data.parallel.opening import parallel_from_files, parallel_from_table, parallel_in_folder

        shares = {"valid": self.held_out, "test": self.held_out}
        splitting = self.splitting or "marked"
        if self.source is not None and self.target is not None:
            return parallel_from_files(
                self.source,
                self.target,
                self.languages or ("source", "target"),
                **shares,
                splitting=splitting,
                encoding=self.encoding,
                drop_empty=self.drop_empty,
            )
        if self.hub is not None:
            from anymax.data.parallel.hub import open_hub

            return open_hub(
                self.hub,
                self.subset,
                self.languages,
                **shares,
                splitting=splitting,
                drop_empty=self.drop_empty,
                progress=progress,
            )
        if self.path is not None and self.path.is_dir():
            return parallel_in_folder(
                self.path,
                self.languages,
                splitting=splitting,
                encoding=self.encoding,
                drop_empty=self.drop_empty,
            )
        if self.path is not None:
            return parallel_from_table(
                self.path,
                self.languages,
                **shares,
                splitting=splitting,
                encoding=self.encoding,
                drop_empty=self.drop_empty,
            )
        if self.corpus in DRAWN:
            return self.drawn.open(self.corpus)
        return open_named(
            self.corpus,
            self.languages,
            root=self.root,
            form=self.form,
            test_set=self.test_set,
            splitting=self.splitting,
            drop_empty=self.drop_empty,
        )

    def toy(self) -> ParallelText:
        """The same at a size for tests: sentences to copy, which need no files."""
        return ParallelText(
            corpus="copy",
            drawn=DrawnPairs().toy(),
            units=self.units.toy(),
            target_units=None if self.target_units is None else self.target_units.toy(),
            joint=self.joint,
        )
