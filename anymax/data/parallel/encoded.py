"""Pairs of sentences as ids: two encoded files, and which sentence of one belongs to which of the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from anymax.data.batches.sentences import sentence_ends
from anymax.data.prepared.encoded import Encoded


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    r"""The pairs of a split. Shapes: N pairs.

    A sentence is its ids and "<eos>" at the end. Files are mapped into memory and read where they are touched; each
    pair takes 40 bytes.

    Args:
        source_file, target_file: the ids of all sentences, one after the other.
        source_ends, target_ends: int64 (N,), where the sentences of a pair end in them.
        source_lengths, target_lengths: int64 (N,), their ids, "<eos>" counted.
        numbers: int64 (N,), which pairs of the corpus they are.
        num_long: how many pairs have more units than the limits, whether they are left out or not.

    Example:
        >>> from pathlib import Path
        >>> from anymax.data import ParallelText, prepare_parallel
        >>> _ = Path("pairs.tsv").write_text("der Hund bellt\tthe dog barks\n" * 20)
        >>> prepared = prepare_parallel(ParallelText(path=Path("pairs.tsv")), cache="cache")
        >>> pairs = prepared.split("train")
        >>> pairs.source_lengths[0].item(), prepared.target_units.text(pairs.target(0)[:-1])
        (4, 'the dog barks')
    """

    source_file: Encoded
    target_file: Encoded
    source_ends: Tensor
    target_ends: Tensor
    source_lengths: Tensor
    target_lengths: Tensor
    numbers: Tensor
    num_long: int

    @classmethod
    def of(
        cls,
        source: Encoded,
        target: Encoded,
        *,
        source_eos: int,
        target_eos: int,
        most_source: int | None,
        most_target: int | None,
        drop_long: bool,
    ) -> EncodedPairs:
        """The pairs of two files with a sentence for a sentence.

        Args:
            most_source, most_target: the most units of a sentence, "<eos>" counted; None for any number.
            drop_long: leave out pairs with more; otherwise they are counted only.
        """
        # Sentences hold no "<eos>" and end with it, so both files have one for each pair.
        source_ends, target_ends = (
            sentence_ends(file.tokens(), eos) for file, eos in ((source, source_eos), (target, target_eos))
        )
        assert len(source_ends) == len(target_ends) == source.num_lines == target.num_lines
        source_lengths, target_lengths = _lengths(source_ends), _lengths(target_ends)
        is_short = torch.ones(len(source_ends), dtype=torch.bool)
        for lengths, most in ((source_lengths, most_source), (target_lengths, most_target)):
            if most is not None:
                is_short &= lengths <= most
        num_long = int((~is_short).sum())
        kept = (is_short if drop_long else torch.ones_like(is_short)).nonzero().squeeze(1)
        return cls(
            source,
            target,
            source_ends[kept],
            target_ends[kept],
            source_lengths[kept],
            target_lengths[kept],
            numbers=kept,
            num_long=num_long,
        )

    def repeated(self, is_repeated: Tensor, times: int) -> EncodedPairs:
        """The same with some pairs several times.

        Args:
            is_repeated: bool (N,), for which pairs.
        """
        rows = torch.arange(len(self))
        index = torch.cat([rows, rows[is_repeated].repeat(times - 1)])
        return replace(
            self,
            source_ends=self.source_ends[index],
            target_ends=self.target_ends[index],
            source_lengths=self.source_lengths[index],
            target_lengths=self.target_lengths[index],
            numbers=self.numbers[index],
        )

    def __len__(self) -> int:
        return len(self.source_ends)

    def source(self, number: int) -> Tensor:
        """The ids of a source sentence, int64, "<eos>" at the end."""
        end = int(self.source_ends[number])
        return self.source_ids[end - int(self.source_lengths[number]) : end].long()

    def target(self, number: int) -> Tensor:
        """The ids of a target sentence, int64, "<eos>" at the end."""
        end = int(self.target_ends[number])
        return self.target_ids[end - int(self.target_lengths[number]) : end].long()

    @cached_property
    def source_ids(self) -> Tensor:
        """All ids of the source file."""
        return self.source_file.tokens()

    @cached_property
    def target_ids(self) -> Tensor:
        """All ids of the target file."""
        return self.target_file.tokens()


def _lengths(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64))
