"""What decoding gives: sentences with their scores, how they were scored, and how certain the choice is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A sentence that decoding found, and its score.

    Example:
        >>> from anymax.decoding import Hypothesis
        >>> best = Hypothesis(words=(4, 7, 2), log_prob=-2.0, score=-0.5, is_finished=True)
        >>> best.words, best.is_finished
        ((4, 7, 2), True)
    """

    words: tuple[int, ...]
    """Without the <eos> that ends it."""
    log_prob: float
    """The sum of the log-probabilities of its words and, where it is finished, of its <eos>."""
    score: float
    """What hypotheses are ranked by: the log-probability under a length penalty."""
    is_finished: bool
    """Whether it ends with <eos>; if not, it was cut."""


@dataclass(frozen=True)
class Hypotheses:
    """The best sentences that a search found for one input.

    Args:
        ranked: best first, at least one.
        penalty: how the scores were made: "none", "average" or, with its alpha, "gnmt:0.6".
        is_proven_best: whether no sentence that is allowed has a better score than the first one, by the
            log-probabilities that the search saw: whatever it dropped cannot reach that score.
        margin: the least difference between what was kept and what was dropped in its place, over all decisions; two
            searches whose numbers differ by less find the same.

    Example:
        >>> from anymax.decoding import beam_search
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> (found,) = beam_search(model, torch.tensor([[3, 4]]), eos=0, max_length=3, num_best=2)
        >>> found.best is found.ranked[0], found.ranked[0].score >= found.ranked[1].score, found.penalty
        (True, True, 'none')
    """

    ranked: tuple[Hypothesis, ...]
    penalty: str
    is_proven_best: bool
    margin: float

    @property
    def best(self) -> Hypothesis:
        return self.ranked[0]


class Agreement(NamedTuple):
    """How many results of two searches are equal, differ by a tie, and differ without one.

    Example:
        >>> from anymax.decoding import Agreement
        >>> Agreement(same=998, ties=2, different=0).different
        0
    """

    same: int
    ties: int
    different: int


def agreement(first: Sequence[Hypotheses], second: Sequence[Hypotheses], *, tolerance: float = 1e-5) -> Agreement:
    """Compare two searches over the same inputs, as at two batch sizes or on two devices.

    Args:
        first, second: what the searches found, input by input.
        tolerance: a difference is a tie where either search made a decision by a margin of at most this.

    Example:
        >>> from anymax.decoding import agreement, greedy
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> prompts = torch.tensor([[3], [4], [5]])
        >>> together = greedy(model, prompts, eos=0, max_length=4)
        >>> alone = [greedy(model, prompt[None], eos=0, max_length=4)[0] for prompt in prompts]
        >>> agreement(together, alone)
        Agreement(same=3, ties=0, different=0)
    """
    if len(first) != len(second):
        raise ValueError(f"both searches must be over the same inputs, got {len(first)} and {len(second)}")
    ties = different = 0
    for one, other in zip(first, second, strict=True):
        if [each.words for each in one.ranked] == [each.words for each in other.ranked]:
            continue
        if min(one.margin, other.margin) <= tolerance:
            ties += 1
        else:
            different += 1
    return Agreement(len(first) - ties - different, ties, different)
