"""Where the heads of a model look, recorded while it runs, without a change to its code.

A layer of attention returns what it gathered and not by which probabilities: torch's fused function and the kernels
never hold those. So a layer that is watched computes them a second time, beside its result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

# Of self-attention in which a position attends to those after it too; of that in which it does not; of queries that
# attend to another sequence.
Kind = Literal["encoder", "decoder", "cross"]
Watch = Callable[[Kind, Tensor], None]


@contextmanager
def capture(model: nn.Module) -> Iterator[dict[Kind, list[Tensor]]]:
    """Record where every head of every layer of attention looks.

    Gives a dictionary that is filled while the model runs inside the block: for each kind of attention a list of the
    weights of its layers, each (batch, heads, queries, keys).

    Kinds are "encoder", "decoder" (causal, or with a cache) and "cross", as layers are called; of each, layers stand in
    the order in which the model lists its modules. A layer that is called again replaces what it recorded. Weights are
    without dropout and without gradient, and what a sink gets is left out. The model's results are the same as without,
    but it takes time and memory for all scores.

    Args:
        model: any Module with layers of `MultiHeadAttention` in it, or one itself.

    Example:
        >>> model = torch.nn.Sequential(anymax.attention.MultiHeadAttention(16, 4), torch.nn.Linear(16, 3))
        >>> with anymax.attention.capture(model) as weights:
        ...     logits = model(torch.randn(2, 5, 16))
        >>> weights["encoder"][0].shape  # the first layer: (batch, heads, queries, keys)
        torch.Size([2, 4, 5, 5])
    """
    from anymax.attention.multi_head import MultiHeadAttention

    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    if not layers:
        raise ValueError(f"model must have layers of MultiHeadAttention, got a {type(model).__name__} without any")
    weights: dict[Kind, list[Tensor]] = {}
    recorded: dict[tuple[Kind, int], Tensor] = {}

    def watch(number: int) -> Watch:
        def record(kind: Kind, probs: Tensor) -> None:
            recorded[kind, number] = probs
            of_kind = sorted(layer for name, layer in recorded if name == kind)
            weights[kind] = [recorded[kind, layer] for layer in of_kind]

        return record

    mine = {layer: watch(number) for number, layer in enumerate(layers)}
    for layer, one in mine.items():
        layer.watches = (*layer.watches, one)
    try:
        yield weights
    finally:
        for layer, one in mine.items():
            layer.watches = tuple(other for other in layer.watches if other is not one)


def watch_as(kind: Kind, watches: tuple[Watch, ...]) -> Callable[[Tensor], None] | None:
    """What a layer that is called as `kind` shows its probabilities to; None if nothing watches."""
    if not watches:
        return None

    def show(probs: Tensor) -> None:
        for watch in watches:
            watch(kind, probs)

    return show
