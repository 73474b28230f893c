"""Rows of whole lines in which some pieces are hidden: what a model learns from that tells them from those around.

Shapes: B rows, N tokens of the longest row.
"""

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import IGNORE_INDEX, Epochs, check_stream, draw_order, generator_of
from anymax.data.batches.config import Masking
from anymax.data.batches.sentences import numbers, sentence_ends
from anymax.data.units.word_pieces import WordPieces
from anymax.distributed.ranks import share

# Room for "[CLS]" and a piece.
LEAST_BLOCK = 2


class MaskedBatch(NamedTuple):
    """Rows with hidden pieces.

    Example:
        >>> from anymax.data import MaskedBatches, WordPieces
        >>> pieces = WordPieces(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"))
        >>> stream = torch.tensor([*pieces.encode("a b c d e f"), pieces.sep])
        >>> batch = next(iter(MaskedBatches({"letters": stream}, pieces, block=8, batch_size=1, seed=1)))
        >>> batch.ids.shape
        torch.Size([1, 8])
        >>> (batch.target != -100).sum().item()
        1
    """

    ids: Tensor
    """What the model reads, int64 (B, N): "[CLS]", lines with "[SEP]" behind each, "[PAD]" after the end of a row."""
    mask: Tensor
    """Where a token stands, bool (B, N)."""
    segments: Tensor
    """0, and 1 from some line of the row on, int64 (B, N)."""
    target: Tensor
    """What was hidden, int64 (B, N); -100, which losses ignore, where nothing was."""
    texts: Tensor
    """The number of the text that each row is of, int64 (B,)."""


