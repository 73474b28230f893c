"""KeyValueCache: what an attention layer has seen, so that decoding computes every position once.

Shapes: B batch, H heads, N positions, E numbers per head.
"""

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of one attention layer, in memory that is taken at once, at the first append.

    It holds no gradients: decode under `torch.no_grad()`.

    Args:
        max_length: how many positions it has room for.
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
