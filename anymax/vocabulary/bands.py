"""Bands: how a vocabulary sorted by frequency is cut into a head of frequent words and tails of rarer ones.

This file does not import torch, so that configs can hold bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from anymax.vocabulary.cutoffs import Cost


class Listable(Protocol):
    """A tensor or an array."""

    def tolist(self) -> list[float]: ...

    def __len__(self) -> int: ...


Counts = Sequence[float] | Listable


@dataclass(frozen=True)
class Bands:
    """A vocabulary cut into ranges of ids, each with its own dimension: frequent words first, in wide vectors.

    Usually made by `from_cutoffs`, `from_sizes` or `optimal`. `dataclasses.asdict` gives a plain dict of it, and
    `Bands(**that)` gives it back, also after JSON.

    Args:
        vocabulary_size: number of words, special words included.
        cutoffs: the first word of each band after the head; () is one band.
        dims: the dimension of each band, one more than there are cutoffs.

    Example:
        >>> bands = anymax.vocabulary.Bands.from_sizes((200, 1800, 8000), dim=64)
        >>> bands
        Bands(vocabulary_size=10000, cutoffs=(200, 2000), dims=(64, 16, 4))
        >>> bands.band_of(torch.tensor([5, 1500, 9999]))
        tensor([0, 1, 2])
    """

    vocabulary_size: int
    cutoffs: tuple[int, ...]
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        # JSON gives lists.
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        object.__setattr__(self, "dims", tuple(self.dims))
        _check_integers("vocabulary_size", (self.vocabulary_size,))
        _check_integers("cutoffs", self.cutoffs)
        _check_integers("dims", self.dims)
        _check_cutoffs(self.cutoffs, self.vocabulary_size)
        if len(self.dims) != self.num_bands:
            raise ValueError(
                f"dims must hold one dimension for each of the {self.num_bands} bands that {len(self.cutoffs)} "
                f"cutoffs make, got {self.dims}"
            )
        if min(self.dims) < 1:
            raise ValueError(f"dims must be at least 1, got {self.dims}; use fewer bands or larger dimensions")

    @classmethod
    def from_cutoffs(
        cls,
        cutoffs: Sequence[int],
        vocabulary_size: int,
        *,
        dim: int | None = None,
        factor: int = 4,
        dims: Sequence[int] | None = None,
        counts: Counts | None = None,
        num_specials: int = 0,
    ) -> Bands:
        """Bands that begin at the given words.

        Papers often print sizes instead ("20K/40K/200K"): those go to `from_sizes`.

        Args:
            dim: the dimension of the head; band i gets dim // factor**i. Give this or `dims`.
            dims: the dimension of each band.
            counts: the count of each word, in the order of the vocabulary; checked to fall from word to word.
            num_specials: words at the front whose counts need not fall.
        """
        if counts is not None:
            check_word_counts(counts, vocabulary_size, num_specials)
        return cls(vocabulary_size, tuple(cutoffs), _dims(len(cutoffs) + 1, dim, factor, dims))

    @classmethod
    def from_sizes(
        cls,
        sizes: Sequence[int],
        *,
        dim: int | None = None,
        factor: int = 4,
        dims: Sequence[int] | None = None,
        counts: Counts | None = None,
        num_specials: int = 0,
    ) -> Bands:
        """Bands of the given numbers of words, which together are the vocabulary. Arguments as in `from_cutoffs`."""
        _check_integers("sizes", sizes)
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sizes must give at least one band, and every band at least one word, got {tuple(sizes)}")
        cutoffs = [sum(sizes[:i]) for i in range(1, len(sizes))]
        return cls.from_cutoffs(
            cutoffs, sum(sizes), dim=dim, factor=factor, dims=dims, counts=counts, num_specials=num_specials
        )

    @classmethod
    def optimal(
        cls,
        counts: Counts,
        num_bands: int,
        *,
        dim: int | None = None,
        factor: int = 4,
        dims: Sequence[int] | None = None,
        num_specials: int = 0,
        min_head: int = 1,
        min_head_mass: float = 0.0,
        cost: Cost | None = None,
    ) -> Bands:
        """The bands whose scores cost least, by the formula that `Cost` states.

        Args:
            counts: the count of each word, falling from word to word.
            num_bands: number of bands, the head included. `cost.of(bands.cutoffs, counts)` says which number is best.
            min_head: the fewest words in the head.
            min_head_mass: the least share of all tokens that the head must hold.
            cost: what is minimized; `measure_cost` makes one for this machine. By default fixed numbers.

        Other arguments as in `from_cutoffs`.
        """
        from anymax.vocabulary.cutoffs import DEFAULT_COST, optimal_cutoffs

        dims = _dims(num_bands, dim, factor, dims)
        cutoffs = optimal_cutoffs(
            counts,
            num_bands,
            num_specials=num_specials,
            min_head=min_head,
            min_head_mass=min_head_mass,
            cost=cost or DEFAULT_COST,
        )
        return cls(len(counts), cutoffs, dims)

    @property
    def edges(self) -> tuple[int, ...]:
        """Where bands begin and end: 0, the cutoffs, the vocabulary size."""
        return (0, *self.cutoffs, self.vocabulary_size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many words each band holds."""
        return tuple(end - start for start, end in pairwise(self.edges))

    @property
    def num_bands(self) -> int:
        """How many bands there are, the head included."""
        return len(self.cutoffs) + 1

    def band_of(self, ids: Tensor) -> Tensor:
        """The band of each id, an integer tensor in the shape of `ids`."""
        band = ids.new_zeros(ids.shape)
        for cutoff in self.cutoffs:
            band = band + (ids >= cutoff)
        return band


