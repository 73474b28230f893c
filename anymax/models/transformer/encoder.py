"""Encoder: a stack of blocks in which every position attends to all others."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from anymax.models.transformer.block import MakeMapping, TransformerBlock, build_norm, check_makers
from anymax.models.transformer.config import TransformerConfig


class Encoder(nn.Module):
    """Vectors of a sequence to vectors that know of the whole sequence.

    It reads vectors, to which positions were added already, so that any embedding can stand before it.

    Args:
        config: sizes, dropout rates and choices.
        mapping: called once for every block, makes the mapping of its attention; by default, or where it gives None,
            softmax.
    """

    def __init__(self, config: TransformerConfig, *, mapping: MakeMapping | None = None) -> None:
        super().__init__()
        check_makers(mapping=mapping)
        self.blocks = nn.ModuleList(
            TransformerBlock(config, mapping=None if mapping is None else mapping()) for _ in range(config.num_layers)
        )
        self.final_norm = build_norm(config) if config.final_norm else None

    def forward(self, hidden: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The vectors after the last block, in the shape of `hidden`.

        Args:
            hidden: (batch, positions, model_dim).
            key_mask: (batch, positions), true where a position may be attended to: false for padding.
        """
        for block in self.blocks:
            hidden = block(hidden, key_mask=key_mask)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters of the blocks."""
        return next(self.blocks.parameters()).dtype

    def attentions(self) -> Iterator[nn.Module]:
        """The layers of self-attention, one of every block."""
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            yield block.attention
