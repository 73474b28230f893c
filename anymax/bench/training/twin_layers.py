"""Input and output layers of torch's own modules, as one would write them without anymax.

Shapes: D the model's dimension, T tokens, R of them.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.vocabulary import Bands

IGNORE_INDEX = -100


class BandedInput(nn.Module):
    """An embedding and a projection per band; the words of each band are picked by a mask, as fairseq does."""

    def __init__(self, bands: Bands, model_dim: int) -> None:
        super().__init__()
        self.edges = bands.edges
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, dim) for size, dim in zip(bands.sizes, bands.dims, strict=True)
        )
        self.projections = nn.ModuleList(nn.Linear(dim, model_dim, bias=False) for dim in bands.dims)
        self.model_dim = model_dim

    def forward(self, ids: Tensor) -> Tensor:
        vectors = next(self.parameters()).new_zeros(*ids.shape, self.model_dim)
        bands = zip(pairwise(self.edges), self.embeddings, self.projections, strict=True)
        for (start, end), embedding, projection in bands:
            is_in = (ids >= start) & (ids < end)
            vectors[is_in] = projection(embedding(ids[is_in] - start))
        return vectors


class SoftmaxOutput(nn.Module):
    """A linear layer over all words, with a projection before it where it is given one.

    Args:
        chunk: how many tokens have their scores at once, by `F.linear_cross_entropy`; None: all, by `F.cross_entropy`.
        label_smoothing: share of the target that is spread evenly over all words; torch has no chunks with it.
    """

    is_likelihood = True

    def __init__(
        self, words: nn.Linear, projection: nn.Linear | None, *, chunk: int | None, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.projection = projection
        self.words = words
        self.chunk = chunk
        self.label_smoothing = label_smoothing

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        hidden_TD = hidden.flatten(0, -2)
        if self.projection is not None:
            hidden_TD = self.projection(hidden_TD)
        loss = _cross_entropy(
            hidden_TD, self.words.weight, target.flatten(), reduction, self.chunk, self.label_smoothing
        )
        return loss.view_as(target) if reduction == "none" else loss


class BandedOutput(nn.Module):
    """An adaptive softmax by hand, of parameters that an input may share: the tokens of each tail are picked by a mask.

    Args:
        tables: of each band; the head's is as wide as the model.
        projections: of each tail, (model_dim, its width).
        clusters: one vector per tail.
        tail_dropout: a rate for each tail.
        chunk: as in `SoftmaxOutput`.
    """

    is_likelihood = True

    def __init__(
        self,
        tables: Sequence[nn.Parameter],
        projections: Sequence[nn.Parameter],
        clusters: nn.Parameter,
        *,
        tail_dropout: Sequence[float],
        chunk: int | None,
    ) -> None:
        super().__init__()
        self.tables = nn.ParameterList(tables)
        self.projections = nn.ParameterList(projections)
        self.clusters = clusters
        self.tail_dropout = tuple(tail_dropout)
        self.chunk = chunk

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        hidden_TD, target_T = hidden.flatten(0, -2), target.flatten()
        each = "none" if reduction == "none" else "sum"
        head_target_T = target_T.clone()
        head, *tails = self.tables
        start = len(head)
        losses: list[tuple[Tensor, Tensor]] = []
        for i, table in enumerate(tails):
            rows_R = ((target_T >= start) & (target_T < start + len(table))).nonzero()[:, 0]
            head_target_T[rows_R] = len(head) + i
            tail_hidden_RD = F.dropout(hidden_TD[rows_R] @ self.projections[i], self.tail_dropout[i], self.training)
            losses.append((rows_R, _cross_entropy(tail_hidden_RD, table, target_T[rows_R] - start, each, self.chunk)))
            start += len(table)
        loss = _cross_entropy(hidden_TD, torch.cat([head, self.clusters]), head_target_T, each, self.chunk)
        for rows_R, tail_loss in losses:
            loss = loss.index_add(0, rows_R, tail_loss) if reduction == "none" else loss + tail_loss
        if reduction == "mean":
            return loss / (target_T != IGNORE_INDEX).sum()
        return loss.view_as(target) if reduction == "none" else loss


class TorchAdaptiveOutput(nn.Module):
    """Torch's adaptive softmax, for the tokens that count."""

    is_likelihood = True

    def __init__(self, bands: Bands, model_dim: int) -> None:
        super().__init__()
        factor = model_dim / bands.dims[1]
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(model_dim, bands.vocabulary_size, list(bands.cutoffs), factor)

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        counted = target != IGNORE_INDEX
        found = self.softmax(hidden[counted], target[counted])
        if reduction == "none":
            return hidden.new_zeros(target.shape).masked_scatter(counted, -found.output)
        return found.loss if reduction == "mean" else -found.output.sum()


def _cross_entropy(
    hidden_TD: Tensor,
    weight: Tensor,
    target_T: Tensor,
    reduction: str,
    chunk: int | None,
    label_smoothing: float = 0.0,
) -> Tensor:
    if chunk is None:
        return F.cross_entropy(
            F.linear(hidden_TD, weight),
            target_T,
            ignore_index=IGNORE_INDEX,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    assert label_smoothing == 0
    return F.linear_cross_entropy(
        hidden_TD,
        weight,
        target_T,
        ignore_index=IGNORE_INDEX,
        reduction=reduction,
        options=nn.LinearCrossEntropyOptions(batch_chunk_size=chunk),
    )
