"""The rank of a model's log-probabilities: how many directions they use, of contexts x words.

A softmax of scores that are products of d-dimensional vectors has log-probabilities of rank d + 1 at most, or d + 2
with a number of its own for every word. Whatever bends the scores, or mixes several softmaxes, is not so bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.evaluation.perplexity.predicted import predictions
from anymax.evaluation.perplexity.scoring import Progress, Windows, language_model
from anymax.evaluation.rank.spectrum import Method, Spectrum, singular_values

ToleranceRule = Literal["press", "numpy"]

# The shares of the squares that effective ranks leave out.
SHARES = (1e-3, 1e-4, 1e-5)


@dataclass(frozen=True, eq=False)
class MatrixRank:
    """The rank of a matrix of log-probabilities, with all it depends on.

    Args:
        singular_values: float64, falling.
        num_contexts, num_words: the size of the matrix.
        rule: what the tolerance follows: "press", "numpy" or "absolute".
        tolerance: singular values above it count.
        floor: singular values below it are rounding errors of the method.
        method: "svd" is exact, "gram" goes through products of columns.
        effective: for every share of the squares of the singular values, how many of the largest make up the rest.

    Example:
        >>> from anymax.evaluation import matrix_rank
        >>> measured = matrix_rank([torch.ones(6, 4)], num_contexts=6, num_words=4)
        >>> measured.rank, round(measured.entropy_rank, 3)
        (1, 1.0)
    """

    singular_values: Tensor
    num_contexts: int
    num_words: int
    rule: str
    tolerance: float
    floor: float
    method: Method
    effective: dict[float, int]

    @property
    def rank(self) -> int:
        """How many singular values lie above the tolerance; where that lies below the floor, above the floor."""
        return int((self.singular_values > max(self.tolerance, self.floor)).sum())

    @property
    def is_lower_bound(self) -> bool:
        """Whether values between tolerance and floor, which may be rounding errors, could add to the rank."""
        return self.tolerance < self.floor and self.rank < len(self.singular_values)

    @property
    def entropy_rank(self) -> float:
        """The exponential of the entropy of the singular values over their sum. Roy and Vetterli 2007."""
        shares = self.singular_values / self.singular_values.sum().clamp(min=torch.finfo(torch.float64).tiny)
        return math.exp(torch.special.entr(shares).sum().item())

    def sentence(self) -> str:
        """The rank with all it depends on."""
        least = "at least " if self.is_lower_bound else ""
        effective = ", ".join(f"{rank:,} ({share:g})" for share, rank in self.effective.items())
        return (
            f"rank {least}{self.rank:,} of {self.num_contexts:,} contexts x {self.num_words:,} words "
            f"(tolerance {self.tolerance:.3g}, {self.rule}; {self.method}); effective rank {effective}; "
            f"by entropy {self.entropy_rank:,.1f}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "num_contexts": self.num_contexts,
            "num_words": self.num_words,
            "rank": self.rank,
            "is_lower_bound": self.is_lower_bound,
            "rule": self.rule,
            "tolerance": self.tolerance,
            "floor": self.floor,
            "method": self.method,
            "effective": {f"{share:g}": rank for share, rank in self.effective.items()},
            "entropy_rank": self.entropy_rank,
            "singular_values": self.singular_values.tolist(),
        }

    def __str__(self) -> str:
        return self.sentence()


def matrix_rank(
    chunks: Iterable[Tensor],
    *,
    num_contexts: int,
    num_words: int,
    tolerance: ToleranceRule | float = "press",
    clamp: float | None = None,
    shares: Sequence[float] = SHARES,
    method: Method | None = None,
    memory_limit: int | None = None,
) -> MatrixRank:
    """The rank of log-probabilities that come a few contexts at a time.

    Args:
        chunks: matrices of `num_words` log-probabilities, with `num_contexts` rows in all.
        num_contexts, num_words: the size of the matrix.
        tolerance: "press" is 0.5 sqrt(contexts + words + 1) eps of the largest singular value, "numpy" is
            max(contexts, words) eps of it, which is far more; eps is that of the chunks' type, 1.2e-7 for float32. A
            number is taken as it is.
        clamp: log-probabilities below it, minus infinity among them, are raised to it; by default minus infinity is
            refused.
        shares: of the effective ranks.
        method, memory_limit: as in `singular_values`. 80 thousand contexts of 10 thousand words take 1.6 GB.

    Press et al. 2007; Parthiban et al. 2021.

    Example:
        >>> from anymax.evaluation import matrix_rank
        >>> scores = torch.randn(20, 3) @ torch.randn(3, 12)
        >>> matrix_rank(scores.split(5), num_contexts=20, num_words=12).rank
        3
    """
    _check_tolerance(tolerance)
    types: list[torch.dtype] = []

    def clamped() -> Iterator[Tensor]:
        for chunk in chunks:
            types.append(chunk.dtype)
            yield _without_infinity(chunk, clamp)

    spectrum = singular_values(
        clamped(), num_rows=num_contexts, num_columns=num_words, method=method, memory_limit=memory_limit
    )
    is_number = not isinstance(tolerance, str)
    return MatrixRank(
        singular_values=spectrum.values,
        num_contexts=num_contexts,
        num_words=num_words,
        rule="absolute" if is_number else str(tolerance),
        tolerance=_tolerance(tolerance, spectrum, num_contexts, num_words, types[0]),
        floor=spectrum.floor,
        method=spectrum.method,
        effective={share: effective_rank(spectrum.values, share) for share in shares},
    )


def log_prob_rank(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    words: int | None = None,
    tolerance: ToleranceRule | float = "press",
    clamp: float | None = None,
    shares: Sequence[float] = SHARES,
    method: Method | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> MatrixRank:
    """The rank of a model's log-probabilities at all tokens of a stream.

    Arguments not named here are those of `matrix_rank` and `token_losses`.

    Args:
        tokens: every one is a context; cut the stream for fewer.
        words: the number of columns, those of the most frequent words, which come first in a lexicon; by default all.

    Example:
        >>> from anymax.evaluation import Windows, log_prob_rank
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(30, 4), FullOutput(30, 4), LSTMConfig(4, 4))
        >>> log_prob_rank(model, torch.randint(30, (50,)), Windows(8), eos=0).rank <= 4 + 1  # the softmax bottleneck
        True
    """
    size = language_model(model).output.vocabulary_size
    num_words = size if words is None else words
    check_counts(words=num_words)
    if num_words > size:
        raise ValueError(f"words must be at most the vocabulary size, {size}, got {words}")
    predicted = predictions(model, tokens, windows, eos=eos, progress=progress)
    return matrix_rank(
        (part.log_probs[:, :num_words] for part in predicted),
        num_contexts=len(tokens),
        num_words=num_words,
        tolerance=tolerance,
        clamp=clamp,
        shares=shares,
        method=method,
        memory_limit=memory_limit,
    )


def effective_rank(singular_values: Tensor, share: float) -> int:
    """The fewest of the largest singular values whose squares sum up to all but a `share` of the whole.

    Args:
        singular_values: of a matrix, falling.
        share: of the sum of all squares.

    Example:
        >>> from anymax.evaluation import effective_rank
        >>> effective_rank(torch.tensor([4.0, 3.0, 0.01], dtype=torch.float64), share=1e-3)
        2
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    sums = singular_values.double().square().cumsum(0)
    if not sums[-1] > 0:
        return 0
    return min(int((sums < (1 - share) * sums[-1]).sum()) + 1, len(sums))


def _without_infinity(log_probs: Tensor, clamp: float | None) -> Tensor:
    if clamp is not None:
        # Not a number stays, and is refused further on.
        return log_probs.clamp(min=clamp)
    if bool((log_probs == -math.inf).any()):
        raise ValueError(
            "log-probabilities must be finite, got minus infinity, which a sparse output gives; raise them to a least "
            "value with clamp, as -20, and name it beside the rank"
        )
    return log_probs


def _tolerance(
    tolerance: ToleranceRule | float, spectrum: Spectrum, num_contexts: int, num_words: int, dtype: torch.dtype
) -> float:
    largest, eps = spectrum.values[0].item(), torch.finfo(dtype).eps
    if tolerance == "press":
        return 0.5 * math.sqrt(num_contexts + num_words + 1) * largest * eps
    if tolerance == "numpy":
        return max(num_contexts, num_words) * largest * eps
    return float(tolerance)


def _check_tolerance(tolerance: ToleranceRule | float) -> None:
    if isinstance(tolerance, str):
        if tolerance not in get_args(ToleranceRule):
            raise ValueError(f"tolerance must be a number or one of {get_args(ToleranceRule)}, got {tolerance!r}")
    elif not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a finite number of at least 0, got {tolerance}")
