"""The loss of runs by how often a word, or the word before it, occurs in training text, from their results on test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anymax.display import Axis, Chart, Noted, Paragraph, Part, Row, Section, Table, bars
from anymax.display.printable import printable
from anymax.evaluation.frequency import BY_PREVIOUS, BY_WORD, Bin, FrequencyTable
from anymax.evaluation.perplexity.perplexity import LIKELIHOOD
from anymax.files import DamagedError, read_json
from anymax.training.run_folder.folder import TESTED

# More bins than any evaluation has, fewer than a page cannot show.
MOST_BINS = 50
# Models that only count, as results have them, and as they are shown.
COUNTING = {"unigram": "unigram", "bigram": "interpolated bigram"}
# Counts that a float holds exactly.
MOST_WORDS = 2**53


@dataclass(frozen=True)
class Counted:
    """A model that only counts.

    Args:
        loss: of all words.
        by_frequency: as that of a run; None in results of older versions.
    """

    loss: float
    by_frequency: FrequencyTable | None

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> Counted:
        found = _mapping(name, values)
        return cls(_finite("loss", found), _table_of(found) if "by_frequency" in found else None)


@dataclass(frozen=True)
class Results:
    """What the results of a run on the test split say of its output layer.

    Args:
        loss: of all words.
        loss_name: what loss that is.
        by_frequency: the same by the training count of the word, and of the word before it.
        counted: models that only count, by name; none where they were not measured.
    """

    loss: float
    loss_name: str
    by_frequency: FrequencyTable
    counted: Mapping[str, Counted]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Results:
        """From what a report of a language model wrote; a ValueError names what is not as it wrote it."""
        perplexity = _mapping("perplexity", values)
        return cls(
            _finite("loss", perplexity),
            _text("loss_name", perplexity),
            _table_of(values),
            {name: Counted.of(name, values) for name in COUNTING if values.get(name) is not None},
        )


def frequencies(runs: Mapping[str, Path]) -> list[Part]:
    """The loss by training frequency of runs, as plots and as a table; a run without such results is left out.

    Args:
        runs: their folders by the names they are shown under.
    """
    tested: dict[str, Results] = {}
    skipped: list[Part] = []
    for name, folder in runs.items():
        try:
            tested[name] = read_results(folder)
        except ValueError as error:
            skipped.append(Paragraph(f"{printable(name)} is not among the losses by frequency: {error}", is_dim=True))
    return [*shown(tested), *skipped]


def read_results(folder: Path) -> Results:
    """The results of a run on the test split; a DamagedError where they are missing or not as they were written."""
    try:
        return Results.of(read_json(folder / TESTED))
    except OSError as error:
        raise DamagedError(f"{TESTED} cannot be read: {error.strerror}") from None
    except DamagedError:
        is_missing = not (folder / TESTED).exists()
        raise DamagedError(f"{TESTED} is {'missing' if is_missing else 'damaged'}") from None
    except ValueError as error:
        raise DamagedError(f"{TESTED} {error}") from None


def shown(tested: Mapping[str, Results]) -> list[Part]:
    """The results of runs by their names: a plot by the word, one by the word before it, and a table of both."""
    if not tested:
        return []
    tables = {name: run.by_frequency for name, run in tested.items()}
    for name, table in _counted(tested):
        tables.setdefault(name, table)
    by_word = {name: table.by_word for name, table in tables.items()}
    by_previous = {name: table.by_previous for name, table in tables.items()}
    note = " ".join(["Words up to a count, but above that of the bar before.", *_sentences(tested)])
    return [
        _chart(BY_WORD, by_word, note),
        _chart(BY_PREVIOUS, by_previous, "The word that the model has just read; at the start of the text, <eos>."),
        _table({"by the word": by_word, "by the previous word": by_previous}),
    ]


def _chart(title: str, of_runs: Mapping[str, tuple[Bin, ...]], note: str) -> Chart:
    rows = [
        (printable(name), bin.label, bin.loss, bin.share)
        for name, bins in of_runs.items()
        for bin in bins
        if bin.loss is not None
    ]
    labels = tuple(dict.fromkeys(bin.label for bin in _all_bins(of_runs)))
    spec = bars(
        Axis("count", "count in the training text, up to", "nominal", order=labels),
        Axis("loss", "loss per word", starts_at_zero=True, format=".3~f"),
        Axis("run", "", "nominal", order=tuple(printable(name) for name in of_runs)),
    )
    spec["encoding"]["tooltip"].append({"field": "share", "type": "quantitative", "format": ".2%"})
    names = ("run", "count", "loss", "share")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return Chart(title, columns, spec, source=TESTED, note=note)


def _table(kinds: Mapping[str, Mapping[str, tuple[Bin, ...]]]) -> Table:
    rows: list[Row | Section] = []
    for kind, of_runs in kinds.items():
        rows += [Section(kind), *_rows(of_runs)]
    names = [printable(name) for name in next(iter(kinds.values()))]
    head = ("count up to", "words", "share", *names)
    return Table(head, tuple(rows), "Loss by training frequency", source=TESTED)


def _rows(of_runs: Mapping[str, tuple[Bin, ...]]) -> Iterator[Row]:
    """The shares of the first run that has the bin stand in front, those of others that differ beside their losses."""
    for some in _all_bins(of_runs):
        own = (next((bin for bin in bins if _edges(bin) == _edges(some)), None) for bins in of_runs.values())
        yield (some.label, f"{some.num_words:,}", f"{some.share:.1%}", *(_cell(bin, some) for bin in own))


def _cell(bin: Bin | None, some: Bin) -> str | Noted:
    if bin is None or bin.loss is None:
        return ""
    return f"{bin.loss:.3f}" if bin.num_words == some.num_words else Noted(f"{bin.loss:.3f}", f"{bin.share:.1%}")


def _all_bins(of_runs: Mapping[str, tuple[Bin, ...]]) -> list[Bin]:
    """Every bin in which a run has words, once, by rising count."""
    found: dict[tuple[float, float], Bin] = {}
    for bins in of_runs.values():
        for bin in bins:
            if bin.num_words:
                found.setdefault(_edges(bin), bin)
    return [found[edges] for edges in sorted(found)]


def _edges(bin: Bin) -> tuple[float, float]:
    return (-1 if bin.above is None else bin.above, math.inf if bin.most is None else bin.most)


def _sentences(tested: Mapping[str, Results]) -> Iterator[str]:
    """The losses of all words: those of the runs, and of models that only count."""
    names = {name: printable(name) for name in tested}
    yield f"Of all words: {'; '.join(f'{names[name]} {run.loss:.3f}' for name, run in tested.items())}."
    for name, whose, counted in _baselines(tested):
        yield f"The {name}{whose}, which only counts, has {counted.loss:.3f}."
    for name, run in tested.items():
        if run.loss_name != LIKELIHOOD:
            yield f"That of {names[name]} is the {printable(run.loss_name)}, which compares with no likelihood."


def _counted(tested: Mapping[str, Results]) -> Iterator[tuple[str, FrequencyTable]]:
    """The tables of models that only count, under their names."""
    for name, whose, counted in _baselines(tested):
        if counted.by_frequency is not None:
            yield f"{name}{whose}", counted.by_frequency


def _baselines(tested: Mapping[str, Results]) -> Iterator[tuple[str, str, Counted]]:
    """Each model that only counts, once: its name, of which runs' text it is where those differ, and its results."""
    for name, shown_as in COUNTING.items():
        found: dict[float, list[str]] = {}
        for run, results in tested.items():
            if name in results.counted:
                found.setdefault(results.counted[name].loss, []).append(run)
        for runs in found.values():
            whose = f" of {', '.join(map(printable, runs))}" if len(found) > 1 else ""
            yield shown_as, whose, tested[runs[0]].counted[name]


