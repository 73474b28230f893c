"""What a backend of the attention kernel offers, and what its arguments mean.

Shapes: B batch, H heads of queries, G heads of keys and values, Q queries, K keys, E numbers per head of queries and
keys, F of values. H is a multiple of G, and head h of the queries belongs to head h // (H / G) of the keys.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.attention import native, reference


class Choice(NamedTuple):
    """What decides how much of every value is gathered, beside queries and keys.

    Args:
        alpha_BH: contiguous, in the dtype that scores are computed in.
        mask: None or what broadcasts to (B, H, Q, K) in four dimensions: boolean, true where a query may attend to a
            key, or floating, added to the scores.
        sink_BH: None or a score per head, in the dtype of alpha, of a key whose value is zero.
        seed: None or an int64 of shape (), from which dropout draws: the seed of row (b, h, q) for dropout's kernel is
            (b H + h) Q + q larger, and key k is entry k of its row.
        scale: what the products of queries and keys are multiplied with.
        dropout: the rate at which probabilities are dropped; 0 without a seed.
        causal_offset: None, or query q attends to keys up to q + causal_offset alone.
    """

    alpha_BH: Tensor
    mask: Tensor | None
    sink_BH: Tensor | None
    seed: Tensor | None
    scale: float
    dropout: float
    causal_offset: int | None


class Gathered(NamedTuple):
    """The result of attention and what its backward begins from.

    Args:
        out_BHQF: in the dtype of the values, contiguous.
        shift_BHQ: the lambda of each row for scores from which no maximum was subtracted: an entry's probability is
            [1 + (alpha - 1) (score - lambda)]_+ ^ (1 / (alpha - 1)). Infinite for a row with nothing to attend to. In
            the dtype of alpha.
        lists: what else the backend keeps for its backward, as bytes; its length may be zero and depend on the data.
    """

    out_BHQF: Tensor
    shift_BHQ: Tensor
    lists: Tensor


class Gradients(NamedTuple):
    """Gradients in the shape and dtype of what they are by. That by alpha and the sink is zero unless asked for."""

    query_BHQE: Tensor
    key_BGKE: Tensor
    value_BGKF: Tensor
    alpha_BH: Tensor
    sink_BH: Tensor


class AttentionKernel(Protocol):
    """Gathers values by the entmax of scores. Queries, keys and values have one dtype, and may have any strides.

    Args:
        IS_FUSED: whether scores are never all held at once.
    """

    IS_FUSED: bool

    def why_unsupported(self, query_BHQE: Tensor, /) -> str | None:
        """Why this backend cannot take `query`, or None if it can."""

    def forward(
        self, query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice, *, keeps_lists: bool
    ) -> Gathered:
        """The values gathered for each query.

        Args:
            keeps_lists: whether `lists` may hold anything. Without, the backward computes the scores again.
        """

    def backward(
        self,
        grad_BHQF: Tensor,
        query_BHQE: Tensor,
        key_BGKE: Tensor,
        value_BGKF: Tensor,
        choice: Choice,
        gathered: Gathered,
        *,
        wants_alpha: bool,
    ) -> Gradients:
        """Gradients by queries, keys and values, by the sink if there is one, and by alpha if it is wanted."""


if TYPE_CHECKING:
    OWN: tuple[AttentionKernel, ...] = (native, reference)
