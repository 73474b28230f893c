"""What the page for users of the entmax package says is so."""

import re
from pathlib import Path

import anymax
import anymax.compat.entmax

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-entmax.md").read_text()


def test_the_example_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})


def test_the_table_of_names_is_complete_and_names_what_exists():
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `") and "anymax." in line]
    old = {name for left, _ in rows for name in re.findall(r"`(\w+)", left)}
    assert old == set(anymax.compat.entmax.__all__)
    assert all(hasattr(anymax, name) for _, right in rows for name in re.findall(r"anymax\.(\w+)", right))