def check_word_counts(counts: Counts, vocabulary_size: int, num_specials: int = 0) -> None:
    """Counts are given for every word, are not negative, and fall from word to word after the special ones."""
    values = counts.tolist() if hasattr(counts, "tolist") else list(counts)
    if len(values) != vocabulary_size:
        raise ValueError(
            f"counts must hold one number for each of the {vocabulary_size} words, got {len(values)}; "
            "special words need a count too, which may be 0"
        )
    if not 0 <= num_specials <= vocabulary_size:
        raise ValueError(
            f"num_specials must be between 0 and the vocabulary size {vocabulary_size}, got {num_specials}"
        )
    for word, count in enumerate(values):
        # Written so that NaN fails too.
        if not 0 <= count < float("inf"):
            raise ValueError(f"counts must be finite and not negative, got {count} for word {word}")
    for word in range(num_specials + 1, vocabulary_size):
        if values[word] > values[word - 1]:
            raise ValueError(
                f"counts must fall from word to word, but rise from {values[word - 1]} to {values[word]} at word "
                f"{word}; sort the vocabulary by count, and name special words at its front with num_specials"
            )


def _dims(num_bands: int, dim: int | None, factor: int, dims: Sequence[int] | None) -> tuple[int, ...]:
    if (dim is None) == (dims is None):
        raise ValueError(f"give either dim, the head's dimension, or dims, one per band; got dim={dim}, dims={dims}")
    if dims is not None:
        return tuple(dims)
    assert dim is not None
    _check_integers("dim and factor", (dim, factor))
    if factor < 1:
        raise ValueError(f"factor must be at least 1, got {factor}; 1 gives all bands the same dimension")
    if dim // factor ** (num_bands - 1) < 1:
        raise ValueError(
            f"dim must leave every band a dimension of at least 1, but {dim} // {factor}**{num_bands - 1} is 0; "
            "use fewer bands, a larger dim, a smaller factor, or give dims"
        )
    return tuple(dim // factor**i for i in range(num_bands))


def _check_integers(name: str, values: Sequence[int]) -> None:
    wrong = [value for value in values if isinstance(value, bool) or not isinstance(value, int)]
    if wrong:
        raise TypeError(f"{name} must be integers, got {wrong[0]!r}; convert with int()")


def _check_cutoffs(cutoffs: tuple[int, ...], vocabulary_size: int) -> None:
    if vocabulary_size < 1:
        raise ValueError(f"vocabulary_size must be at least 1, got {vocabulary_size}")
    if all(start < end for start, end in pairwise((0, *cutoffs, vocabulary_size))):
        return
    if cutoffs[-1] == vocabulary_size:
        advice = "leave out the last, the last band ends at the vocabulary size by itself"
    elif sum(cutoffs) == vocabulary_size:
        advice = "these add up to the vocabulary, so they may be sizes: use Bands.from_sizes"
    else:
        advice = "drop those that do not, or check that they belong to this vocabulary"
    raise ValueError(
        f"cutoffs must rise strictly and lie from 1 to {vocabulary_size - 1}, one less than the vocabulary size, "
        f"got {cutoffs}; {advice}"
    )
