"""The loss of every token: each once, from what the window promises, in any batches, on any number of ranks."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anymax.distributed.ranks import Ranks
from anymax.evaluation import Scored, Windows, token_losses
from anymax.models import LSTMLM, LanguageModel, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, FixedInput, FullOutput, OutputLayer
from tests.each import each

EOS, V, PRIME = 0, 20, 10_007


pytestmark = pytest.mark.usefixtures("one_thread")


class Reader(LanguageModel):
    """A model whose loss tells what it read, in order, and what it predicted; it notes the shapes of its calls."""

    carries_state = False

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Identity()
        self.output: OutputLayer = FullOutput(2, 2)
        self.calls: list[tuple[int, int]] = []
        self.has_gradients: list[bool] = []

    def forward(self, ids: Tensor, target: Tensor, reduction: str = "mean", cache: Any = None) -> Tensor:
        assert reduction == "none" and not self.training
        self.calls.append((ids.shape[0], ids.shape[1]))
        self.has_gradients.append(torch.is_grad_enabled())
        state = ids.new_zeros(len(ids)) if cache is None or not cache else cache[0]
        losses = []
        for read, wanted in zip(ids.unbind(1), target.unbind(1), strict=True):
            state = digest(state, read)
            losses.append(torch.where(wanted == -100, 0, state + wanted * PRIME).double())
        if cache is not None:
            cache[:] = [state]
        return torch.stack(losses, 1)

    def hidden(self, ids: Tensor, cache: Any = None) -> Tensor:
        raise AssertionError("only forward may be called")

    def new_cache(self, max_length: int) -> Any:
        return []

    def layers(self) -> list[nn.Module]:
        return []


class Carrier(Reader):
    """The same with a state that is carried."""

    carries_state = True


def digest(state: Any, token: Any) -> Any:
    return (state * 31 + token + 1) % PRIME


def loss_by_hand(tokens: list[int], position: int, start: int) -> float:
    """What `Reader` must say of a token whose window begins at `start`."""
    state = 0
    for read in [EOS, *tokens][start : position + 1]:
        state = digest(state, read)
    return state + tokens[position] * PRIME


def stream(length: int, sentence: int = 7) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[torch.rand(length) < 1 / sentence] = EOS
    return tokens


def in_order(scored: Iterator[Scored]) -> tuple[list[int], list[int], list[float]]:
    """Positions, tokens and losses."""
    positions, tokens, losses = [], [], []
    for stretch in scored:
        positions += range(stretch.start, stretch.start + len(stretch.tokens))
        tokens += stretch.tokens.tolist()
        losses += stretch.losses.tolist()
    return positions, tokens, losses


def test_another_stream_may_be_read_than_is_scored() -> None:
    tokens = stream(40)
    read = torch.where(tokens % 3 == 1, tokens + V, tokens)
    _, scored, losses = in_order(token_losses(Reader(), tokens, Windows(9, context=3), eos=EOS, read=read))
    assert scored == tokens.tolist()
    for position, loss in enumerate(losses):
        start = 6 * max(0, -(-(position - 8) // 6))
        of_read = loss_by_hand(read.tolist(), position, start)
        assert loss == of_read + (int(tokens[position]) - int(read[position])) * PRIME
    with pytest.raises(ValueError, match="read must have one id for each of the 40 tokens, got 39"):
        token_losses(Reader(), tokens, Windows(9), eos=EOS, read=read[1:])


SIZES = [(1, 1, 0), (1, 5, 3), (5, 5, 0), (6, 5, 0), (6, 5, 4), (3, 5, 4), (40, 1, 0), (41, 7, 0), (41, 7, 3)]
SIZES += [(42, 7, 6), (43, 8, 4), (44, 8, 4), (45, 64, 10), (64, 64, 63), (65, 64, 63), (100, 16, 12)]


@each(("length", "block", "context"), SIZES)
@each("batch_tokens", [1, 24, 10_000])
def test_every_token_is_scored_once_in_order_from_exactly_its_window(
    length: int, block: int, context: int, batch_tokens: int
) -> None:
    tokens = stream(length)
    positions, scored, losses = in_order(
        token_losses(Reader(), tokens, Windows(block, context=context), eos=EOS, batch_tokens=batch_tokens)
    )
    assert positions == list(range(length)) and scored == tokens.tolist()
    stride = block - context
    for position, loss in enumerate(losses):
        # The window is the first whose end lies behind the token; window k begins at k * stride.
        start = stride * max(0, -(-(position - block + 1) // stride))
        assert position < block or position - start >= context
        assert loss == loss_by_hand(tokens.tolist(), position, start)


def sentence_windows(tokens: list[int], block: int, context: int) -> list[tuple[int, int, int]]:
    """(start, scored, end), found sentence by sentence."""
    windows, scored = [], 0
    while scored < len(tokens):
        start = max(0, scored - context)
        ends = [end for end in range(scored + 1, len(tokens) + 1) if end == len(tokens) or tokens[end - 1] == EOS]
        fitting = [end for end in ends if end - start <= block]
        end = max(fitting) if fitting else start + block
        windows.append((start, scored, end))
        scored = end
    return windows


@each(("block", "context"), [(1, 0), (8, 0), (8, 5), (20, 0), (20, 8), (20, 19), (200, 100)])
@each("batch_tokens", [1, 61])
def test_sentence_windows_score_whole_sentences_and_cut_only_what_cannot_fit(
    block: int, context: int, batch_tokens: int
) -> None:
    tokens = stream(150)
    tokens[60:100] = 3
    model = Reader()
    positions, _, losses = in_order(
        token_losses(
            model, tokens, Windows(block, context=context, kind="sentences"), eos=EOS, batch_tokens=batch_tokens
        )
    )
    assert positions == list(range(150))
    expected = [
        loss_by_hand(tokens.tolist(), position, start)
        for start, scored, end in sentence_windows(tokens.tolist(), block, context)
        for position in range(scored, end)
    ]
    assert losses == expected
    assert max(width for _, width in model.calls) <= block


def windows_of_fairseq(tokens: list[int], block: int, context: int, *, whole: bool) -> list[tuple[int, int, int]]:
    """(start, scored, end): the text in samples of `block` - `context` tokens, each after those last read before it."""
    most, parts = block - context, [[]]
    for token in tokens:
        if parts[-1] and (not whole or len(parts[-1]) == most or parts[-1][-1] == EOS):
            parts.append([])
        parts[-1].append(token)
    samples = [[]]
    for part in parts:
        if len(samples[-1]) + len(part) > most:
            samples.append([])
        samples[-1] += part
    windows, read = [], 0
    for sample in samples:
        windows.append((read - min(read, context), read, read + len(sample)))
        read += len(sample)
    return windows


def test_windows_of_one_stride_read_what_fairseq_reads() -> None:
    for length, block, context in [*SIZES, (150, 8, 5), (150, 20, 8), (150, 16, 12), (150, 200, 100)]:
        tokens = stream(length)
        for kind in ("contiguous", "sentences"):
            expected = windows_of_fairseq(tokens.tolist(), block, context, whole=kind == "sentences")
            model = Reader()
            positions, _, losses = in_order(
                token_losses(
                    model, tokens, Windows(block, context=context, kind=kind, first="stride"), eos=EOS, batch_tokens=24
                )
            )
            assert positions == list(range(length))
            assert losses == [
                loss_by_hand(tokens.tolist(), position, start)
                for start, scored, end in expected
                for position in range(scored, end)
            ]
            assert max(width for _, width in model.calls) <= block


def test_the_first_window_changes_no_loss_where_the_context_is_a_multiple_of_the_stride() -> None:
    tokens = stream(150)
    for block, context, is_same in [(8, 0, True), (8, 4, True), (16, 12, True), (20, 12, False), (16, 5, False)]:
        by_block, by_stride = (
            in_order(token_losses(Reader(), tokens, Windows(block, context=context, first=first), eos=EOS))
            for first in ("block", "stride")
        )
        assert (by_block == by_stride) is is_same


def test_a_written_out_case_of_sentence_windows() -> None:
    tokens = torch.tensor([1, 2, 0, 3, 0, 4, 5, 6, 7, 8, 9, 0, 1, 0])
    stretches = token_losses(Reader(), tokens, Windows(5, kind="sentences"), eos=EOS, batch_tokens=1)
    # Two sentences; five tokens of one that is too long; its rest with the sentence behind it.
    assert [stretch.tokens.tolist() for stretch in stretches] == [[1, 2, 0, 3, 0], [4, 5, 6, 7, 8], [9, 0, 1, 0]]


def test_single_windows_read_one_sentence_each() -> None:
    tokens = torch.tensor([1, 2, 0, 3, 0, 4, 5, 6, 7, 8, 9, 0, 1, 0])
    stretches = list(token_losses(Reader(), tokens, Windows(5, kind="single"), eos=EOS, batch_tokens=1))
    windows = [[1, 2, 0], [3, 0], [4, 5, 6, 7, 8], [9, 0], [1, 0]]
    assert [stretch.tokens.tolist() for stretch in stretches] == windows
    by_hand = [
        loss_by_hand(tokens.tolist(), stretch.start + place, stretch.start)
        for stretch in stretches
        for place in range(len(stretch.tokens))
    ]
    assert torch.cat([stretch.losses for stretch in stretches]).tolist() == by_hand


@each("block", [1, 7, 50, 1000])
@each("batch_tokens", [1, 9, 10_000])
def test_a_carried_state_reads_the_whole_stream(block: int, batch_tokens: int) -> None:
    tokens = stream(103)
    positions, _, losses = in_order(token_losses(Carrier(), tokens, Windows(block), eos=EOS, batch_tokens=batch_tokens))
    assert positions == list(range(103))
    assert losses == [loss_by_hand(tokens.tolist(), position, 0) for position in range(103)]


@each("rows", [2, 3, 10, 29])
@each("block", [1, 4, 14, 50])
def test_parallel_rows_score_every_token_once_from_the_start_of_its_row(rows: int, block: int) -> None:
    tokens, model = stream(29), Carrier()
    positions, _, losses = in_order(token_losses(model, tokens, Windows(block, rows=rows), eos=EOS))
    loss_at = dict(zip(positions, losses, strict=True))
    assert sorted(positions) == list(range(29)) and len(loss_at) == 29
    # The first rows are longer by one where they cannot all be equal.
    lengths = [29 // rows + (row < 29 % rows) for row in range(rows)]
    starts = [sum(lengths[:row]) for row in range(rows)]
    for position, loss in loss_at.items():
        start = max(start for start in starts if start <= position)
        assert loss == loss_by_hand(tokens.tolist(), position, start)
    assert {batch for batch, _ in model.calls} == {rows}


@each("world_size", [2, 3])
@each(
    ("make", "windows", "batch_tokens"),
    [
        (Reader, Windows(8, context=3), 16),
        (Reader, Windows(200), 1),
        (Reader, Windows(12, kind="sentences"), 30),
        (Carrier, Windows(9), 8192),
        (Carrier, Windows(9, rows=4), 8192),
    ],
)
def test_ranks_share_the_tokens_and_call_the_model_equally_often(
    world_size: int, make: type[Reader], windows: Windows, batch_tokens: int
) -> None:
    tokens = stream(103)
    alone = in_order(token_losses(make(), tokens, windows, eos=EOS, batch_tokens=batch_tokens))
    models, shares, seen = [make() for _ in range(world_size)], [], []
    for rank, model in enumerate(models):
        reports: list[tuple[int, int]] = []
        share = token_losses(
            model,
            tokens,
            windows,
            eos=EOS,
            batch_tokens=batch_tokens,
            ranks=Ranks(rank, world_size),
            progress=lambda *report, reports=reports: reports.append(report),
        )
        shares += zip(*in_order(share), strict=True)
        seen.append(reports)
    assert sorted(shares) == sorted(zip(*alone, strict=True))
    assert len({len(model.calls) for model in models}) == 1
    assert all(reports == seen[0] and reports[-1] == (103, 103) for reports in seen)


def test_memory_does_not_grow_with_the_stream() -> None:
    # A stream of a million million tokens that all lie in one place of memory.
    tokens = torch.full((1,), 3, dtype=torch.uint16).expand(10**12)
    for options in ({}, {"context": 4}, {"context": 31}, {"kind": "sentences"}, {"kind": "single"}):
        model = Reader()
        scored = token_losses(model, tokens, Windows(32, **options), eos=EOS, batch_tokens=200)
        assert sum(len(stretch.tokens) for stretch in islice(scored, 5)) <= 5 * 200
        assert max(rows * width for rows, width in model.calls) == 6 * 32
        scored.close()
    for rows, largest in ((1, 32), (10, 200), (300, 300)):
        carrier = Carrier()
        next(token_losses(carrier, tokens, Windows(32, rows=rows), eos=EOS, batch_tokens=200))
        assert max(batch * width for batch, width in carrier.calls) == largest


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32, torch.int64])
def test_streams_of_every_integer_type_are_read(dtype: torch.dtype) -> None:
    tokens = stream(30)
    by_dtype, usual = (
        in_order(token_losses(Reader(), ids, Windows(8, context=3), eos=EOS)) for ids in (tokens.to(dtype), tokens)
    )
    assert by_dtype == usual


BANDS = Bands.from_sizes((6, 8, 6), dim=8, factor=2)


def transformer(output: OutputLayer | None = None, dropout: float = 0.0) -> TransformerLM:
    config = TransformerConfig(16, 2, 2, 24, dropout=dropout)
    return TransformerLM(AdaptiveInput(BANDS, 16), output or AdaptiveOutput(BANDS, 16), config)


@pytest.mark.parametrize(("block", "context"), [(12, 0), (12, 7), (12, 11)])
def test_losses_of_a_transformer_are_those_of_each_window_alone(block: int, context: int) -> None:
    model, tokens = transformer(dropout=0.5), stream(60)
    batched, single = (
        torch.cat(
            [s.losses for s in token_losses(model, tokens, Windows(block, context=context), eos=EOS, batch_tokens=n)]
        )
        for n in (100, 1)
    )
    torch.testing.assert_close(batched, single, rtol=0, atol=1e-5)
    model.eval()
    read = torch.cat([torch.tensor([EOS]), tokens])
    for position in (0, 5, 11, 12, 13, 30, 59):
        stride = block - context
        start = stride * max(0, -(-(position - block + 1) // stride))
        hidden = model.hidden(read[None, start : position + 1])[0, -1]
        torch.testing.assert_close(
            batched[position], -model.output.log_probs(hidden)[tokens[position]], rtol=0, atol=1e-5
        )


def test_losses_of_an_lstm_are_those_of_one_pass() -> None:
    model = LSTMLM(FixedInput(V, 6), FullOutput(V, 8), LSTMConfig(6, 8, 2, dropout=0.5))
    tokens = stream(50)
    losses = torch.cat([s.losses for s in token_losses(model, tokens, Windows(7), eos=EOS)])
    model.eval()
    whole = model(torch.cat([torch.tensor([EOS]), tokens[:-1]])[None], tokens[None], "none")[0]
    torch.testing.assert_close(losses, whole.detach(), rtol=0, atol=1e-5)


def test_a_smoothed_loss_is_measured_without_smoothing() -> None:
    model, tokens = transformer(FullOutput(V, 16, label_smoothing=0.3)), stream(20)
    losses = torch.cat([s.losses for s in token_losses(model, tokens, Windows(20), eos=EOS)])
    read = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
    torch.testing.assert_close(losses, -model.output.log_prob(model.hidden(read), tokens[None])[0].detach())
    assert model.output.label_smoothing == 0.3
    assert not torch.allclose(losses, model(read, tokens[None], "none")[0])


def test_the_model_is_left_as_it_was_and_gradients_are_off_only_while_it_computes() -> None:
    model = Reader()
    model.output.eval()
    for stretch in token_losses(model, stream(20), Windows(8), eos=EOS, batch_tokens=8):
        assert torch.is_grad_enabled() and not stretch.losses.requires_grad
    assert model.training and not model.output.training
    assert not any(model.has_gradients)
    halfway = token_losses(model, stream(20), Windows(8), eos=EOS, batch_tokens=8)
    next(halfway)
    halfway.close()
    assert model.training and not model.output.training


def test_progress_tells_the_tokens_scored() -> None:
    reports: list[tuple[int, int]] = []
    list(
        token_losses(
            Reader(), stream(20), Windows(8), eos=EOS, batch_tokens=8, progress=lambda *report: reports.append(report)
        )
    )
    assert reports == [(8, 20), (16, 20), (20, 20)]


class Wrapper(nn.Module):
    """Calls the model it holds, as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> Tensor:
        return self.module(*arguments)


