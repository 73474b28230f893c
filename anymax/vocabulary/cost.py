"""What the scores of a batch cost when a vocabulary is cut into bands, by a formula and as measured on a machine."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anymax.vocabulary.bands import Counts

# A measurement stops at products this slow or this large.
LONG_ENOUGH = 0.03
MOST_SCORES = 2**26


@dataclass(frozen=True)
class Cost:
    """The time of a batch's scores: for every band, per_band + per_score * max(rows * tokens, floor).

    The head has a row for each of its words and each tail, and is computed for all tokens; a tail only for the tokens
    whose word lies in it. A row costs the same in every band. The smaller dimension of tails is left out on purpose: it
    makes words in tails look almost free, and the cheapest head a few dozen words.

    The defaults count time in scores and suit an accelerator; `measure_cost` finds those of a machine.

    Args:
        num_tokens: how many tokens a batch has.
        per_band: the time a band takes however small it is. It does not move the cutoffs of a given number of bands,
            it decides how many bands pay off.
        per_score: the time of one row for one token.
        floor: fewer scores than this take no less time.
    """

    num_tokens: int = 4096
    per_band: float = 1e6
    per_score: float = 1.0
    floor: float = 1e5

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, got {self.num_tokens}")
        if not 0 < self.per_score < math.inf:
            raise ValueError(f"per_score must be positive and finite, got {self.per_score}")
        for name, value in (("per_band", self.per_band), ("floor", self.floor)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value}")

    def of(self, cutoffs: Sequence[int], counts: Counts) -> float:
        """The time of one batch whose words are distributed as `counts` say."""
        mass = prefix_sums(counts)
        edges = [*cutoffs, len(mass) - 1]
        scores = [float((edges[0] + len(cutoffs)) * self.num_tokens)]
        for start, end in itertools.pairwise(edges):
            share = ((mass[end] - mass[start]) / mass[-1]).item()
            scores.append((end - start) * share * self.num_tokens)
        return sum(self.per_band + self.per_score * max(number, self.floor) for number in scores)


DEFAULT_COST = Cost()


def measure_cost(dim: int, num_tokens: int = 4096, *, device: str | torch.device = "cpu") -> Cost:
    """Time matrix products of growing size and fit a `Cost` in seconds. Takes a second or less.

    Times differ from run to run, and so may cutoffs chosen by them: keep the cutoffs, not the call.

    Args:
        dim: the dimension of the vectors that are scored.
        num_tokens: how many tokens a batch has.
        device: where to time them.
    """
    if dim < 1 or num_tokens < 1:
        raise ValueError(f"dim and num_tokens must be at least 1, got {dim} and {num_tokens}")
    hidden = torch.randn(num_tokens, dim, device=device)
    sizes, seconds = [], []
    for num_rows in (4**i for i in itertools.count()):
        sizes.append(float(num_rows * num_tokens))
        seconds.append(_time_product(hidden, torch.randn(num_rows, dim, device=device)))
        if len(sizes) > 2 and (seconds[-1] > LONG_ENOUGH or sizes[-1] * 4 > MOST_SCORES):
            break
    return Cost(num_tokens, *_fit(sizes, seconds))


def _time_product(hidden: Tensor, rows: Tensor) -> float:
    """Seconds of one product, the best of some."""
    best = math.inf
    # The first is slow, it allocates.
    for _ in range(4):
        start = time.perf_counter()
        hidden @ rows.T
        if hidden.device.type != "cpu":
            torch.accelerator.synchronize(hidden.device)
        best = min(best, time.perf_counter() - start)
    return best


def _fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """per_band, per_score and floor: a line through the two largest, and how far the quickest lies above its start."""
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    # Noise alone can make the larger one the faster, or let the line start above what was measured.
    per_score = slope if slope > 0 else seconds[-1] / sizes[-1]
    per_band = min(max(seconds[-1] - per_score * sizes[-1], 0.0), min(seconds))
    return per_band, per_score, (min(seconds) - per_band) / per_score


def prefix_sums(counts: Counts) -> Tensor:
    """The count of all words before each, and of all in the end: one entry more than there are words."""
    values = torch.as_tensor(counts, dtype=torch.float64, device="cpu")
    if values.dim() != 1 or values.sum() == 0:
        raise ValueError(f"counts must be a list of numbers that are not all zero, got shape {tuple(values.shape)}")
    return torch.cat([values.new_zeros(1), values.cumsum(0)])
