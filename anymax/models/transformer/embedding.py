"""What enters the first block: the vectors of words, scaled, with their positions.

Shapes: B batch, N positions, D the model's dimension.
"""

import math

import torch
from torch import Tensor, nn

from anymax.attention import sinusoids
from anymax.models.language_model.model import check_vectors
from anymax.models.transformer.config import TransformerConfig
from anymax.regularizers import fast_dropout


def embed(
    input: nn.Module, ids: Tensor, config: TransformerConfig, *, dtype: torch.dtype, start: int = 0, training: bool
) -> Tensor:
    """Vectors of words as blocks read them: times the root of their width, with sinusoids if the config has them.

    Args:
        input: a layer from ids to vectors of model_dim.
        ids: (batch, positions).
        dtype: of the parameters of the blocks, which what they add to has under autocast too.
        start: the first position.
        training: whether the config's dropout acts.
    """
    vectors_BND = input(ids)
    model_dim = config.model_dim
    check_vectors(vectors_BND, "model_dim", model_dim)
    vectors_BND = math.sqrt(model_dim) * vectors_BND.to(dtype)
    if config.positions == "sinusoidal":
        vectors_BND = vectors_BND + sinusoids(ids.shape[1], model_dim, start=start, device=ids.device).to(dtype)
    return fast_dropout(vectors_BND, config.dropout, training)
