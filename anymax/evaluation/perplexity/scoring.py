"""The loss of every token of a stream, whatever the length of the stream.

A window is what is read together; every token is scored in exactly one window.

Shapes: B rows of a call, T tokens of the longest row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.data.batches.batches import IGNORE_INDEX, check_read, check_stream, fill_read
from anymax.distributed.ranks import Ranks, share
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


@dataclass(frozen=True)
class Windows:
    """How a stream is divided into windows that together score every token once, in order.

    The first window scores all its tokens; every later one begins `context` tokens before those it scores, so that a
    token is predicted from at least `context` + 1 and at most `block` tokens before it (from fewer in the first
    window). A model that carries a state reads the stream from end to end instead.

    Args:
        block: tokens of a window at most. For a model that carries a state, tokens of a call, which does not change the
            losses.
        context: tokens of a window that are not scored; less than `block`. Must be 0 where a state is carried.
        kind: "contiguous" fills every window. "sentences" scores whole sentences, as many as fit, and "single" one
            sentence in each; a sentence too long for a window is cut.
        first: "block" scores all of the first `block` tokens in one window. "stride" has every window score at most
            `block` - `context` tokens, as fairseq's `--context-window` does, so that the first windows are shorter.
            Contiguous windows give the same losses where `context` is a multiple of `block` - `context`. Must be
            "block" where a state is carried.
        rows: for models that carry a state: the number of parallel rows the stream is cut into. Faster, but each row
            starts without a state, so only 1 is exact.

    Example:
        >>> from anymax.evaluation import Windows, token_losses
        >>> from anymax.models import TransformerConfig, TransformerLM
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = TransformerLM(FixedInput(10, 16), FullOutput(10, 16), TransformerConfig(16, 1, 2, 32))
        >>> tokens = torch.randint(10, (20,))
        >>> windows = Windows(block=8, context=4)  # at least 4 earlier tokens are read for each, but for the first ones
        >>> sum(len(span.tokens) for span in token_losses(model, tokens, windows, eos=0))
        20
    """

    block: int
    context: int = 0
    kind: WindowKind = "contiguous"
    first: FirstWindow = "block"
    rows: int = 1

    def __post_init__(self) -> None:
        check_counts(block=self.block, rows=self.rows)
        if not 0 <= self.context < self.block:
            raise ValueError(f"context must be between 0 and {self.block - 1}, one less than block, got {self.context}")
        if self.kind not in get_args(WindowKind):
            raise ValueError(f"kind must be one of {get_args(WindowKind)}, got {self.kind!r}")
        if self.first not in get_args(FirstWindow):
            raise ValueError(f"first must be one of {get_args(FirstWindow)}, got {self.first!r}")

    def check(self, num_tokens: int, *, carries_state: bool) -> None:
        """Refuse a stream or a model that these windows do not suit."""
        if self.rows > num_tokens:
            raise ValueError(f"rows must be at most the {num_tokens} tokens there are, got {self.rows}")
        if not carries_state and self.rows != 1:
            raise ValueError(
                f"rows must be 1 for a model that carries no state, got {self.rows}; batch_tokens makes batches"
            )
        for name, only in (("context", 0), ("kind", "contiguous"), ("first", "block")) if carries_state else ():
            if getattr(self, name) != only:
                raise ValueError(
                    f"{name} must be {only!r} for a model that carries a state, got {getattr(self, name)!r}; leave it "
                    "out, the stream is read without windows"
                )

    def over(self, tokens: Tensor, *, eos: int) -> Iterator[Window]:
        """The windows of a stream that is read without a state."""
        scored = 0
        while scored < len(tokens):
            start = max(0, scored - self.context)
            end = min(start + self.block if self.first == "block" else scored + self.block - self.context, len(tokens))
            if self.kind == "single" or (self.kind == "sentences" and end < len(tokens)):
                end = _sentence_end(tokens, scored, end, eos, which=0 if self.kind == "single" else -1)
            yield Window(start, scored, end)
            scored = end


class Scored(NamedTuple):
    """A span of the stream and its losses, all on the CPU.

    Example:
        >>> from anymax.evaluation import Windows, token_losses
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> span = next(token_losses(model, torch.tensor([3, 4, 0]), Windows(8), eos=0))
        >>> span.start, span.tokens.tolist(), span.losses.shape
        (0, [3, 4, 0], torch.Size([3]))
    """

    start: int
    """The position of the first token in the stream."""
    tokens: Tensor
    """The tokens, int64, one dimension."""
    losses: Tensor
    """The loss of each; in nats where the output is a likelihood."""


def token_losses(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    read: Tensor | None = None,
    batch_tokens: int = BATCH_TOKENS,
    ranks: Ranks = Ranks(),
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """The loss of every token of a stream, each computed once, span by span from the front.

    "<eos>" is read before the first token. While it runs the model is in evaluation mode and its losses are not
    smoothed; afterwards it is as it was. Only the model's forward is called, `model(ids, target, "none")`, and with the
    cache as a fourth argument where a state is carried, so a model that is wrapped for training serves too.

    Args:
        model: a language model, or what wraps one.
        tokens: the stream, one dimension of integers; may be mapped from a file.
        windows: how the stream is divided.
        eos: the id that ends a sentence.
        read: the ids that the model reads where they are others than those it predicts, one for each token.
        batch_tokens: the most tokens given to the model at once; at least one window is.
        ranks: score this rank's share. All ranks call the model equally often.
        progress: called with the tokens that all ranks scored so far, and all there are.

    Example:
        >>> from anymax.evaluation import Windows, token_losses
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> spans = token_losses(model, torch.randint(10, (20,)), Windows(8), eos=0)
        >>> torch.cat([span.losses for span in spans]).shape
        torch.Size([20])
    """
    check_stream(tokens)
    check_counts(batch_tokens=batch_tokens)
    carries_state = language_model(model).carries_state
    windows.check(len(tokens), carries_state=carries_state)
    block, rows = windows.block, windows.rows
    if carries_state:
        batches = carried_batches(len(tokens), rows=rows, block=min(block, max(1, batch_tokens // rows)))
    else:
        batches = batched(windows.over(tokens, eos=eos), max(1, batch_tokens // block) * ranks.world_size)
    return _score(model, tokens, check_read(tokens, read), batches, eos, ranks, progress)


def batched(windows: Iterable[Window], size: int) -> Iterator[list[Window]]:
    """Lists of `size` windows; the last may have fewer."""
    windows = iter(windows)
    while batch := list(islice(windows, size)):
        yield batch


def carried_batches(num_tokens: int, *, rows: int, block: int) -> Iterator[list[Window]]:
    """The stream cut into parallel rows, of which each batch reads the next `block` tokens.

    Rows differ in length by one token at most. A finished row stays, empty, so that rows keep their places.
    """
    edges = [share(num_tokens, row, rows) for row in range(rows)]
    longest = max(end - start for start, end in edges)
    for done in range(0, longest, block):
        spans = [(min(start + done, end), min(start + done + block, end)) for start, end in edges]
        yield [Window(start, start, end) for start, end in spans]


def scored_spans(windows: Iterable[Window]) -> list[tuple[int, int]]:
    """The tokens that windows score, as spans without gaps, each as its start and end."""
    spans: list[tuple[int, int]] = []
    for _, scored, end in windows:
        if spans and spans[-1][1] == scored:
            spans[-1] = (spans[-1][0], end)
        elif scored < end:
            spans.append((scored, end))
    return spans


def language_model(model: nn.Module) -> LanguageModel:
    """The language model inside whatever wraps it."""
    for module in model.modules():
        if isinstance(module, LanguageModel):
            return module
    raise TypeError(f"model must be a LanguageModel of anymax.models, or wrap one, got {type(model).__name__}")


# On a generator it holds only while the generator runs.
@torch.no_grad()
def _score(
    model: nn.Module,
    tokens: Tensor,
    read: Tensor,
    batches: Iterator[list[Window]],
    eos: int,
    ranks: Ranks,
    progress: Progress | None,
) -> Iterator[Scored]:
    device = next(model.parameters()).device
    inner = language_model(model)
    state = (inner.new_cache(len(tokens)),) if inner.carries_state else ()
    num_scored = 0
    with evaluating(model):
        for windows in batches:
            first, end = share(len(windows), ranks.rank, ranks.world_size)
            mine = windows[first:end]
            ids_BT, target_BT = _gather(tokens, read, mine, eos)
            losses_BT = model(ids_BT.to(device), target_BT.to(device), "none", *state)
            counted_BT = target_BT != IGNORE_INDEX
            yield from _by_span(mine, target_BT[counted_BT], losses_BT.cpu()[counted_BT])
            num_scored += sum(window.end - window.scored for window in windows)
            if progress is not None:
                progress(num_scored, len(tokens))


def _gather(tokens: Tensor, read: Tensor, windows: Sequence[Window], eos: int) -> tuple[Tensor, Tensor]:
    """The ids read and the targets; a rank without windows gets a row without targets."""
    windows = windows or [Window(0, 0, 0)]
    width = max(1, *(window.end - window.start for window in windows))
    ids_BT = torch.full((len(windows), width), eos)
    target_BT = torch.full((len(windows), width), IGNORE_INDEX)
    for row, (start, scored, end) in enumerate(windows):
        fill_read(ids_BT[row], read, start, end)
        target_BT[row, scored - start : end - start] = tokens[scored:end].long()
    return ids_BT, target_BT


def _by_span(windows: Sequence[Window], tokens: Tensor, losses: Tensor) -> Iterator[Scored]:
    spans = scored_spans(windows)
    sizes = [end - start for start, end in spans]
    for (start, _), of_tokens, of_losses in zip(spans, tokens.split(sizes), losses.split(sizes), strict=True):
        yield Scored(start, of_tokens, of_losses)


def _sentence_end(tokens: Tensor, start: int, end: int, eos: int, *, which: int) -> int:
    """Where the first or last sentence of a span ends; the end of the span where none does."""
    ends = (tokens[start:end] == eos).nonzero()
    return start + int(ends[which]) + 1 if len(ends) else end
