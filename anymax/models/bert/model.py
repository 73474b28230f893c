"""Bert: an encoder of whole sequences, and the head that it learns by to tell hidden words from those around them.

Shapes: B batch, N positions, D the model's dimension, M masked positions of the whole batch.
"""

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.mappings.arguments import check_boolean, check_values
from anymax.models.bert.config import BertConfig
from anymax.models.transformer.block import MakeMapping
from anymax.models.transformer.encoder import Encoder
from anymax.vocabulary import FixedInput, FullOutput, tie_
from anymax.vocabulary.output import TopK

IGNORE_INDEX = -100


class Bert(nn.Module):
    """Tokens to vectors that know of the whole sequence, and the loss of tokens that were hidden.

    Vectors of words, positions and segments are added and normalised, and go through a post-norm `Encoder`. With
    softmax it computes what `BertModel` of transformers does; `load_bert` and `save_bert` read and write its files.
    Blocks are `encoder.blocks`, each with `attention`, `attention_norm`, `feed_forward` and `feed_forward_norm`.

    Args:
        config: sizes, dropout rates, and the mapping of the heads.
        vocabulary_size: number of word pieces.
        pooler: whether it has the layer over the first token that `pooled` reads, and that masked words do not train.
        head: whether it predicts masked words; the head's table is that of the words.
        mapping: called once for every block, makes the mapping of its attention, in place of the config's; such a model
            cannot be saved by `save_bert` unless transformers has the mapping.

    Devlin et al. 2019.

    Example:
        >>> from anymax.models import Bert, BertConfig
        >>> model = Bert(BertConfig(16, 2, 4, 32, max_positions=10), vocabulary_size=30).eval()
        >>> ids = torch.randint(30, (2, 5))
        >>> model.encode(ids).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        config: BertConfig,
        vocabulary_size: int,
        *,
        pooler: bool = False,
        head: bool = True,
        mapping: MakeMapping | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.words = FixedInput(vocabulary_size, config.model_dim)
        self.positions = nn.Embedding(config.max_positions, config.model_dim)
        self.segments = nn.Embedding(config.num_segments, config.model_dim)
        self.embedding_norm = nn.LayerNorm(config.model_dim, eps=config.norm_eps)
        self.encoder = Encoder(config.body, mapping=mapping or partial(config.mapping.build, config.num_heads))
        self.pooler = nn.Linear(config.model_dim, config.model_dim) if pooler else None
        self.head = MaskedWords(config, vocabulary_size) if head else None
        if self.head is not None:
            tie_(self.words, self.head.output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as BERT does; what mappings learn stays as it is."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.config.initial_std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.initial_std)
        nn.init.normal_(self.words.table, std=self.config.initial_std)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None,
        segments: Tensor | None,
        target: Tensor,
        reduction: str = "mean",
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The loss of predicting the tokens that were hidden.

        Args:
            ids, mask, segments, positions: as in `encode`, some of the ids hidden.
            target: (batch, positions), the token that was hidden, and -100 where none was.
            reduction: "mean", "sum", or "none" for a loss of each hidden token, in one row.
        """
        if target.shape != ids.shape:
            raise ValueError(f"target must have the shape of ids, {tuple(ids.shape)}, got {tuple(target.shape)}")
        hidden_BND = self.encode(ids, mask, segments, positions)
        is_counted = target != IGNORE_INDEX
        loss: Tensor = self.prediction_head(hidden_BND[is_counted], target[is_counted], reduction)
        return loss

    def encode(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The vectors after the last block, (batch, positions, model_dim).

        Args:
            ids: (batch, positions).
            mask: (batch, positions), true where a token stands: false for padding. None for everywhere.
            segments: (batch, positions), which segment a token belongs to; by default the first.
            positions: (batch, positions), the place of every token; by default 0, 1, 2 and so on.
        """
        return self.encoder(self.embed(ids, segments, positions), self._checked_mask(ids, mask))

    def embed(self, ids: Tensor, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """What enters the first block, (batch, positions, model_dim); arguments as in `encode`."""
        return embed_tokens(self, ids, segments, positions, dtype=self.encoder.dtype)

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each sequence, (batch, model_dim), of what `encode` gave for its first token."""
        if self.pooler is None:
            raise ValueError("the model must have a pooler, but was built or loaded without; build it with pooler=True")
        return torch.tanh(self.pooler(hidden[:, 0]))

    @property
    def prediction_head(self) -> "MaskedWords":
        """The head that predicts masked words; a model without it is an error."""
        if self.head is None:
            raise ValueError("the model must have a head for masked words, but was built or loaded without; head=True")
        return self.head

    @property
    def vocabulary_size(self) -> int:
        """The number of word pieces."""
        return self.words.table.shape[0]

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        return [self.words, *self.encoder.blocks, *([] if self.head is None else [self.head])]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides forward that read parameters, of this and of the modules within, as FSDP2 must know them."""
        of_head = [] if self.head is None else [(self.head, name) for name in ("log_prob", "log_probs", "topk")]
        return [(self, "encode"), (self, "embed"), (self, "pooled"), *of_head]

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        return {"encoder/layer": list(self.encoder.attentions())}

    def _checked_mask(self, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        if mask is not None:
            check_boolean(mask, "a token stands")
            if mask.shape != ids.shape:
                raise ValueError(f"mask must have the shape of ids, {tuple(ids.shape)}, got {tuple(mask.shape)}")
        return mask


class TokenTables(Protocol):
    """What turns tokens into vectors: a BERT, or the input of a decoder that is made as one."""

    config: BertConfig
    words: FixedInput
    positions: nn.Embedding
    segments: nn.Embedding
    embedding_norm: nn.LayerNorm
    training: bool


def embed_tokens(
    tables: TokenTables, ids: Tensor, segments: Tensor | None, positions: Tensor | None, *, dtype: torch.dtype
) -> Tensor:
    """The normalised sum of the vectors of words, positions and segments, (batch, positions, model_dim).

    Args:
        ids, segments, positions: as in `Bert.encode`.
        dtype: of the blocks that read them.
    """
    most = tables.config.max_positions
    if ids.dim() != 2 or ids.shape[1] == 0:
        raise ValueError(f"ids must be (batch, positions) with at least one position, got {tuple(ids.shape)}")
    if positions is None:
        if ids.shape[1] > most:
            raise ValueError(
                f"ids must have at most the model's max_positions, {most}, got a sequence of {ids.shape[1]}; cut "
                "it, or leave longer ones out"
            )
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    segments = torch.zeros_like(ids) if segments is None else segments
    for name, values, size in (
        ("segments", segments, tables.config.num_segments),
        ("positions", positions, most),
    ):
        _check_places(name, values, size, ids)
    vectors_BND = tables.words(ids) + tables.positions(positions) + tables.segments(segments)
    normed_BND = tables.embedding_norm(vectors_BND).to(dtype)
    return F.dropout(normed_BND, tables.config.dropout, tables.training)


class MaskedWords(nn.Module):
    """The head of a BERT: a linear layer, its activation, a norm, and a softmax over all word pieces.

    Args:
        config: its widths and activation.
        vocabulary_size: number of word pieces.
    """

    def __init__(self, config: BertConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.model_dim, config.model_dim)
        self.norm = nn.LayerNorm(config.model_dim, eps=config.norm_eps)
        self.output = FullOutput(vocabulary_size, config.model_dim, bias=True)

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of predicting `target` from vectors of `Bert.encode`; arguments as those of an output layer."""
        return self.output(self._transformed(hidden), target, reduction)

    def log_prob(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The log-probability of one token for every vector."""
        return self.output.log_prob(self._transformed(hidden), target)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probability of every token of the vocabulary."""
        return self.output.log_probs(self._transformed(hidden))

    def topk(self, hidden: Tensor, k: int) -> TopK:
        """The k likeliest tokens for every vector."""
        return self.output.topk(self._transformed(hidden), k)

    def _transformed(self, hidden: Tensor) -> Tensor:
        inner = self.dense(hidden)
        transformed: Tensor = self.norm(F.gelu(inner) if self.activation == "gelu" else inner.relu())
        return transformed

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


def _check_places(name: str, values: Tensor, size: int, ids: Tensor) -> None:
    if values.shape != ids.shape:
        raise ValueError(f"{name} must have the shape of ids, {tuple(ids.shape)}, got {tuple(values.shape)}")
    rule = f"from 0 to {size - 1}, as the model has {size} {name}"
    check_values(name, rule, values, lambda v: (v >= 0) & (v < size))
