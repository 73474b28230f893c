"""A lexicon without a text, for models that need its size, its words and their counts."""

from dataclasses import dataclass
from functools import cached_property


@dataclass
class Made:
    """A lexicon of made-up words whose counts fall as in real text."""

    size: int
    num_specials: int = 2
    eos: int = 0
    unk: int = 1

    def __len__(self) -> int:
        return self.size

    @cached_property
    def words(self) -> list[str]:
        return [f"w{i}" for i in range(self.size)]

    @cached_property
    def counts(self) -> list[int]:
        return [100_000 // (i + 1) for i in range(self.size)]
