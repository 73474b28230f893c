"""Perplexity, together with all it depends on: its unit, the number of units, and the tokens a model could read."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import check_stream
from anymax.distributed.ranks import Ranks
from anymax.evaluation.perplexity.scoring import (
    BATCH_TOKENS,
    FirstWindow,
    Progress,
    Scored,
    WindowKind,
    Windows,
    language_model,
    token_losses,
)
from anymax.vocabulary import OutputLayer

LIKELIHOOD = "negative log-probability"

END_OF_LINE = "one <eos> per line, scored"

Unit = Literal["word", "subword", "byte"]


@dataclass(frozen=True)
class Perplexity:
    """A loss per unit, and everything that a comparison with another number must know.

    Args:
        loss: per unit; in nats where it is a negative log-probability.
        unit: what the loss is divided by: "word", "subword" or "byte".
        num_units: the number of them; an "<eos>" counts as one.
        num_tokens: the number of tokens predicted; more than the units where words are made of subwords.
        block: the most tokens in a window; 0 where a model reads none.
        context: the number of them that were not scored.
        windows: "contiguous", "sentences", "single", or "carried" where a state was carried through the stream.
        first_window: whether the first window scored a whole "block", or no more than the "stride" of the others.
        rows: for "carried", the number of parallel rows.
        loss_name: the name of the loss.
        num_unknown: the number of "<unk>" tokens; None where they were not counted.
        num_bytes: of the text, for `bits_per_byte`; None where they were not counted.
        end_of_line: how the ends of lines were treated.

    Example:
        >>> from anymax.evaluation import Perplexity
        >>> measured = Perplexity(loss=4.605, unit="word", num_units=1000, num_tokens=1000, block=64)
        >>> print(measured)
        perplexity 99.98 per word (4.6050 nats) over 1,000 words; windows of 64 tokens, context 0, stride 64; one
        <eos> per line, scored
    """

    loss: float
    unit: Unit
    num_units: int
    num_tokens: int
    block: int
    context: int = 0
    windows: WindowKind | Literal["carried"] = "contiguous"
    first_window: FirstWindow = "block"
    rows: int = 1
    loss_name: str = LIKELIHOOD
    num_unknown: int | None = None
    num_bytes: int | None = None
    end_of_line: str = END_OF_LINE

    @property
    def is_likelihood(self) -> bool:
        """Whether the loss is a negative log-probability, so that a perplexity exists."""
        return self.loss_name == LIKELIHOOD

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss, infinite where it is too large for a float; None where it is no likelihood."""
        if not self.is_likelihood:
            return None
        # A tensor of one overflows to infinity, where math.exp raises.
        return torch.tensor(self.loss, dtype=torch.float64).exp().item()

    @property
    def bits_per_byte(self) -> float | None:
        """The information of the text by the model over its bytes; None without bytes or a likelihood."""
        if self.num_bytes is None or not self.is_likelihood:
            return None
        return self.loss * self.num_units / (math.log(2) * self.num_bytes)

    @property
    def stride(self) -> int:
        """The number of tokens a window scores; the first one scores `block` unless `first_window` says otherwise."""
        return self.block - self.context

    def sentence(self) -> str:
        """The number with all it depends on."""
        parts = [f"{self._value()} over {self._amount()}", self._reading(), self.end_of_line]
        if self.num_unknown is not None:
            parts.append(f"{self.num_unknown:,} of the tokens unknown")
        if self.bits_per_byte is not None:
            parts.append(f"{self.bits_per_byte:.4f} bits per byte over {self.num_bytes:,} bytes")
        return "; ".join(parts)

    def metrics(self) -> dict[str, float]:
        """The numbers that are logged at each evaluation of a run."""
        exact = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return {name: value for name, value in exact.items() if value is not None} | {
            f"num_{self.unit}s": self.num_units
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the derived ones too; null where a number is not finite."""
        derived = {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte, "stride": self.stride}
        return {name: _finite(value) for name, value in {**asdict(self), **derived}.items()}

    def __str__(self) -> str:
        return self.sentence()

    def _value(self) -> str:
        if self.perplexity is None:
            return f"{self.loss_name} {self.loss:.4f} per {self.unit} (no likelihood, so no perplexity)"
        shown = f"{self.perplexity:.2f}" if self.perplexity < 1e6 else f"{self.perplexity:.3e}"
        return f"perplexity {shown} per {self.unit} ({self.loss:.4f} nats)"

    def _amount(self) -> str:
        units = _number(self.num_units, self.unit)
        return units if self.num_units == self.num_tokens else f"{units} in {_number(self.num_tokens, 'token')}"

    def _reading(self) -> str:
        if self.windows == "carried":
            return "the state carried through " + (
                "the whole stream" if self.rows == 1 else f"{self.rows} parallel rows of the stream"
            )
        if self.block == 0:
            return "nothing read before a token"
        of = {"sentences": "whole sentences up to ", "single": "one sentence up to "}.get(self.windows, "")
        throughout = " from the first window on" if self.first_window == "stride" else ""
        return (
            f"windows of {of}{_number(self.block, 'token')}, context {self.context}, stride {self.stride}{throughout}"
        )


def perplexity(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    read: Tensor | None = None,
    unit: Unit = "word",
    ends_word: Tensor | None = None,
    unk: int | None = None,
    num_bytes: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    ranks: Ranks = Ranks(),
    each: Callable[[Scored], None] | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Score every token of a stream once and divide by the units; arguments not named here are those of `token_losses`.

    An output that is no likelihood, as `SparseOutput`, gives its loss under its own name and no perplexity. Its
    accuracy is not measured: that would take the scores of all words a second time.

    Args:
        unit: what a token is.
        ends_word: for subwords: true for every id that completes a word, "<eos>" among them. The losses of a word's
            subwords are then added, and the unit is the word.
        unk: the id for unknown words, to count them.
        num_bytes: of the text, line ends included, for bits per byte.
        each: called with every span that was scored, as `LossByFrequency.add`.

    Example:
        >>> from anymax.evaluation import Windows, perplexity
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> _ = torch.nn.init.zeros_(model.output.table)  # all ten words are equally likely
        >>> print(perplexity(model, torch.randint(10, (20,)), Windows(8), eos=0))
        perplexity 10.00 per word (2.3026 nats) over 20 words; the state carried through the whole stream; one <eos>
        per line, scored
    """
    inner = language_model(model)
    scored = token_losses(
        model, tokens, windows, eos=eos, read=read, batch_tokens=batch_tokens, ranks=ranks, progress=progress
    )
    check_words(tokens, eos, unit, ends_word)
    sums = add_up(scored, ends_word=ends_word, unk=unk, ranks=ranks, each=each)
    return Perplexity(
        loss=sums.loss / sums.num_units,
        unit=unit,
        num_units=sums.num_units,
        num_tokens=sums.num_tokens,
        block=windows.block,
        context=windows.context,
        windows="carried" if inner.carries_state else windows.kind,
        first_window=windows.first,
        rows=windows.rows,
        loss_name=_loss_name(inner.output),
        num_unknown=None if unk is None else sums.num_unknown,
        num_bytes=num_bytes,
    )


class Sums(NamedTuple):
    """The sums that a perplexity is computed from."""

    loss: float
    num_units: int
    num_tokens: int
    num_unknown: int


def add_up(
    scored: Iterable[Scored],
    *,
    ends_word: Tensor | None = None,
    unk: int | None = None,
    ranks: Ranks = Ranks(),
    each: Callable[[Scored], None] | None = None,
) -> Sums:
    """The losses and counts of all spans and ranks, in float64; arguments as in `perplexity`."""
    total = torch.zeros(4, dtype=torch.float64)
    ends_word = None if ends_word is None else ends_word.cpu()
    for span in scored:
        num_tokens = len(span.tokens)
        num_units = num_tokens if ends_word is None else int(ends_word[span.tokens].sum())
        num_unknown = 0 if unk is None else int((span.tokens == unk).sum())
        loss = span.losses.sum(dtype=torch.float64).item()
        total += torch.tensor([loss, num_units, num_tokens, num_unknown], dtype=torch.float64)
        if each is not None:
            each(span)
    loss, *counts = ranks.sum(total.tolist())
    return Sums(loss, *map(int, counts))


def check_words(tokens: Tensor, eos: int, unit: Unit, ends_word: Tensor | None) -> None:
    """Refuse an unknown unit, and subwords that do not make whole words."""
    check_stream(tokens)
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {get_args(Unit)}, got {unit!r}")
    if ends_word is None:
        return
    if ends_word.dtype != torch.bool or ends_word.dim() != 1:
        raise ValueError(
            f"ends_word must be one true or false per id, got {ends_word.dtype} {tuple(ends_word.shape)}; "
            "convert with .bool()"
        )
    if unit != "word":
        raise ValueError(f"unit must be 'word' where ends_word adds up subwords, got {unit!r}; leave one of them out")
    if not ends_word[eos]:
        raise ValueError(f"ends_word must be true for eos, which counts as a word, got false for {eos}")
    if not ends_word[int(tokens[-1])]:
        raise ValueError(
            f"tokens must end with the last subword of a word, got {int(tokens[-1])}, which ends none; cut them "
            "elsewhere"
        )


def _loss_name(output: OutputLayer) -> str:
    if output.is_likelihood:
        return LIKELIHOOD
    # FSDP2 puts its name before that of the class it shards.
    return f"{type(output).__name__.removeprefix('FSDP')} loss"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
