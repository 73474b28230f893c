"""The adaptive softmax: frequent words and one cluster per tail in the head, rare words in narrow tails.

Shapes: B tokens at a time, D the model's dimension, C entries of the head (its words, then the clusters), K words asked
for, R of the B tokens.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_shares
from anymax.losses import linear_cross_entropy
from anymax.vocabulary.bands import Bands
from anymax.vocabulary.output import OutputLayer, TopK, draw, refuse_label_smoothing, widened

# The target of tokens that do not count in a band. The caller's ignore_index could be a place within it, and any number
# near zero a target that is wrong.
ELSEWHERE = torch.iinfo(torch.int64).min


class AdaptiveOutput(OutputLayer):
    """A softmax in two steps: first over the frequent words and one cluster per tail, then over the words of a tail.

    The loss of a token is the cross-entropy of the head plus, for a word of a tail, the cross-entropy inside it. A tail
    is narrow and few tokens fall into it, so the layer costs little more than its head. The words must be sorted by
    frequency.

    `topk` is exact and computes the tails that can hold one of the best words; `sample` computes those that were drawn,
    and all of them at another temperature than 1.

    Args:
        bands: the cutoffs of the vocabulary, and the width of every band.
        model_dim: size of a hidden vector.
        tail_dropout: the rate for vectors projected to a tail: one for all tails, or one for each.
        softmax_input_dropout: the rate for the hidden vectors themselves, before head and tails; fairseq has it at the
            rate of its tails, the paper does not.
        head_projection: whether a projection stands before the words of the head too; by default only where the head is
            not as wide as the model. Clusters are never projected.
        label_smoothing: must be 0; an argument so that a setting meant for another layer is refused, not ignored.
        ignore_index: the target of tokens that do not count.
        memory_budget: bytes of scores that may be alive at once; by default as in `linear_cross_entropy`.

    Grave et al. 2017; Baevski and Auli 2019.

    Example:
        >>> from anymax.vocabulary import AdaptiveOutput, Bands
        >>> layer = AdaptiveOutput(Bands.from_cutoffs((200, 2000), 10_000, dim=64), model_dim=64)
        >>> hidden, target = torch.randn(4, 64), torch.tensor([5, 1500, 9999, 0])
        >>> layer(hidden, target).backward()  # the loss
        >>> layer.topk(hidden, 3).words.shape
        torch.Size([4, 3])
    """

    forward_methods = (*OutputLayer.forward_methods, "band_log_probs")
    clusters: nn.Parameter | None
    head_projection: nn.Parameter | None

    def __init__(
        self,
        bands: Bands,
        model_dim: int,
        *,
        tail_dropout: float | Sequence[float] = 0.0,
        softmax_input_dropout: float = 0.0,
        head_projection: bool | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        memory_budget: int | None = None,
    ) -> None:
        refuse_label_smoothing("AdaptiveOutput", label_smoothing)
        super().__init__(bands.vocabulary_size, model_dim, ignore_index=ignore_index, memory_budget=memory_budget)
        check_shares(softmax_input_dropout=softmax_input_dropout)
        self.bands = bands
        self.tail_dropout = _rate_per_tail(tail_dropout, bands.num_bands - 1)
        self.softmax_input_dropout = softmax_input_dropout
        head_dim, *tail_dims = bands.dims
        self.tables = nn.ParameterList(
            torch.empty(size, dim) for size, dim in zip(bands.sizes, bands.dims, strict=True)
        )
        self.tail_projections = nn.ParameterList(torch.empty(model_dim, dim) for dim in tail_dims)
        projected = _is_head_projected(head_projection, head_dim, model_dim)
        self.head_projection = nn.Parameter(torch.empty(model_dim, head_dim)) if projected else None
        self.clusters = nn.Parameter(torch.empty(len(tail_dims), model_dim)) if tail_dims else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.tables:
            nn.init.normal_(table, std=table.shape[1] ** -0.5)
        for projection in self.tail_projections:
            nn.init.xavier_uniform_(projection)
        if self.head_projection is not None:
            nn.init.xavier_uniform_(self.head_projection)
        if self.clusters is not None:
            nn.init.normal_(self.clusters, std=self.model_dim**-0.5)

    def extra_repr(self) -> str:
        rates = f"tail_dropout={self.tail_dropout}, softmax_input_dropout={self.softmax_input_dropout}"
        return f"{self.bands}, {self.model_dim}, {rates}"

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        hidden = self._prepare(hidden)
        self._check_target(hidden, target)
        target = target.long()
        counted = target != self.ignore_index
        band = torch.where(counted, self.bands.band_of(target), ELSEWHERE)
        # Every band gets all tokens and ignores those of other bands, so that every parameter gets a gradient. On a CPU
        # the loss drops their rows before the matrix products. On an accelerator it selects none and gives them weight
        # zero, so that nothing waits for the number of tokens in a band.
        losses = []
        for i in range(self.bands.num_bands):
            vectors, weight, place = self._band(hidden, target, band, i)
            loss = linear_cross_entropy(
                vectors,
                weight,
                place,
                reduction="sum" if reduction == "mean" else reduction,
                ignore_index=ELSEWHERE,
                memory_budget=self.memory_budget,
            )
            losses.append(loss)
        loss = sum(losses[1:], start=losses[0])
        return loss / counted.sum().clamp(min=1) if reduction == "mean" else loss

    def log_probs(self, hidden: Tensor) -> Tensor:
        hidden = self._prepare(hidden)
        head = self._head_log_probs(hidden)
        size = self.bands.sizes[0]
        tails = [
            head[..., size + i - 1, None] + self._tail_log_probs(hidden, i) for i in range(1, self.bands.num_bands)
        ]
        return torch.cat([head[..., :size], *tails], -1)

    def band_log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probability of every band, the words of which share it: the leading shape, then the bands."""
        head = self._head_log_probs(self._prepare(hidden))
        words, clusters = head.split([self.bands.sizes[0], self.bands.num_bands - 1], -1)
        return torch.cat([words.logsumexp(-1, keepdim=True), clusters], -1)

    def _topk_rows(self, hidden_BD: Tensor, k: int) -> TopK:
        """A tail is computed for the tokens whose cluster is likelier than their k-th best word so far.

        No word of the tail can be likelier than its cluster.
        """
        hidden_BD = self._prepare(hidden_BD)
        size = self.bands.sizes[0]
        words_BC, clusters_BC = self._head_log_probs(hidden_BD).split([size, self.bands.num_bands - 1], -1)
        best_BK, words_BK = F.pad(words_BC, (0, max(0, k - size)), value=-torch.inf).topk(k)
        for i in range(1, self.bands.num_bands):
            cluster_B = clusters_BC[:, i - 1]
            rows_R = (cluster_B >= best_BK[:, -1]).nonzero()[:, 0]
            inside = self._tail_log_probs(hidden_BD[rows_R], i).topk(min(k, self.bands.sizes[i]))
            log_probs = torch.cat([best_BK[rows_R], cluster_B[rows_R, None] + inside.values], -1)
            words = torch.cat([words_BK[rows_R], self.bands.edges[i] + inside.indices], -1)
            best_BK[rows_R], chosen = log_probs.topk(k)
            words_BK[rows_R] = words.gather(1, chosen)
        return TopK(best_BK, words_BK)

    def _sample_rows(self, hidden_BD: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
        """Draws from the head, then from a tail for the tokens that fell into it.

        Another temperature than 1 changes how likely a tail is by what is in it, and so needs every word.
        """
        if temperature != 1:
            return super()._sample_rows(hidden_BD, temperature, generator)
        hidden_BD = self._prepare(hidden_BD)
        words_B = draw(self._head_log_probs(hidden_BD), generator)
        band_B = (words_B - self.bands.sizes[0] + 1).clamp(min=0)
        for i in range(1, self.bands.num_bands):
            rows_R = (band_B == i).nonzero()[:, 0]
            words_B[rows_R] = self.bands.edges[i] + draw(self._tail_log_probs(hidden_BD[rows_R], i), generator)
        return words_B

    def _prepare(self, hidden: Tensor) -> Tensor:
        """Hidden vectors, checked, in the type of the parameters, with the dropout that head and tails share."""
        self._check_hidden(hidden)
        return F.dropout(hidden.to(self.tables[0].dtype), self.softmax_input_dropout, self.training)

    def _band(
        self, hidden: Tensor, target: Tensor, band: Tensor, i: int
    ) -> tuple[Tensor | Sequence[Tensor], Tensor | Sequence[Tensor], Tensor]:
        """The vectors and weights that the scores of band i are made from, and the place of every target among them."""
        if i > 0:
            return (
                self._tail_hidden(hidden, i),
                self.tables[i],
                torch.where(band == i, target - self.bands.edges[i], ELSEWHERE),
            )
        words = self._head_hidden(hidden)
        place = torch.where(band == 0, target, ELSEWHERE)
        if self.clusters is None:
            return words, self.tables[0], place
        place = torch.where(band > 0, self.bands.sizes[0] - 1 + band, place)
        return (words, hidden), (self.tables[0], self.clusters), place

    def _head_log_probs(self, hidden: Tensor) -> Tensor:
        """Of the words of the head, then of the clusters."""
        scores = [F.linear(self._head_hidden(hidden), self.tables[0])]
        if self.clusters is not None:
            scores.append(F.linear(hidden, self.clusters))
        return widened(torch.cat(scores, -1)).log_softmax(-1)

    def _tail_log_probs(self, hidden: Tensor, i: int) -> Tensor:
        """Of the words of band i, given the band."""
        return widened(F.linear(self._tail_hidden(hidden, i), self.tables[i])).log_softmax(-1)

    def _head_hidden(self, hidden: Tensor) -> Tensor:
        return hidden if self.head_projection is None else hidden @ self.head_projection

    def _tail_hidden(self, hidden: Tensor, i: int) -> Tensor:
        return F.dropout(hidden @ self.tail_projections[i - 1], self.tail_dropout[i - 1], self.training)


def _rate_per_tail(rate: float | Sequence[float], num_tails: int) -> tuple[float, ...]:
    rates = (rate,) * num_tails if isinstance(rate, int | float) else tuple(rate)
    if len(rates) != num_tails:
        raise ValueError(f"tail_dropout must be one rate, or one for each of the {num_tails} tails, got {rate}")
    for each in rates:
        check_shares(tail_dropout=each)
    return rates


def _is_head_projected(asked: bool | None, head_dim: int, model_dim: int) -> bool:
    needed = head_dim != model_dim
    if asked is False and needed:
        raise ValueError(
            f"head_projection must not be False where the head is {head_dim} wide and the model {model_dim}; "
            "leave it out, or make the head as wide as the model"
        )
    return needed if asked is None else asked
