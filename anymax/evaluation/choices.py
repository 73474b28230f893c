"""What a model chooses, word by word: measures that outputs with and without a likelihood share.

Shapes: P positions, V words.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from anymax.evaluation.perplexity.predicted import predictions
from anymax.evaluation.perplexity.scoring import Progress, Windows

EPSILON = 1e-6


@dataclass(frozen=True)
class Choices:
    """Measures of a model's predictions, each a mean over the tokens of a text.

    Args:
        num_tokens: how many were predicted.
        accuracy: how often the likeliest word was right; where n words are equally likely and one of them is right,
            that counts 1/n.
        entropy: of the predictions, in nats.
        ties: how often several words are likeliest.
        zero_targets: how often the right word had probability exactly zero.
        support: how many words have a probability above zero.
        epsilon: what `epsilon_perplexity` adds to every probability.
        epsilon_perplexity: the exponential of the mean of -log((p + epsilon) / (1 + epsilon V)), with p the probability
            of the right word among V; finite whatever is zero, and no perplexity: another epsilon gives another number.

    Example:
        >>> from anymax.evaluation import ChoiceCounter
        >>> counter = ChoiceCounter()
        >>> counter.add(torch.tensor([2]), torch.tensor([[0.5, 0.5, 0.0]]).log())
        >>> choices = counter.choices()
        >>> choices.ties, choices.zero_targets
        (1.0, 1.0)
    """

    num_tokens: int
    accuracy: float
    entropy: float
    ties: float
    zero_targets: float
    support: float
    epsilon: float
    epsilon_perplexity: float

    def metrics(self) -> dict[str, float]:
        """All of it, flat."""
        return asdict(self)

    def sentence(self) -> str:
        """All of it, to read."""
        return (
            f"accuracy {self.accuracy:.2%} over {self.num_tokens:,} tokens; entropy {self.entropy:.3f} nats; "
            f"{self.support:,.1f} words in the support; {self.zero_targets:.2%} of the targets have probability zero; "
            f"{self.ties:.2%} of the modes are tied; epsilon-perplexity {self.epsilon_perplexity:,.2f} per token "
            f"(epsilon {self.epsilon:g})"
        )

    def __str__(self) -> str:
        return self.sentence()


def measure_choices(
    model: nn.Module,
    tokens: Tensor,
    windows: Windows,
    *,
    eos: int,
    read: Tensor | None = None,
    epsilon: float = EPSILON,
    progress: Progress | None = None,
) -> Choices:
    """Measure what a model chooses at every token of a stream; arguments not named here are those of `token_losses`.

    Args:
        epsilon: added to every probability for `epsilon_perplexity`.

    Martins et al. 2020.

    Example:
        >>> from anymax.evaluation import Windows, measure_choices
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> choices = measure_choices(model, torch.randint(10, (20,)), Windows(8), eos=0)
        >>> choices.num_tokens, choices.support  # a softmax leaves no word out
        (20, 10.0)
    """
    counter = ChoiceCounter(epsilon)
    for part in predictions(model, tokens, windows, eos=eos, read=read, progress=progress):
        counter.add(part.tokens, part.log_probs)
    return counter.choices()


class ChoiceCounter:
    """Adds up the measures of `Choices` while a text is predicted, a few tokens at a time.

    Args:
        epsilon: what `Choices.epsilon_perplexity` adds to every probability.

    Example:
        >>> from anymax.evaluation import ChoiceCounter
        >>> counter = ChoiceCounter()
        >>> probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
        >>> counter.add(torch.tensor([0, 1]), probs.log())
        >>> counter.choices().support, counter.choices().accuracy
        (1.5, 0.75)
    """

    def __init__(self, epsilon: float = EPSILON) -> None:
        if not 0 < epsilon < math.inf:
            raise ValueError(f"epsilon must be a positive finite number, got {epsilon}")
        self.epsilon = epsilon
        self._num_tokens = 0
        # Of accuracy, entropy, ties, zero targets, support and the smoothed loss.
        self._sums = torch.zeros(6, dtype=torch.float64)

    def add(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Take in positions: the right words, and the log-probabilities of all words, (positions, words)."""
        if bool(log_probs.isnan().any()):
            raise ValueError("log-probabilities must be numbers, got nan; look for the step at which the model broke")
        best_P1 = log_probs.max(-1, keepdim=True).values
        num_best_P = (log_probs == best_P1).sum(-1)
        of_target_P1 = log_probs.gather(1, tokens.long()[:, None])
        is_right_P = (of_target_P1 == best_P1)[:, 0]
        smoothed_P = (of_target_P1[:, 0].double().exp() + self.epsilon).log()
        measured = (
            is_right_P.double() / num_best_P,
            # The least number stands for minus infinity, times a probability of zero.
            -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1, dtype=torch.float64),
            num_best_P > 1,
            of_target_P1 == -math.inf,
            (log_probs > -math.inf).sum(-1),
            math.log1p(self.epsilon * log_probs.shape[1]) - smoothed_P,
        )
        self._sums += torch.stack([values.double().sum().cpu() for values in measured])
        self._num_tokens += len(tokens)

    def choices(self) -> Choices:
        """What was added so far."""
        if not self._num_tokens:
            raise ValueError("choices must be counted over at least one token, got none")
        accuracy, entropy, ties, zero_targets, support, loss = (self._sums / self._num_tokens).tolist()
        return Choices(self._num_tokens, accuracy, entropy, ties, zero_targets, support, self.epsilon, math.exp(loss))
