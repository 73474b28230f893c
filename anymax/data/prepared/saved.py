"""What a run keeps of its text: the units in its folder, and the hashes that the text must have when it is resumed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from anymax.data.text.words import Splitting
from anymax.data.units.lexicon import Lexicon
from anymax.data.units.subwords import Subwords
from anymax.data.units.units import Units
from anymax.files import DamagedError, read_json, replacing

LEXICON_FILE, WORDS_FILE, TOKENIZER_FILE, DATA_FILE = "lexicon.txt", "words.txt", "tokenizer.json", "data.json"


def hashes_of(units: Units) -> dict[str, str]:
    """The hashes of what the units are saved as."""
    if units.subwords is None:
        return {"lexicon": units.lexicon.hash}
    return {"lexicon": units.lexicon.hash, "words": units.words.hash, "tokenizer": units.subwords.hash}


def save_units(units: Units, folder: Path) -> None:
    """Write units into a folder."""
    units.lexicon.save(folder / LEXICON_FILE)
    if units.subwords is not None:
        units.words.save(folder / WORDS_FILE)
        units.subwords.save(folder / TOKENIZER_FILE)


def load_units(folder: Path, splitting: Splitting, hashes: Mapping[str, str]) -> Units:
    """The units of a folder; refused where they do not have the hashes that they were saved with."""
    lexicon = Lexicon.load(folder / LEXICON_FILE)
    subwords = Subwords.load(folder / TOKENIZER_FILE) if "tokenizer" in hashes else None
    words = lexicon if subwords is None else Lexicon.load(folder / WORDS_FILE)
    units = Units(lexicon, words, subwords, splitting)
    for what, hash in hashes_of(units).items():
        if hash != hashes.get(what, hash):
            raise ValueError(f"{folder} holds another {what} than was saved there (its hash differs); restore it")
    return units


def check_identity(ours: Mapping[str, str], folder: Path) -> None:
    """Refuse a text or units whose hashes are others than those saved into a folder."""
    saved = read_data(folder)
    theirs = saved["identity"]
    different = [what for what in {**ours, **theirs} if ours.get(what) != theirs.get(what)]
    if different:
        changes = ", ".join(f"{what} {_short(theirs.get(what))} (now {_short(ours.get(what))})" for what in different)
        raise ValueError(
            f"the text must be the one that {folder} was made with, {saved['name']}, but it differs in {changes}; "
            "restore the text, or start a new run"
        )


def write_data(folder: Path, values: Mapping[str, Any]) -> None:
    """Write what a run depends on into its folder."""
    with replacing(folder / DATA_FILE) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


def read_data(folder: Path) -> dict[str, Any]:
    """What `write_data` wrote."""
    path = folder / DATA_FILE
    values = read_json(path)
    identity = values.get("identity")
    hashes = [*identity.values()] if isinstance(identity, dict) else [None]
    is_whole = isinstance(values.get("name"), str) and values.get("splitting") in get_args(Splitting)
    if not is_whole or not all(isinstance(hash, str) for hash in hashes):
        raise DamagedError(f"{path} was changed since it was saved; restore it, or start a new run")
    return values


def _short(hash: str | None) -> str:
    return "absent" if hash is None else hash[:12]
