"""Support: the values a batch of latents can take, gathered into one list of (example, value) pairs."""

from typing import NamedTuple

from torch import Tensor


class Support(NamedTuple):
    """Pairs of an example and one of its values, in order of example.

    Args:
        values: (pairs, size), in the dtype of the scores.
        probs: (pairs,) how likely the example is to take the value; they carry gradients to the scores.
        example: (pairs,) the row of the flattened batch that each pair belongs to.
    """

    values: Tensor
    probs: Tensor
    example: Tensor

    def positive(self) -> "Support":
        """The same without the pairs of zero probability."""
        kept = self.probs.detach() > 0
        return Support(self.values[kept], self.probs[kept], self.example[kept])
