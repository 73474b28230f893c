"""`anymax recipes`: what can be trained, with one line each."""

from typing import Annotated

from rich.table import Column, Table
from rich.text import Text
from tyro.conf import Positional, arg

from anymax.cli.console import Console


def recipes(containing: Annotated[Positional[str], arg(metavar="[TEXT]", help_behavior_hint="")] = "") -> int:
    """List what can be trained, with one line each; `anymax train RECIPE --help` shows every setting of one.

    Args:
        containing: only recipes whose name contains this.
    """
    from anymax.recipes import choices, find, names

    chosen = [name for name in names() if containing in name]
    if not chosen:
        raise ValueError(f"no recipe's name contains {containing!r}; `anymax recipes` lists them all")
    table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name in chosen:
        offered = choices(name)
        option = "" if offered is None else f" --{offered.argument} {' | '.join(offered.values)}"
        table.add_row(Text(name, style="bold"), Text(first_line(find(name).__doc__ or "")) + Text(option, style="dim"))
    Console().print(table)
    return 0


def first_line(docstring: str) -> str:
    """What a docstring says first."""
    return docstring.strip().split("\n\n")[0].replace("\n    ", " ")
