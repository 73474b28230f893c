"""Files that may come from anybody: read whole, or refused with an error that names the file."""

import json
from pathlib import Path
from typing import Any


class DamagedError(ValueError):
    """A file that is not as it was written."""


def read_regular(file: Path) -> bytes:
    """The content of a file; a pipe or a device, which may never end, is refused."""
    if not file.is_file():
        raise DamagedError(f"{file} is {'no regular file' if file.exists() else 'missing'}")
    return file.read_bytes()


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    content = read_regular(file)
    try:
        values = json.loads(content)
    except RecursionError:
        raise DamagedError(f"{file} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"{file} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise DamagedError(f"{file} is damaged: it must hold an object, got a {type(values).__name__}")
    return values
