"""`anymax recipes`: what can be trained, with one line each."""

from typing import Annotated

from tyro.conf import Positional, arg

from anymax.cli.console import Console
from anymax.display import Noted, Row, Styled, Table


def recipes(containing: Annotated[Positional[str], arg(metavar="[TEXT]", help_behavior_hint="")] = "") -> int:
    """List what can be trained, with one line each; `anymax train RECIPE --help` shows every setting of one.

    Args:
        containing: only recipes whose name contains this.
    """
    from anymax.recipes import names

    chosen = [name for name in names() if containing in name]
    if not chosen:
        raise ValueError(f"no recipe's name contains {containing!r}; `anymax recipes` lists them all")
    Console().print(Table(("recipe", "description"), tuple(map(_row, chosen)), is_grid=True).terminal())
    return 0


def _row(name: str) -> Row:
    from anymax.recipes import choices, find

    offered = choices(name)
    option = "" if offered is None else f"--{offered.argument} {' | '.join(offered.values)}"
    return Styled(name, "bold"), Noted(first_line(find(name).__doc__ or ""), option)


def first_line(docstring: str) -> str:
    """What a docstring says first."""
    return docstring.strip().split("\n\n")[0].replace("\n    ", " ")
