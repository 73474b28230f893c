"""Keys and values of an attention layer, kept so that decoding computes every position once.

Shapes: B batch, H heads, N positions, E numbers per head.
"""

import torch
from torch import Tensor

from anymax.mappings.arguments import check_device


class KeyValueCache:
    """Keys and values of one self-attention layer, in memory that is allocated at the first append.

    It holds no gradients: decode under `torch.no_grad()`.

    Args:
        max_length: number of positions it has room for.

    Example:
        >>> from anymax.attention import KeyValueCache, MultiHeadAttention
        >>> layer, cache, vectors = MultiHeadAttention(16, 4), KeyValueCache(max_length=5), torch.randn(2, 5, 16)
        >>> with torch.no_grad():
        ...     steps = [layer(vectors[:, i : i + 1], is_causal=True, cache=cache) for i in range(5)]
        >>> torch.allclose(torch.cat(steps, 1), layer(vectors, is_causal=True), atol=1e-5)
        True
    """

    def __init__(self, max_length: int) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length = max_length
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys_BHNE: Tensor, values_BHNE: Tensor) -> tuple[Tensor, Tensor]:
        """Take in new positions; gives the keys and the values of all positions so far."""
        if torch.is_grad_enabled() and (keys_BHNE.requires_grad or values_BHNE.requires_grad):
            raise RuntimeError("a KeyValueCache holds no gradients, got keys that need one; use torch.no_grad()")
        if self._keys is None or self._values is None:
            self._keys, self._values = self._room_for(keys_BHNE), self._room_for(values_BHNE)
        self._check_fit(keys_BHNE, self._keys)
        end = self.length + keys_BHNE.shape[2]
        self._keys[:, :, self.length : end] = keys_BHNE
        self._values[:, :, self.length : end] = values_BHNE
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def reorder(self, index: Tensor) -> None:
        """Keep the rows of the batch that `index` names, in its order, as beam search does after every step.

        Args:
            index: (new batch) integers below the batch size; a row may be named several times or not at all, so the
                batch may grow or shrink. An empty cache stays empty.
        """
        if self._keys is not None and self._values is not None:
            check_rows(index, self._keys)
            self._keys, self._values = self._selected(self._keys, index), self._selected(self._values, index)

    def _selected(self, room_BHNE: Tensor, index: Tensor) -> Tensor:
        part_BHNE = room_BHNE[:, :, : self.length].index_select(0, index)
        if index.shape[0] != room_BHNE.shape[0]:
            room_BHNE = self._room_for(part_BHNE)
        room_BHNE[:, :, : self.length] = part_BHNE
        return room_BHNE

    def _room_for(self, part_BHNE: Tensor) -> Tensor:
        batch, heads, _, width = part_BHNE.shape
        return part_BHNE.new_empty(batch, heads, self.max_length, width)

    def _check_fit(self, keys_BHNE: Tensor, room_BHNE: Tensor) -> None:
        batch, heads, num_new, width = keys_BHNE.shape
        if (batch, heads, width) != (room_BHNE.shape[0], room_BHNE.shape[1], room_BHNE.shape[3]):
            raise ValueError(
                f"keys must have the batch, heads and width that the cache began with, {tuple(room_BHNE.shape)}, "
                f"got {tuple(keys_BHNE.shape)}; begin a new cache for another batch"
            )
        if self.length + num_new > self.max_length:
            raise ValueError(
                f"a cache must have room for every position, got {num_new} more after {self.length} in one of "
                f"max_length {self.max_length}; make it longer"
            )


class CrossAttentionCache:
    """Keys and values of one cross-attention layer, computed once from an encoder's output, and its padding mask.

    Made by `MultiHeadAttention.precompute`. Unlike a KeyValueCache it holds gradients.

    Args:
        keys: (batch, heads, keys, numbers per head).
        values: as `keys`.
        mask: (batch, 1, 1, keys), true where a key may be attended to; None for everywhere.

    Example:
        >>> layer = anymax.attention.MultiHeadAttention(16, 4)
        >>> encoded, query = torch.randn(2, 7, 16), torch.randn(2, 1, 16)
        >>> cache = layer.precompute(encoded)  # once, for all steps of decoding
        >>> torch.allclose(layer(query, cache=cache), layer(query, encoded), atol=1e-5)
        True
    """

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> None:
        self.keys, self.values, self.mask = keys, values, mask

    def reorder(self, index: Tensor) -> None:
        """Keep the rows of the batch that `index` names, in its order; as `KeyValueCache.reorder`."""
        check_rows(index, self.keys)
        self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self.mask is not None:
            self.mask = self.mask.index_select(0, index)


def check_rows(index: Tensor, batch_first: Tensor) -> None:
    """An index of rows is a vector of integers below the batch size; values are read on the CPU alone."""
    batch = batch_first.shape[0]
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(
            f"index must be a tensor of int32 or int64, got {got}; turn a mask into one by mask.nonzero()[:, 0]"
        )
    if index.dim() != 1:
        raise ValueError(f"index must have one dimension, the rows to keep, got shape {tuple(index.shape)}; flatten it")
    check_device("index", index, batch_first, "the cache")
    # On another device the values would have to be waited for.
    if index.device.type == "cpu" and not bool(((index >= 0) & (index < batch)).all()):
        raise ValueError(f"index must name rows of the batch, from 0 to {batch - 1}, got {index.tolist()}")
