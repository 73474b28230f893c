"""Decoder: a stack of causal blocks that attend to an encoder's output, and what decoding with it keeps."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from anymax.attention import CrossAttentionCache, KeyValueCache
from anymax.attention.cache import check_rows
from anymax.models.transformer.block import MakeMapping, TransformerBlock, build_norm, check_makers
from anymax.models.transformer.config import TransformerConfig


class DecoderCache:
    """What decoding keeps for every block, so that the encoder runs once and no position is computed twice.

    Args:
        own: keys and values of the positions so far, for each block.
        memory: keys and values of the encoder's output, for each block.
        second: the same of a second encoder's, where there is one.
    """

    def __init__(
        self,
        own: Sequence[KeyValueCache],
        memory: Sequence[CrossAttentionCache],
        second: Sequence[CrossAttentionCache] = (),
    ) -> None:
        self.own, self.memory, self.second = list(own), list(memory), list(second)
        keys = self.memory[0].keys
        # Which row of the encoder's output each row of the batch attends to.
        self._rows = torch.arange(keys.shape[0], device=keys.device)

    @property
    def length(self) -> int:
        """The number of positions so far."""
        return self.own[0].length

    def reorder(self, index: Tensor) -> None:
        """Keep the rows of the batch that `index` names, in its order; as `KeyValueCache.reorder`.

        What is kept of the encoder's output is copied only if a row comes to attend to another sequence, which it does
        not while beams of one sequence change places.
        """
        check_rows(index, self._rows)
        rows = self._rows.index_select(0, index)
        if not torch.equal(rows, self._rows):
            for of_memory in (*self.memory, *self.second):
                of_memory.reorder(index)
            self._rows = rows
        for of_block in self.own:
            of_block.reorder(index)


class Decoder(nn.Module):
    """Vectors of the words so far to vectors that the next words are predicted from, given an encoder's output.

    It reads vectors, to which positions were added already, so that any embedding can stand before it.

    Args:
        config: sizes, dropout rates and choices.
        memory_dim: how wide the encoder's output is; by default as the decoder.
        mapping: called once for every block, makes the mapping of its self-attention; by default, or where it gives
            None, softmax.
        cross_mapping: as `mapping`, of the attention to the encoder's output.
        second_memory_dim: how wide a second encoder's output is, which every block attends to after the first, with
            mappings that `cross_mapping` makes too; by default there is none.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        memory_dim: int | None = None,
        mapping: MakeMapping | None = None,
        cross_mapping: MakeMapping | None = None,
        second_memory_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_makers(mapping=mapping, cross_mapping=cross_mapping)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                config,
                mapping=None if mapping is None else mapping(),
                memory_dim=config.model_dim if memory_dim is None else memory_dim,
                cross_mapping=None if cross_mapping is None else cross_mapping(),
                second_memory_dim=second_memory_dim,
                second_mapping=None if cross_mapping is None or second_memory_dim is None else cross_mapping(),
            )
            for _ in range(config.num_layers)
        )
        self.final_norm = build_norm(config) if config.final_norm else None

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
        *,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """The vectors after the last block, in the shape of `hidden`.

        Args:
            hidden: (batch, positions, model_dim).
            memory: (batch, memory positions, memory_dim), the encoder's output.
            memory_mask: (batch, memory positions), true where a position of `memory` may be attended to.
            second_memory, second_mask: the same of a second encoder.
            cache: in place of these, of `new_cache`, with the positions before these; these are added to it.
        """
        for i, block in enumerate(self.blocks):
            hidden = block(
                hidden,
                is_causal=True,
                memory=memory,
                memory_mask=memory_mask,
                cache=None if cache is None else cache.own[i],
                memory_cache=None if cache is None else cache.memory[i],
                second_memory=second_memory,
                second_mask=second_mask,
                second_cache=None if cache is None or not cache.second else cache.second[i],
            )
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def new_cache(
        self,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
        *,
        max_length: int,
    ) -> DecoderCache:
        """A cache without positions, with room for `max_length`; the other arguments are those of `forward`."""
        blocks = list(self._blocks())
        return DecoderCache(
            [KeyValueCache(max_length) for _ in blocks],
            [block.precompute(memory, memory_mask) for block in blocks],
            [] if second_memory is None else [block.precompute_second(second_memory, second_mask) for block in blocks],
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters of the blocks."""
        return next(self.blocks.parameters()).dtype

    def attentions(self) -> Iterator[nn.Module]:
        """The layers of self-attention, one of every block."""
        for block in self._blocks():
            yield block.attention

    def cross_attentions(self) -> Iterator[nn.Module]:
        """The layers of attention to the encoder's output, one of every block."""
        for block in self._blocks():
            assert block.cross_attention is not None
            yield block.cross_attention

    def second_attentions(self) -> Iterator[nn.Module]:
        """The layers of attention to a second encoder's output, one of every block; none where there is no such."""
        return (block.second_attention for block in self._blocks() if block.second_attention is not None)

    def _blocks(self) -> Iterator[TransformerBlock]:
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            yield block