@final
class MaskedBatches(Epochs[MaskedBatch]):
    """Epochs of rows of several texts, each of which has its share of every epoch.

    A row is "[CLS]" and as many neighbouring lines of one text as fit; a line that does not fit into any is cut. An
    epoch has as many rows as all texts together. Rows of a text with a large share are repeated, every one before any
    comes a second time; of a text with a small share the next epoch has others. What is hidden is decided
    by the seed, the text, the row, and how many passes over the text were made before.

    Args:
        streams: the ids of each text by its name, "[SEP]" behind every line.
        pieces: what the ids stand for.
        block: the most tokens of a row.
        batch_size: rows of a batch, over all ranks.
        shares: how much of an epoch is of each text; None takes every row of every text once.
        seed: decides order and masks.
        in_order: keep the rows in the order of the texts, as for an evaluation.
        two_segments: whether lines from one on, drawn for each row of several, are of the second segment.
        masking: how pieces are hidden; by default as BERT's were.
        rank, world_size: which share of each batch to give, of how many.

    Example:
        >>> from anymax.data import Masking, MaskedBatches, WordPieces
        >>> pieces = WordPieces(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"))
        >>> stream = torch.tensor([*pieces.encode("a b c d e f"), pieces.sep])
        >>> all_masked = Masking(share=0.5, masked=1.0, random=0.0)
        >>> batches = MaskedBatches({"letters": stream}, pieces, block=8, batch_size=1, seed=1, masking=all_masked)
        >>> pieces.pieces(next(iter(batches)).ids[0])
        ['[CLS]', '[MASK]', 'b', 'c', 'd', '[MASK]', '[MASK]', '[SEP]']
    """

    def __init__(
        self,
        streams: Mapping[str, Tensor],
        pieces: WordPieces,
        block: int,
        batch_size: int,
        *,
        seed: int,
        shares: Sequence[float] | None = None,
        masking: Masking | None = None,
        in_order: bool = False,
        two_segments: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_counts(batch_size=batch_size)
        check_counts(LEAST_BLOCK, block=block)
        if shares is not None and (len(shares) != len(streams) or in_order):
            raise ValueError(
                f"shares must be one for each of {len(streams)} texts, and left out in order, got {shares}"
            )
        self.streams = dict(streams)
        for tokens in self.streams.values():
            check_stream(tokens)
        self.pieces = pieces
        self.block = block
        self.batch_size = batch_size
        self.seed = seed
        self.shares = shares
        self.masking = masking or Masking()
        self.in_order = in_order
        self.two_segments = two_segments
        self.names = list(self.streams)
        self._ends = [_row_ends(tokens, pieces.sep, block - 1) for tokens in self.streams.values()]
        self.rows = [len(ends) for ends in self._ends]
        """How many rows each text has."""
        self._drawn = self._shared_out()
        self._ordinary = torch.tensor([id for id in range(len(pieces)) if id not in pieces.specials])
        self._special = torch.zeros(len(pieces), dtype=torch.bool)
        self._special[list(pieces.specials)] = True
        self._order = lru_cache(maxsize=1)(self._draw_epoch)
        self._pass = lru_cache(maxsize=2 * len(self.names))(self._draw_pass)

    def length(self, epoch: int) -> int:
        return -(-sum(self._drawn) // self.batch_size)

    def _batch(self, position: int) -> MaskedBatch:
        chosen = self._order(self.epoch)[position * self.batch_size : (position + 1) * self.batch_size]
        places = [self._place(int(number)) for number in chosen]
        # As wide as the longest row of all ranks.
        spans = [self._span(text, number) for text, _, number in places]
        width = 1 + max(end - start for start, end in spans)
        first, stop = share(len(places), self.rank, self.world_size)
        num_rows = max(stop - first, 1)
        ids = torch.full((num_rows, width), self.pieces.pad)
        mask = torch.zeros(num_rows, width, dtype=torch.bool)
        segments = torch.zeros(num_rows, width, dtype=torch.int64)
        target = torch.full((num_rows, width), IGNORE_INDEX)
        texts = torch.zeros(num_rows, dtype=torch.int64)
        # The row of a rank that has none still reads a "[CLS]".
        ids[:, 0] = self.pieces.cls
        mask[:, 0] = True
        for row, ((text, pass_, number), (start, end)) in enumerate(
            zip(places[first:stop], spans[first:stop], strict=True)
        ):
            tokens = self.streams[self.names[text]][start:end].to(torch.int64, copy=True)
            generator = generator_of(self.seed, pass_, f"masks of row {number} of {self.names[text]}")
            length = 1 + len(tokens)
            if self.two_segments:
                segments[row, 1:length] = self._drawn_segments(tokens, generator)
            ids[row, 1:length], target[row, 1:length] = self._hidden(tokens, generator)
            mask[row, :length] = True
            texts[row] = text
        return MaskedBatch(ids, mask, segments, target, texts)

    def _place(self, number: int) -> tuple[int, int, int]:
        """The text of a row of the epoch, how often the text was gone through before, and which of its rows it is."""
        text = 0
        while number >= self._drawn[text]:
            number -= self._drawn[text]
            text += 1
        pass_, place = divmod(self.epoch * self._drawn[text] + number, self.rows[text])
        return text, pass_, int(self._pass(text, pass_)[place])

    def _span(self, text: int, number: int) -> tuple[int, int]:
        """Where a row begins and ends in the stream of its text."""
        ends = self._ends[text]
        return int(ends[number - 1]) if number else 0, int(ends[number])

    def _drawn_segments(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """0 for the first lines and 1 for those after; all 0 where there is one line."""
        # Where a line begins that is not the first.
        begins = (tokens[:-1] == self.pieces.sep).nonzero().squeeze(1) + 1
        if not len(begins):
            return torch.zeros_like(tokens)
        begin = begins[torch.randint(len(begins), (), generator=generator)]
        return (torch.arange(len(tokens)) >= begin).long()

    def _hidden(self, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens with some of them hidden, and what those were."""
        target = torch.full_like(tokens, IGNORE_INDEX)
        candidates = (~self._special[tokens]).nonzero().squeeze(1)
        if not len(candidates):
            return tokens, target
        number = max(1, round(self.masking.share * len(candidates)))
        chosen = candidates[torch.randperm(len(candidates), generator=generator)[:number]]
        target[chosen] = tokens[chosen]
        kinds = torch.rand(number, generator=generator)
        drawn = self._ordinary[torch.randint(len(self._ordinary), (number,), generator=generator)]
        is_masked, is_random = kinds < self.masking.masked, kinds < self.masking.masked + self.masking.random
        tokens[chosen] = torch.where(
            is_masked, torch.tensor(self.pieces.mask), torch.where(is_random, drawn, tokens[chosen])
        )
        return tokens, target

    def _shared_out(self) -> list[int]:
        """How many rows of each text an epoch has."""
        if self.shares is None:
            return self.rows
        return [max(1, round(part * sum(self.rows))) for part in self.shares]

    def _draw_epoch(self, epoch: int) -> Tensor:
        return draw_order(sum(self._drawn), None if self.in_order else self.seed, epoch, "rows of texts")

    def _draw_pass(self, text: int, pass_: int) -> Tensor:
        return draw_order(self.rows[text], None if self.in_order else self.seed, pass_, f"rows of {self.names[text]}")

    def _made_of(self) -> dict[str, Any]:
        return {
            "texts": self.names,
            "num_tokens": [len(tokens) for tokens in self.streams.values()],
            "drawn": self._drawn,
            "pieces": len(self.pieces),
            "block": self.block,
            "batch_size": self.batch_size,
            "masking": [self.masking.share, self.masking.masked, self.masking.random],
            "two_segments": self.two_segments,
            "in_order": self.in_order,
            "seed": self.seed,
        }


def _row_ends(tokens: Tensor, sep: int, most: int) -> Tensor:
    """Where rows end that hold as many neighbouring lines as fit; lines that are longer are cut."""
    rows, start, last = array("q"), 0, 0
    for end in numbers(sentence_ends(tokens, sep)):
        if end - start > most and last > start:
            rows.append(last)
            start = last
        while end - start > most:
            start += most
            rows.append(start)
        last = end
    if last > start:
        rows.append(last)
    return torch.tensor(rows)
