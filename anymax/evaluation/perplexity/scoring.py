"""The loss of every token of a stream, whatever the length of the stream.

A window is what is read together; every token is scored in exactly one window.

Shapes: B rows of a call, T tokens of the longest row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.data.batches.batches import IGNORE_INDEX, check_stream, fill_read
from anymax.distributed.ranks import share
from anymax.models.language_model.model import LanguageModel, evaluating

BATCH_TOKENS = 8192


Progress = Callable[[int, int], None]


WindowKind = Literal["contiguous", "sentences", "single"]


FirstWindow = Literal["block", "stride"]


class Window(NamedTuple):
    """A model predicts the tokens from `start` to `end` in one row; those from `scored` on count."""

    start: int
    scored: int
    end: int


class Scored(NamedTuple):
    """A stretch of the stream and its losses, all on the CPU."""

    start: int
    """Where in the stream the first of the tokens stands."""
    tokens: Tensor
    """The tokens, int64, one dimension."""
    losses: Tensor
    """The loss of each; in nats where the output is a likelihood."""


def token_losses(
    model: nn.Module,
    tokens: Tensor,
    *,
    eos: int,
    block: int,
    context: int = 0,
    windows: WindowKind = "contiguous",
    first_window: FirstWindow = "block",
    rows: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    device: torch.device | str | None = None,
    rank: int = 0,
    world_size: int = 1,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """The loss of every token of a stream, each computed once, stretch by stretch from the front.

    What is read before the first token is "<eos>". A Transformer reads windows of `block` tokens; the first `context`
    of each are only read, so that a token is predicted from at least `context` + 1 and at most `block` tokens before
    it (from fewer in the first window). A model that carries a state reads the stream from end to end.

    While it runs the model is in evaluation mode and its losses are not smoothed; afterwards it is as it was. Only the
    model's forward is called, `model(ids, target, "none")`, and with the cache as a fourth argument where a state is
    carried, so a model that is wrapped for training serves too.

    Args:
        model: a language model, or what wraps one.
        tokens: the stream, one dimension of integers; may be mapped from a file.
        eos: the id that ends a sentence.
        block: how many tokens are read together. For a model that carries a state, how many at a time; that does not
            change the losses.
        context: how many tokens of a window are not scored; less than `block`. Must be 0 where a state is carried.
        windows: "contiguous", "sentences" for windows that score whole sentences, or "single" for one sentence in each;
            a sentence too long for a window is cut.
        first_window: "block" scores all of the first `block` tokens in one window. "stride" has every window score at
            most `block` - `context` tokens, as fairseq's `--context-window` does, so that the first windows are
            shorter. Either way all tokens are scored once; contiguous windows give the same losses where `context` is
            a multiple of `block` - `context`. Must be "block" where a state is carried.
        rows: for models that carry a state: read the stream as so many parallel rows. Faster, but each row starts
            without a state, so only 1 is exact.
        batch_tokens: the most tokens given to the model at once; at least one window is.
        device: where the model computes; by default where its parameters are.
        rank, world_size: score this rank's share. All ranks call the model equally often.
        progress: called with the tokens that all ranks scored so far, and all there are.
    """
    _check(tokens, block, context, windows, first_window, rows, batch_tokens, rank, world_size)
    carries_state = language_model(model).carries_state
    if carries_state and (context or windows != "contiguous"):
        raise ValueError(
            f"context must be 0 and windows 'contiguous' for a model that carries a state, got {context} and "
            f"{windows!r}; leave them out, the state is the context"
        )
    if carries_state and first_window != "block":
        raise ValueError(
            f"first_window must be 'block' for a model that carries a state, got {first_window!r}; leave it out, the "
            "stream is read without windows"
        )
    if not carries_state and rows != 1:
        raise ValueError(f"rows must be 1 for a model that carries no state, got {rows}; batch_tokens makes batches")
    if carries_state:
        rounds = carried_rounds(len(tokens), rows=rows, block=min(block, max(1, batch_tokens // rows)))
    else:
        each = windows_over(tokens, windows, eos=eos, block=block, context=context, first_window=first_window)
        rounds = in_rounds(each, max(1, batch_tokens // block) * world_size)
    return _score(model, tokens, rounds, eos, device, (rank, world_size), progress)


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


def language_model(model: nn.Module) -> LanguageModel:
    """The language model inside whatever wraps it."""
    for module in model.modules():
        if isinstance(module, LanguageModel):
            return module
    raise TypeError(f"model must be a LanguageModel of anymax.models, or wrap one, got {type(model).__name__}")


# Decorating a generator, it holds only while the generator runs.
@torch.no_grad()
def _score(
    model: nn.Module,
    tokens: Tensor,
    rounds: Iterator[list[Window]],
    eos: int,
    device: torch.device | str | None,
    ranks: tuple[int, int],
    progress: Progress | None,
) -> Iterator[Scored]:
    device = next(model.parameters()).device if device is None else device
    inner = language_model(model)
    state = (inner.new_cache(len(tokens)),) if inner.carries_state else ()
    num_scored = 0
    with evaluating(model):
        for windows in rounds:
            first, end = share(len(windows), *ranks)
            mine = windows[first:end]
            ids_BT, target_BT = _gather(tokens, mine, eos)
            losses_BT = model(ids_BT.to(device), target_BT.to(device), "none", *state)
            counted_BT = target_BT != IGNORE_INDEX
            yield from _by_stretch(mine, target_BT[counted_BT], losses_BT.cpu()[counted_BT])
            num_scored += sum(window.end - window.scored for window in windows)
            if progress is not None:
                progress(num_scored, len(tokens))


def _gather(tokens: Tensor, windows: Sequence[Window], eos: int) -> tuple[Tensor, Tensor]:
    """What is read and what is predicted; a rank without windows gets a row without targets."""
    windows = windows or [Window(0, 0, 0)]
    width = max(1, *(window.end - window.start for window in windows))
    ids_BT = torch.full((len(windows), width), eos)
    target_BT = torch.full((len(windows), width), IGNORE_INDEX)
    for row, (start, scored, end) in enumerate(windows):
        fill_read(ids_BT[row], tokens, start, end)
        target_BT[row, scored - start : end - start] = tokens[scored:end].long()
    return ids_BT, target_BT


def _by_stretch(windows: Sequence[Window], tokens: Tensor, losses: Tensor) -> Iterator[Scored]:
    found = stretches(windows)
    sizes = [end - start for start, end in found]
    for (start, _), of_tokens, of_losses in zip(found, tokens.split(sizes), losses.split(sizes), strict=True):
        yield Scored(start, of_tokens, of_losses)


def _check(
    tokens: Tensor,
    block: int,
    context: int,
    windows: str,
    first_window: str,
    rows: int,
    batch_tokens: int,
    rank: int,
    world_size: int,
) -> None:
    check_stream(tokens)
    check_counts(block=block, rows=rows, batch_tokens=batch_tokens, world_size=world_size)
    if not 0 <= context < block:
        raise ValueError(f"context must be between 0 and {block - 1}, one less than block, got {context}")
    if windows not in get_args(WindowKind):
        raise ValueError(f"windows must be one of {get_args(WindowKind)}, got {windows!r}")
    if first_window not in get_args(FirstWindow):
        raise ValueError(f"first_window must be one of {get_args(FirstWindow)}, got {first_window!r}")
    if rows > len(tokens):
        raise ValueError(f"rows must be at most the {len(tokens)} tokens there are, got {rows}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be between 0 and {world_size - 1}, one less than world_size, got {rank}")


def _sentence_end(tokens: Tensor, start: int, end: int, eos: int, *, which: int) -> int:
    """Where the first or last sentence of a stretch ends; the end of the stretch where none does."""
    ends = (tokens[start:end] == eos).nonzero()
    return start + int(ends[which]) + 1 if len(ends) else end
