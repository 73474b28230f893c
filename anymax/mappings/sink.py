"""A sink beside any mapping: one more score of each row, whose probability is left out.

It lets a row choose nothing. With softmax it is an exponential in the denominator alone.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anymax.mappings.arguments import check_number, check_per_row, check_scores, check_values, computed_in, row_shape
from anymax.mappings.softmax import softmax
from anymax.mappings.total import sums_to, total_of

Mapping = Callable[..., Tensor]


@sums_to("at most one")
def with_sink(
    scores: Tensor, sink: float | Tensor, mapping: Mapping = softmax, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Map scores beside a sink: its probability is left out, and those of the scores sum to less than one.

    Args:
        scores: floating point, any shape.
        sink: its score, below infinity: a number, or a tensor that broadcasts against `scores` with size 1 along `dim`,
            which gets a gradient. Minus infinity is none.
        mapping: any mapping to distributions, which is called with the sink after the scores of the last dimension.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; the sink always may.

    Xiao et al. 2023; softmax with a score of 0, which is "off by one": Miller 2023.

    Example:
        >>> scores = torch.tensor([1.0, 0.5, -1.0])
        >>> anymax.mappings.with_sink(scores, 0.5, anymax.sparsemax)
        tensor([0.6667, 0.1667, 0.0000])
        >>> anymax.mappings.with_sink(scores, 3.0, anymax.sparsemax)  # the sink takes all
        tensor([0., 0., 0.])
    """
    check_scores(scores, dim, mask)
    check_sink(sink)
    check_takes_sink(mapping)
    of_dim = getattr(mapping, "dim", -1)
    if of_dim not in (-1, scores.dim() - 1):
        raise ValueError(f"mapping must be of the last dimension, to which dim is moved, got one with dim={of_dim}")
    dtype = computed_in(scores.dtype)
    wide = scores.to(dtype)
    if isinstance(sink, Tensor):
        check_per_row("sink", sink, scores, dim)
        of_rows = sink.to(dtype).expand(row_shape(scores, dim))
    else:
        of_rows = wide.new_full(row_shape(scores, dim), sink)
    if mask is not None:
        mask = torch.cat([mask.expand(scores.shape), torch.ones_like(of_rows, dtype=torch.bool)], dim).movedim(dim, -1)
    probs = mapping(torch.cat([wide, of_rows], dim).movedim(dim, -1), mask=mask)
    return probs[..., :-1].movedim(-1, dim).to(scores.dtype)


@sums_to("at most one")
class WithSink(nn.Module):
    """`with_sink` as a Module, with a sink that is learned or fixed.

    Args:
        mapping: any mapping to distributions, of the last dimension; by default softmax.
        shape: of the learned sinks; broadcasts against the scores with size 1 along `dim`.
        dim: the dimension of the entries.
        initial: the score they start from, and keep if they are not learned.
        learned: whether they are learned; otherwise all are `initial`.

    Example:
        >>> mapping = anymax.mappings.WithSink(anymax.Entmax(1.5))
        >>> mapping(torch.tensor([1.0, 0.5, -1.0])).sum().backward()
        >>> mapping.sink.grad < 0  # a lower sink leaves more to the entries
        tensor([True])
    """

    def __init__(
        self,
        mapping: Mapping = softmax,
        shape: tuple[int, ...] = (1,),
        dim: int = -1,
        *,
        initial: float = 0.0,
        learned: bool = True,
    ) -> None:
        super().__init__()
        check_sink(initial)
        check_takes_sink(mapping)
        self.mapping = mapping
        self.dim = dim
        self.initial = initial
        self.sink = nn.Parameter(torch.empty(shape)) if learned else initial
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.sink, nn.Parameter):
            nn.init.constant_(self.sink, self.initial)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return with_sink(scores, self.sink, self.mapping, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"initial={self.initial:g}, learned={isinstance(self.sink, nn.Parameter)}, dim={self.dim}"


def check_sink(sink: float | Tensor) -> None:
    """A score below infinity; the values of a tensor where they can be read."""
    if isinstance(sink, Tensor):
        check_values("sink", "below infinity", sink, lambda values: values < math.inf)
        return
    check_number("sink", sink)
    if not sink < math.inf:
        raise ValueError(f"sink must be below infinity, got {sink}; minus infinity is no sink")


def check_takes_sink(mapping: Mapping) -> None:
    """A sink takes from entries that compete with it."""
    if total_of(mapping) == "weights":
        raise ValueError(
            "sink must be None for a mapping to weights that do not depend on each other, "
            f"got one with {getattr(mapping, '__name__', type(mapping).__name__)}; a sink would change nothing"
        )
