"""`anymax prepare CORPUS`: bring a corpus, count its words, encode it, and show the counts."""

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from anymax.cli.console import Console
from anymax.cli.progress import Announcer, say
from anymax.cli.subject import DEFAULT_RECIPE
from anymax.data.text.config import BPE, Text, Words
from anymax.data.text.hub import HUB_SETS, bring
from anymax.data.text.named import NAMED, AbsentCorpus, find_root
from anymax.display import Table
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig

if TYPE_CHECKING:
    from anymax.data import Encoded, Prepared

# Names of files are long; a narrow terminal may wrap them, but a table must not cut them.
TABLE_WIDTH = 110
# Trains on subwords; the default recipe trains on words.
RECIPE_FOR_SUBWORDS = "sotu.bpe_tied"

_Corpus = arg(metavar="CORPUS")
_Path = arg(metavar="PATH", help_behavior_hint="")
_Root = arg(metavar="PATH", help_behavior_hint="(default: the environment variable ANYMAX_DATA)")
_Number = arg(metavar="INT", help_behavior_hint="")
_Splitting = arg(metavar="{spaces,prose,marked}", help_behavior_hint="(default: prose for a file, spaces for a folder)")


def prepare(
    corpus: Annotated[Positional[str], _Corpus] = "sotu",
    *,
    root: Annotated[Path | None, _Root] = None,
    encoding: str = "utf-8",
    splitting: Annotated[Literal["spaces", "prose", "marked"] | None, _Splitting] = None,
    min_count: int = 1,
    max_size: Annotated[int | None, _Number] = None,
    bpe: Annotated[int | None, _Number] = None,
    tokenizer: Annotated[Path | None, _Path] = None,
    pad_to_multiple: int = 1,
) -> int:
    """Bring a corpus, count its words and encode it, once for all runs.

    Counts, lexicons and encoded files are kept in the folder ANYMAX_CACHE, by default in your cache folder.

    Args:
        corpus: wikitext-2, wikitext-103, ptb, lm1b, sotu, pydoc, or your own file or folder.
        root: the folder of named corpora. One that is not there is brought from the Hugging Face hub, where the
            datasets package is installed.
        encoding: how the characters of your own text are written, such as latin-1.
        splitting: how lines of your own text become words.
        min_count: words seen less often become "<unk>".
        max_size: the most words; the rarest become "<unk>".
        bpe: the number of subwords to learn by byte-pair encoding.
        tokenizer: cut words as this tokenizer.json says.
        pad_to_multiple: make the number of words or subwords a multiple of this.
    """
    units = _units(min_count, max_size, bpe, tokenizer, pad_to_multiple)
    if corpus in NAMED:
        text = Text(corpus, None, root, encoding, splitting, units)
    else:
        text = Text(path=Path(corpus), root=root, encoding=encoding, splitting=splitting, units=units)
    try:
        with Announcer() as announce:
            if corpus in HUB_SETS:
                _bring_where_absent(text, announce)
            done = _prepare(text, announce)
    except (OSError, ModuleNotFoundError) as error:
        raise ValueError(str(error)) from error
    Console(width=max(Console().width, TABLE_WIDTH)).print(_table(done).terminal())
    for line in _remarks(done):
        say(line)
    return 0


@dataclass(frozen=True)
class _Done:
    """What was prepared, and the seconds that the units and each split took."""

    text: Text
    prepared: "Prepared"
    seconds: dict[str, float]


def _units(
    min_count: int, max_size: int | None, bpe: int | None, tokenizer: Path | None, pad_to_multiple: int
) -> Words | BPE:
    if bpe is None and tokenizer is None:
        return Words(min_count, max_size, pad_to_multiple)
    if (min_count, max_size) != (1, None):
        raise ValueError(
            "--min-count and --max-size are for words, --bpe and --tokenizer for subwords; drop one of the two"
        )
    if bpe is not None and tokenizer is not None:
        raise ValueError("--bpe learns subwords and --tokenizer brings them; drop one of the two")
    return BPE(BPE.size if bpe is None else bpe, pad_to_multiple, tokenizer)


def _bring_where_absent(text: Text, announce: Callable[[str], None]) -> None:
    try:
        text.open()
    except AbsentCorpus:
        bring(text.corpus, find_root(text.corpus, text.root), progress=announce)


def _prepare(text: Text, announce: Callable[[str], None]) -> _Done:
    from anymax.data.prepared.cache import default_cache
    from anymax.data.prepared.prepared import Prepared, encode_split, make_units

    cache, corpus = default_cache(), text.open()
    began = time.perf_counter()
    units = make_units(corpus, text.units, cache=cache, progress=announce)
    seconds = {"units": time.perf_counter() - began}
    splits = {}
    for split in corpus.sources:
        began = time.perf_counter()
        splits[split] = encode_split(corpus, split, units, cache=cache, progress=announce)
        seconds[split] = time.perf_counter() - began
    return _Done(text, Prepared(corpus, units, splits, cache), seconds)


def _table(done: _Done) -> Table:
    rows = []
    for split, encoded in done.prepared.splits.items():
        share = encoded.num_unknown / encoded.num_tokens
        numbers = (f"{encoded.num_lines:,}", f"{encoded.num_tokens:,}", f"{share:.2%}", f"{_num_types(encoded):,}")
        rows.append((split, *numbers, f"{done.seconds[split]:.1f}", encoded.path.name))
    columns = ("split", "lines", "tokens", "unknown", "types", "seconds", "file")
    return Table(columns, tuple(rows), text_columns=("file",))


def _num_types(encoded: "Encoded") -> int:
    import torch

    seen: set[int] = set()
    for part in encoded.tokens().split(1 << 22):
        seen.update(torch.unique(part.long()).tolist())
    return len(seen)


def _remarks(done: _Done) -> Iterator[str]:
    """What the table does not say, and what to type next."""
    prepared = done.prepared
    unit = "words" if prepared.subwords is None else f"subwords of {len(prepared.words):,} words"
    yield f"{len(prepared.lexicon):,} {unit}, in {done.seconds['units']:.1f} seconds. Files lie in {prepared.cache}"
    absent = [split for split in ("valid", "test") if split not in prepared.splits]
    if absent:
        yield f"{prepared.name} has no {' and no '.join(absent)} split; training needs valid, so add a file for it."
    unknown = {split: encoded.num_unknown for split, encoded in prepared.splits.items()}
    if not unknown["train"] and any(unknown.values()):
        yield "<unk> does not occur in train, so no model learns it; --min-count 2 lets it stand for words seen once."
    yield f"Next: {next_command(done.text)}"


def next_command(text: Text) -> str:
    """The command that trains on a text."""
    from anymax.recipes import find

    given = {"corpus": text.corpus, "root": text.root, "path": text.path, "splitting": text.splitting}
    if text.path is not None:
        del given["corpus"]
    is_own = text.path is not None and not isinstance(text.units, BPE)
    if is_own:
        del given["path"]
    if text.encoding != "utf-8":
        given["encoding"] = text.encoding
    recipe = RECIPE_FOR_SUBWORDS if isinstance(text.units, BPE) else DEFAULT_RECIPE
    usual = LanguageModelingConfig.of(find(recipe)().task).data.units
    changed = {name: value for name, value in vars(text.units).items() if value != getattr(usual, name)}
    given |= {f"units.{name.replace('_', '-')}": value for name, value in changed.items()}
    options = [word for name, value in given.items() if value is not None for word in (f"--data.{name}", value)]
    named = [str(text.path)] if is_own else [] if recipe == DEFAULT_RECIPE else [recipe]
    return shlex.join(["anymax", "train", *named, *map(str, options)])
