"""Windows over a stream of tokens: what is read together, and which of it is scored.

Every token is scored in exactly one window. Windows are made one after another while the stream is read, so a stream of
any length takes the same memory.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

from torch import Tensor

from anymax.data.batches.batches import share

WindowKind = Literal["contiguous", "sentences", "single"]
FirstWindow = Literal["block", "stride"]


class Window(NamedTuple):
    """A model predicts the tokens from `start` to `end` in one row; those from `scored` on count."""

    start: int
    scored: int
    end: int


def windows_over(
    tokens: Tensor, kind: WindowKind, *, eos: int, block: int, context: int, first_window: FirstWindow = "block"
) -> Iterator[Window]:
    """Windows of at most `block` tokens that together score every token once, in order.

    The first window scores all its tokens; every later one begins `context` tokens before those it scores.

    Args:
        kind: "contiguous" fills every window whatever lines it cuts. "sentences" scores whole sentences, as many as
            fit, and "single" one sentence in each; one that does not fit is cut where the window is full, so that no
            window is longer than `block`.
        first_window: "block" fills the first window with `block` tokens. "stride" lets no window score more than
            `block` - `context` tokens, as fairseq does, so that windows with less context are shorter.
    """
    scored = 0
    while scored < len(tokens):
        start = max(0, scored - context)
        end = min(start + block if first_window == "block" else scored + block - context, len(tokens))
        if kind == "single" or (kind == "sentences" and end < len(tokens)):
            end = _sentence_end(tokens, scored, end, eos, which=0 if kind == "single" else -1)
        yield Window(start, scored, end)
        scored = end


def in_rounds(windows: Iterable[Window], number: int) -> Iterator[list[Window]]:
    """So many windows at a time; the last round may have fewer."""
    windows = iter(windows)
    while taken := list(islice(windows, number)):
        yield taken


def carried_rounds(num_tokens: int, *, rows: int, block: int) -> Iterator[list[Window]]:
    """The stream cut into parallel rows, of which each round reads the next `block` tokens.

    Rows differ in length by one token at most. A row that is over stays, empty, so that rows keep their places.
    """
    edges = [share(num_tokens, row, rows) for row in range(rows)]
    longest = max(end - start for start, end in edges)
    for done in range(0, longest, block):
        spans = [(min(start + done, end), min(start + done + block, end)) for start, end in edges]
        yield [Window(start, start, end) for start, end in spans]


def stretches(windows: Iterable[Window]) -> list[tuple[int, int]]:
    """The tokens that windows score, as stretches without gaps, each as its start and end."""
    found: list[tuple[int, int]] = []
    for _, scored, end in windows:
        if found and found[-1][1] == scored:
            found[-1] = (found[-1][0], end)
        elif scored < end:
            found.append((scored, end))
    return found


def _sentence_end(tokens: Tensor, start: int, end: int, eos: int, *, which: int) -> int:
    """Where the first or last sentence of a stretch ends; the end of the stretch where none does."""
    ends = (tokens[start:end] == eos).nonzero()
    return start + int(ends[which]) + 1 if len(ends) else end
