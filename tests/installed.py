"""Folders whose optional package may be absent, for tests that go through all folders."""

import importlib.util

NEEDS = {"hf": "transformers"}


def is_importable(folder: str) -> bool:
    """Whether what a folder of anymax needs is installed."""
    return folder not in NEEDS or importlib.util.find_spec(NEEDS[folder]) is not None