def _table_of(values: Mapping[str, Any]) -> FrequencyTable:
    bins = _mapping("by_frequency", values)
    return FrequencyTable(_bins("by_word", bins), _bins("by_previous", bins))


def _bins(name: str, values: Mapping[str, Any]) -> tuple[Bin, ...]:
    bins = values.get(name)
    if not isinstance(bins, list) or not 0 < len(bins) <= MOST_BINS:
        raise ValueError(f"must have a list of 1 to {MOST_BINS} bins as {name}")
    return tuple(_bin(bin) for bin in bins)


def _bin(values: object) -> Bin:
    if not isinstance(values, Mapping):
        raise ValueError("must have bins that are objects")
    above, most = (None if values.get(name) is None else _count(name, values) for name in ("above", "most"))
    loss = None if values.get("loss") is None else _finite("loss", values)
    return Bin(above, most, _count("num_words", values), _finite("share", values), loss)


def _mapping(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"must have an object as {name}")
    return found


def _count(name: str, values: Mapping[str, Any]) -> int:
    found = values.get(name)
    if type(found) is not int or not 0 <= found <= MOST_WORDS:
        raise ValueError(f"must have a count as {name}")
    return found


def _finite(name: str, values: Mapping[str, Any]) -> float:
    found = values.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= MOST_WORDS:
        raise ValueError(f"must have a finite number as {name}")
    return float(found)


def _text(name: str, values: Mapping[str, Any]) -> str:
    found = values.get(name)
    if not isinstance(found, str):
        raise ValueError(f"must have a text as {name}")
    return found
