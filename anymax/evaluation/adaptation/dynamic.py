"""Dynamic evaluation: a model that keeps learning from the text it is measured on.

Every segment is scored before the step that learns from it, so that no word is known before it is predicted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anymax.data import BlockBatches, ContiguousBatches
from anymax.data.batches.batches import IGNORE_INDEX, Batches
from anymax.evaluation.adaptation.config import DynamicEvaluation
from anymax.evaluation.perplexity.scoring import Progress, language_model
from anymax.models.language_model.model import evaluating

# Krause et al.'s number of tokens from step to step.
CARRIED_BLOCK = 5


@contextmanager
def adapting(
    model: nn.Module, dynamic: DynamicEvaluation, sizes: Sequence[Tensor] | None = None
) -> Iterator["DynamicModel"]:
    """A model that learns while it is scored; afterwards its parameters are what they were, to the bit.

    Args:
        model: a language model, or what wraps one.
        dynamic: how it learns.
        sizes: how large the gradients of every trainable parameter are, of `gradient_sizes`; None for the rule "sgd".

    Krause et al. 2018.

    Example:
        >>> from anymax.evaluation import DynamicEvaluation, Windows, adapting, gradient_sizes, perplexity
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> tokens, dynamic = torch.tensor([3, 4, 0] * 20), DynamicEvaluation(lr=0.01, decay=0.0)
        >>> sizes = gradient_sizes(model, tokens, dynamic, eos=0, block=5)
        >>> with adapting(model, dynamic, sizes) as learning:
        ...     adapted = perplexity(learning, tokens, Windows(8), eos=0)
        >>> adapted.loss < perplexity(model, tokens, Windows(8), eos=0).loss
        True
    """
    parameters = _trainable(model)
    learning = DynamicModel(model, dynamic, sizes)
    try:
        yield learning
    finally:
        with torch.no_grad():
            for parameter, start in zip(parameters, learning.starts, strict=True):
                parameter.copy_(start)


class DynamicModel(nn.Module):
    """A language model that takes a step after every segment it has scored. Made by `adapting`, which undoes them.

    A segment is a row of a call: a window, or where a state is carried `dynamic.block` tokens of the only row.
    """

    def __init__(self, model: nn.Module, dynamic: DynamicEvaluation, sizes: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.model = model
        self.dynamic = dynamic
        self._carries_state = language_model(model).carries_state
        if not self._carries_state and dynamic.block is not None:
            raise ValueError(
                f"block must be None for a model that carries no state, got {dynamic.block}; it learns from window to "
                "window, of which each scores its length less the context"
            )
        self._learned = _trainable(model)
        self.starts = [parameter.detach().clone() for parameter in self._learned]
        self._rule = _Rule(dynamic, _checked(sizes, self._learned, dynamic), len(self._learned))

    def forward(self, ids: Tensor, target: Tensor, reduction: str = "none", cache: Any = None) -> Tensor:
        """The loss of every word before the model learned from it, zero where the target is ignored."""
        if reduction != "none":
            raise ValueError(f"reduction must be 'none' for a model that learns, got {reduction!r}; average afterwards")
        if not self._carries_state:
            rows = zip(ids.split(1), target.split(1), strict=True)
            return torch.cat([self._segment(*row) for row in rows])
        if len(ids) != 1:
            raise ValueError(f"ids must be one row where a state is carried, got {len(ids)}; score with rows=1")
        size = self.dynamic.block or CARRIED_BLOCK
        segments = zip(ids.split(size, 1), target.split(size, 1), strict=True)
        return torch.cat([self._segment(*segment, cache) for segment in segments], 1)

    def _segment(self, ids: Tensor, target: Tensor, cache: Any = None) -> Tensor:
        count = int((target != IGNORE_INDEX).sum())
        state = () if cache is None else (cache,)
        # The recurrent layers of cuDNN have no gradient outside of training mode, where dropout would be on.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            losses = self.model(ids, target, "none", *state)
            if not bool(losses.isfinite().all()):
                raise ValueError(f"losses must stay finite while the model learns, got {losses.max().item()}; lower lr")
            gradients = _gradients(losses.sum() / max(1, count), self._learned)
        self._rule.step(self._learned, self.starts, gradients)
        return losses.detach()


class _Rule:
    """How parameters follow their gradients and return."""

    def __init__(self, dynamic: DynamicEvaluation, sizes: Sequence[Tensor] | None, number: int) -> None:
        self.lr = dynamic.lr
        one = torch.ones(())
        self.divisors, self.pulls = [one] * number, [dynamic.decay * one] * number
        if sizes is not None:
            total = sum(float(size.mean()) for size in sizes)
            if total == 0:
                raise ValueError("sizes of gradients must not all be zero; measure them on text the model can learn")
            self.divisors = [size + dynamic.epsilon for size in sizes]
            # More than the whole way back would overshoot.
            self.pulls = [(dynamic.decay * size / total).clamp(max=1) for size in sizes]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[nn.Parameter], starts: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> None:
        parts = zip(parameters, starts, gradients, self.divisors, self.pulls, strict=True)
        for parameter, start, gradient, divisor, pull in parts:
            change = (start - parameter) * pull
            if gradient is not None:
                change -= self.lr * gradient / divisor
            parameter.add_(change)


def gradient_sizes(
    model: nn.Module,
    train_tokens: Tensor,
    dynamic: DynamicEvaluation,
    *,
    eos: int,
    block: int,
    read: Tensor | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """How large the gradients of every trainable parameter are on training text, entry by entry, with dropout off.

    Args:
        model: a language model, or what wraps one.
        train_tokens: the stream it was trained on.
        dynamic: how large batches are, and how many.
        eos: the id that ends a sentence.
        block: how many tokens a row holds, where no state is carried; else that of `dynamic`.
        read: as in `token_losses`.
        progress: called with the batches that were read, and all there are.

    Example:
        >>> from anymax.evaluation import DynamicEvaluation, gradient_sizes
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> sizes = gradient_sizes(model, torch.tensor([3, 4, 0] * 20), DynamicEvaluation(), eos=0, block=5)
        >>> [size.shape for size in sizes] == [parameter.shape for parameter in model.parameters()]
        True
    """
    parameters = _trainable(model)
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    batches = _batches(language_model(model).carries_state, train_tokens, dynamic, eos, block, read)
    number = min(len(batches), dynamic.max_batches or len(batches))
    device = parameters[0].device
    state = (language_model(model).new_cache(len(train_tokens)),) if isinstance(batches, ContiguousBatches) else ()
    with evaluating(model), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for done, batch in zip(range(1, number + 1), batches, strict=False):
            loss = model(batch.ids.to(device), batch.target.to(device), "mean", *state)
            for square, gradient in zip(squares, _gradients(loss, parameters), strict=True):
                if gradient is not None:
                    square.addcmul_(gradient, gradient)
            if progress is not None:
                progress(done, number)
    return [(square if dynamic.statistics == "sum" else square / number).sqrt() for square in squares]


def _batches(
    carries_state: bool, tokens: Tensor, dynamic: DynamicEvaluation, eos: int, block: int, read: Tensor | None
) -> Batches:
    if not carries_state:
        return BlockBatches(tokens, block, dynamic.batch_size, seed=None, eos=eos, read=read)
    # A text of few tokens has fewer rows.
    rows = min(dynamic.batch_size, len(tokens))
    return ContiguousBatches(tokens, rows, dynamic.block or CARRIED_BLOCK, eos=eos, read=read)


def _gradients(loss: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor | None, ...]:
    """The gradients, None where the loss does not depend on a parameter; those that parameters hold are kept."""
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _checked(
    sizes: Sequence[Tensor] | None, parameters: Sequence[nn.Parameter], dynamic: DynamicEvaluation
) -> Sequence[Tensor] | None:
    if (sizes is None) == (dynamic.rule == "rms"):
        need = "be given for the rule 'rms'" if sizes is None else "be left out with the rule 'sgd'"
        raise ValueError(f"sizes must {need}; gradient_sizes measures them on training text")
    if sizes is not None and [size.shape for size in sizes] != [parameter.shape for parameter in parameters]:
        raise ValueError("sizes must be those of this model's trainable parameters; measure them with gradient_sizes")
    return sizes
