"""AdaptiveInput: wide vectors for frequent words, narrow ones for rare words, all projected to one dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.vocabulary.bands import Bands
from anymax.vocabulary.fixed_input import check_ids, check_index


class AdaptiveInput(nn.Module):
    """Vectors of words from one table per band, each with a projection of its own, the head too; no bias.

    Every table and projection takes part in every call, so that all get a gradient, zero for a band without words.

    Args:
        bands: how the vocabulary is cut, and the dimension of each band.
        model_dim: the dimension of the vectors that come out.
        padding_index: a word whose vector is zero and whose row gets no gradient from here.

    Baevski and Auli 2019.

    Example:
        >>> from anymax.vocabulary import AdaptiveInput, Bands
        >>> layer = AdaptiveInput(Bands.from_cutoffs((200, 2000), 10_000, dim=64), model_dim=64)
        >>> layer(torch.tensor([[5, 1500, 9999]])).shape
        torch.Size([1, 3, 64])
        >>> sum(one.numel() for one in layer.parameters())  # one table of such vectors has 640,000
        78976
    """

    def __init__(self, bands: Bands, model_dim: int, *, padding_index: int | None = None) -> None:
        super().__init__()
        check_counts(model_dim=model_dim)
        check_index("padding_index", padding_index, bands.vocabulary_size)
        self.bands = bands
        self.padding_index = padding_index
        self.tables = nn.ParameterList(
            torch.empty(size, dim) for size, dim in zip(bands.sizes, bands.dims, strict=True)
        )
        self.projections = nn.ParameterList(torch.empty(model_dim, dim) for dim in bands.dims)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table, projection in zip(self.tables, self.projections, strict=True):
            nn.init.normal_(table, std=table.shape[1] ** -0.5)
            nn.init.xavier_uniform_(projection)
        if self.padding_index is None:
            return
        # One row in one band: at the same place of the other bands stand real words.
        for table, start, size in zip(self.tables, self.bands.edges, self.bands.sizes, strict=False):
            if start <= self.padding_index < start + size:
                nn.init.zeros_(table[self.padding_index - start])

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, of any shape, in one more dimension.

        Each word is looked up in every band and zeroed outside its own. Then the bands side by side need one product,
        the order of words is kept, and no shape depends on the words.
        """
        check_ids(ids, self.bands.vocabulary_size)
        band = self.bands.band_of(ids)
        vectors = [self._vectors_in(i, ids, band == i) for i in range(self.bands.num_bands)]
        return F.linear(torch.cat(vectors, -1), torch.cat(list(self.projections), 1))

    def _vectors_in(self, i: int, ids: Tensor, is_in: Tensor) -> Tensor:
        """The rows of band i, zero for words outside."""
        local = ids - self.bands.edges[i]
        # Words outside are spread over the table, so that their zero gradients do not all queue at one row.
        rows = F.embedding(torch.where(is_in, local, local.remainder(self.bands.sizes[i])), self.tables[i])
        is_kept = is_in if self.padding_index is None else is_in & (ids != self.padding_index)
        return rows.masked_fill(~is_kept[..., None], 0)

    def extra_repr(self) -> str:
        return (
            f"cutoffs={self.bands.cutoffs}, vocabulary_size={self.bands.vocabulary_size}, dims={self.bands.dims}, "
            f"model_dim={self.projections[0].shape[0]}, padding_index={self.padding_index}"
        )