@pytest.mark.parametrize("make", [Reader, Carrier])
def test_a_wrapped_model_is_called_through_its_wrapper(make: type[Reader]) -> None:
    tokens = stream(30)
    bare = in_order(token_losses(make(), tokens, Windows(8), eos=EOS))
    assert in_order(token_losses(Wrapper(make()), tokens, Windows(8), eos=EOS)) == bare


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
        ({"windows": Windows(8, rows=2)}, "rows must be 1 for a model that carries no state, got 2"),
        ({"tokens": torch.zeros(0, dtype=torch.int64)}, "tokens must be one dimension of integers and not empty"),
        ({"tokens": torch.zeros(3)}, r"got torch.float32 \(3,\)"),
        ({"model": Carrier(), "windows": Windows(8, context=2)}, "context must be 0 for a model that carries a state"),
        ({"model": Carrier(), "windows": Windows(8, kind="sentences")}, "kind must be 'contiguous' .* got 'sentences'"),
        ({"model": Carrier(), "windows": Windows(8, first="stride")}, "first must be 'block' .* got 'stride'"),
        ({"model": Carrier(), "windows": Windows(8, rows=21)}, "rows must be at most the 20 tokens there are, got 21"),
    ],
    ids=str,
)
def test_what_cannot_be_scored_is_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_losses(**{"model": Reader(), "tokens": stream(20), "eos": EOS, "windows": Windows(8)} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"context": 8}, "context must be between 0 and 7, one less than block, got 8"),
        ({"context": -1}, "context must be between 0 and 7"),
        ({"kind": "words"}, r"kind must be one of \('contiguous', 'sentences', 'single'\), got 'words'"),
        ({"first": "context"}, r"first must be one of \('block', 'stride'\), got 'context'"),
    ],
    ids=str,
)
def test_windows_that_score_no_token_once_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Windows(**{"block": 8} | options)


def test_a_module_that_is_no_language_model_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"model must be a LanguageModel of anymax\.models, or wrap one, got Linear"):
        token_losses(nn.Linear(2, 2), stream(20), Windows(8), eos=EOS)
