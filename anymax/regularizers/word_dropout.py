"""Word dropout: some words of the vocabulary have no vector while a batch is read."""

import torch.nn.functional as F
from torch import Tensor

from anymax.checks import check_shares


def word_dropout(vectors: Tensor, ids: Tensor, vocabulary_size: int, rate: float, *, training: bool) -> Tensor:
    """Drop words at random: the vectors of a dropped word are zero at all its places in the batch.

    It takes the vectors that an input layer gave, not its table, so it follows any input layer, and an output layer
    tied to it scores with the table as it is.

    Args:
        vectors: the shape of `ids` and one more dimension.
        ids: the words that the vectors stand for.
        vocabulary_size: number of words; one number is drawn for each.
        rate: the probability of each word to be dropped; the others are divided by 1 - rate.
        training: otherwise the vectors themselves come back.

    Gal and Ghahramani 2016; Merity et al. 2018.

    Example:
        >>> ids = torch.tensor([3, 5, 3, 7])
        >>> vectors = torch.ones(4, 2)
        >>> dropped = anymax.regularizers.word_dropout(vectors, ids, 10, 0.5, training=True)
        >>> torch.equal(dropped[0], dropped[2])  # one word, one fate
        True
    """
    check_shares(rate=rate)
    if vectors.shape[:-1] != ids.shape:
        raise ValueError(
            f"vectors must have the shape of ids and one more dimension, got {tuple(vectors.shape)} for ids of shape "
            f"{tuple(ids.shape)}; give the vectors that an input layer made of these ids"
        )
    if not training or rate == 0:
        return vectors
    kept_V = F.dropout(vectors.new_ones(vocabulary_size), rate)
    return vectors * kept_V[ids][..., None]
