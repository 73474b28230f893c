"""Configs of input and output layers, as plain data that imports no torch; `build` makes the layer.

The number of words is not part of a config: `build` takes it, or a lexicon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, TypeVar, get_args

from anymax.transforms.config import TransformConfig

if TYPE_CHECKING:
    from torch import nn

    from anymax.vocabulary import (
        AdaptiveInput,
        AdaptiveOutput,
        Bands,
        CharacterInput,
        FixedInput,
        FullOutput,
        MixtureOutput,
        SparseOutput,
    )

# How a share of the target is spread over other words: as torch has it, or as OpenNMT has it.
Smoothing = Literal["torch", "opennmt"]
# How wide tables narrower than the model are at toy size; the model is 16 wide.
TOY_DIM = 8


class Words(Protocol):
    """What a layer must know of its words, sorted by falling count; a `Lexicon` is one."""

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def eos(self) -> int: ...

    @property
    def unk(self) -> int: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class FixedInputConfig:
    """One table of vectors for all words.

    Args:
        dim: width of the table; by default model_dim, otherwise with a projection.

    Example:
        >>> lexicon = anymax.data.Lexicon.from_words("a rose is a rose is a rose".split())
        >>> anymax.vocabulary.FixedInputConfig(dim=8).build(lexicon, model_dim=16)
        FixedInput(vocabulary_size=5, model_dim=16, dim=8, padding_index=None)
    """

    dim: int | None = None

    def build(self, lexicon: Words, model_dim: int) -> FixedInput:
        """The layer, for the words of a lexicon and vectors of `model_dim` numbers."""
        from anymax.vocabulary import FixedInput

        return FixedInput(len(lexicon), model_dim, dim=self.dim)

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, in a model that was `model_dim` wide."""
        return replace(self, dim=_toy_dim(self.dim, model_dim))


@dataclass(frozen=True)
class AdaptiveInputConfig:
    """Tables of frequent words in wide vectors and of rare ones in narrow vectors, all projected to the model's width.

    Args:
        cutoffs: the first word of each band after the head. Papers often print the sizes of bands instead.
        dim: width of the head, by default model_dim; band i has dim // factor**i.
        factor: the ratio of the widths of neighbouring bands.
        shares: instead of cutoffs: where each band after the head begins, as a share of the words there are.

    Example:
        >>> lexicon = anymax.data.Lexicon.from_words("a rose is a rose is a rose".split())
        >>> anymax.vocabulary.AdaptiveInputConfig(cutoffs=(3,)).build(lexicon, model_dim=16).bands
        Bands(vocabulary_size=5, cutoffs=(3,), dims=(16, 4))
    """

    cutoffs: tuple[int, ...] = ()
    _: KW_ONLY
    dim: int | None = None
    factor: int = 4
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_bands(self.cutoffs, self.shares)

    def build(self, lexicon: Words, model_dim: int) -> AdaptiveInput:
        """The layer, for the words of a lexicon and vectors of `model_dim` numbers."""
        from anymax.vocabulary import AdaptiveInput

        return AdaptiveInput(_bands(self, len(lexicon), model_dim), model_dim)

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, with as many bands of fewer words."""
        return _toy_bands(self, model_dim)


@dataclass(frozen=True)
class CharacterInputConfig:
    """Vectors of words from the bytes of their spelling; the defaults are those of Baevski and Auli 2019.

    Args:
        char_dim: width of the vector of a byte.
        filters: pairs of a width in bytes and the number of filters of that width.
        num_highways: number of highway layers.
        max_bytes: longer words are cut here.
        windows: whether filters see the windows that begin inside the "word", or all those of the word "padded" to
            `max_bytes`, as in fairseq.
        spell_unknown: whether a language model reads words outside its vocabulary by their spelling and not as one
            unknown word. It predicts the unknown word for them either way.

    Example:
        >>> lexicon = anymax.data.Lexicon.from_words("a rose is a rose is a rose".split())
        >>> config = anymax.vocabulary.CharacterInputConfig(char_dim=4, filters=((1, 8), (2, 8)))
        >>> config.build(lexicon, model_dim=16)(torch.tensor([2, 3])).shape
        torch.Size([2, 16])
    """

    char_dim: int = 128
    filters: tuple[tuple[int, int], ...] = ((1, 128), (2, 256), (3, 384), (4, 512), (5, 512), (6, 512), (7, 512))
    num_highways: int = 1
    max_bytes: int = 50
    windows: Literal["word", "padded"] = "word"
    spell_unknown: bool = False

    def build(self, lexicon: Words, model_dim: int) -> CharacterInput:
        """The layer, for the words of a lexicon and vectors of `model_dim` numbers."""
        from anymax.vocabulary import CharacterInput

        return CharacterInput(
            lexicon.words,
            model_dim,
            end_index=lexicon.eos,
            unknown_index=lexicon.unk,
            char_dim=self.char_dim,
            filters=self.filters,
            num_highways=self.num_highways,
            max_bytes=self.max_bytes,
            windows=self.windows,
        )

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, with as many widths of few filters."""
        return replace(self, char_dim=4, filters=tuple((width, 4) for width, _ in self.filters))


@dataclass(frozen=True)
class FullOutputConfig:
    """A softmax over all words.

    Args:
        dim: width of the table; by default model_dim, otherwise with a projection.
        bias: whether every word has a number added to its score.
        label_smoothing: share of the target that is spread evenly over words.
        smoothing: over which: "torch", all words, or "opennmt", all but the target.
        transform: an increasing function of every score before the softmax.

    Example:
        >>> from anymax.transforms import PLIFConfig
        >>> config = anymax.vocabulary.FullOutputConfig(bias=True, transform=PLIFConfig(1000))
        >>> config.build(5000, model_dim=16)
        FullOutput(
          5000, 16, dim=16, bias=True
          (transform): PLIF(pieces=1000, bound=20.0)
        )
    """

    dim: int | None = None
    _: KW_ONLY
    bias: bool = False
    label_smoothing: float = 0.0
    smoothing: Smoothing = "torch"
    transform: TransformConfig | None = None

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    def build(self, size: int, model_dim: int) -> FullOutput:
        """The layer, for `size` words and vectors of `model_dim` numbers."""
        from anymax.vocabulary import FullOutput

        return FullOutput(
            size,
            model_dim,
            dim=self.dim,
            bias=self.bias,
            transform=None if self.transform is None else self.transform.build(),
            label_smoothing=_torchs_smoothing(self.label_smoothing, self.smoothing, size),
        )

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, in a model that was `model_dim` wide."""
        return replace(self, dim=_toy_dim(self.dim, model_dim), transform=_toy_transform(self.transform))


@dataclass(frozen=True)
class AdaptiveOutputConfig:
    """A softmax over the frequent words and one cluster per tail, then over the words of a tail.

    Args:
        cutoffs: the first word of each band after the head, which for tying must be those of the input.
        dim: width of the head, by default model_dim; band i has dim // factor**i.
        factor: the ratio of the widths of neighbouring bands.
        shares: instead of cutoffs: where each band after the head begins, as a share of the words there are.
        tail_dropout: the rate for vectors projected to a tail.
        softmax_input_dropout: the rate for vectors before head and tails, as fairseq has it.
        head_projection: whether a projection stands before the words of the head; by default where widths differ.

    Example:
        >>> config = anymax.vocabulary.AdaptiveOutputConfig(shares=(0.02, 0.2), tail_dropout=0.2)
        >>> config.build(5000, model_dim=16).bands
        Bands(vocabulary_size=5000, cutoffs=(100, 1000), dims=(16, 4, 1))
    """

    transform: ClassVar[None] = None

    cutoffs: tuple[int, ...] = ()
    _: KW_ONLY
    dim: int | None = None
    factor: int = 4
    shares: tuple[float, ...] = ()
    tail_dropout: float = 0.0
    softmax_input_dropout: float = 0.0
    head_projection: bool | None = None

    def __post_init__(self) -> None:
        _check_bands(self.cutoffs, self.shares)

    def build(self, size: int, model_dim: int) -> AdaptiveOutput:
        """The layer, for `size` words and vectors of `model_dim` numbers."""
        from anymax.vocabulary import AdaptiveOutput

        return AdaptiveOutput(
            _bands(self, size, model_dim),
            model_dim,
            tail_dropout=self.tail_dropout,
            softmax_input_dropout=self.softmax_input_dropout,
            head_projection=self.head_projection,
        )

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, with as many bands of fewer words."""
        return _toy_bands(self, model_dim)


@dataclass(frozen=True)
class MixtureOutputConfig:
    """A mixture of softmaxes over all words.

    Args:
        num_experts: number of softmaxes that are mixed.
        dim: width of the table; by default model_dim.
        bias: whether every word has a number added to its score.
        latent_dropout: the rate for the vectors of the experts.
        variational: whether the same numbers of these are dropped at all positions of a row.
        transform: an increasing function of every score before each softmax.

    Example:
        >>> config = anymax.vocabulary.MixtureOutputConfig(num_experts=3, latent_dropout=0.3)
        >>> config.build(5000, model_dim=16).num_experts
        3
    """

    num_experts: int
    _: KW_ONLY
    dim: int | None = None
    bias: bool = True
    latent_dropout: float = 0.0
    variational: bool = False
    transform: TransformConfig | None = None

    def build(self, size: int, model_dim: int) -> MixtureOutput:
        """The layer, for `size` words and vectors of `model_dim` numbers."""
        from anymax.vocabulary import MixtureOutput

        return MixtureOutput(
            size,
            model_dim,
            num_experts=self.num_experts,
            dim=self.dim,
            bias=self.bias,
            latent_dropout=self._dropout(),
            transform=None if self.transform is None else self.transform.build(),
        )

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, in a model that was `model_dim` wide, with few experts."""
        return replace(
            self,
            dim=_toy_dim(self.dim, model_dim),
            num_experts=min(self.num_experts, 3),
            transform=_toy_transform(self.transform),
        )

    def _dropout(self) -> float | nn.Module:
        from anymax.regularizers import VariationalDropout

        return VariationalDropout(self.latent_dropout, dim=-2) if self.variational else self.latent_dropout


@dataclass(frozen=True)
class SparseOutputConfig:
    """Entmax over all words, trained with its own loss: most words get probability zero, and there is no perplexity.

    Args:
        alpha: above 0; 1 is softmax, 2 is sparsemax.
        learn_alpha: learn it, from this start strictly between 1 and 2.
        dim: width of the table; by default model_dim, otherwise with a projection.
        bias: whether every word has a number added to its score.
        label_smoothing: share of the target that is spread evenly over words.
        smoothing: over which: "torch", all words, or "opennmt", all but the target.

    Example:
        >>> config = anymax.vocabulary.SparseOutputConfig(alpha=1.5, learn_alpha=True)
        >>> config.build(5000, model_dim=16).mapping
        LearnedEntmax(shape=(1,), dim=-1, low=1, high=2)
    """

    transform: ClassVar[None] = None

    alpha: float = 1.5
    _: KW_ONLY
    learn_alpha: bool = False
    dim: int | None = None
    bias: bool = False
    label_smoothing: float = 0.0
    smoothing: Smoothing = "torch"

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    def build(self, size: int, model_dim: int) -> SparseOutput:
        """The layer, for `size` words and vectors of `model_dim` numbers."""
        from anymax.vocabulary import SparseOutput

        return SparseOutput(
            size,
            model_dim,
            alpha=self.alpha,
            learn_alpha=self.learn_alpha,
            dim=self.dim,
            bias=self.bias,
            label_smoothing=_torchs_smoothing(self.label_smoothing, self.smoothing, size),
        )

    def toy(self, model_dim: int) -> Self:
        """The same at a size for tests, in a model that was `model_dim` wide."""
        return replace(self, dim=_toy_dim(self.dim, model_dim))


InputConfig = FixedInputConfig | AdaptiveInputConfig | CharacterInputConfig
OutputConfig = FullOutputConfig | AdaptiveOutputConfig | MixtureOutputConfig | SparseOutputConfig
Banded = TypeVar("Banded", bound=AdaptiveInputConfig | AdaptiveOutputConfig)


def _check_smoothing(smoothing: Smoothing) -> None:
    if smoothing not in get_args(Smoothing):
        raise ValueError(f"smoothing must be one of {get_args(Smoothing)}, got {smoothing!r}")


def _torchs_smoothing(rate: float, smoothing: Smoothing, size: int) -> float:
    """The label smoothing of torch that gives every one of `size` words the same share of the target.

    OpenNMT gives rate / (V - 2) to each word but the target and the padding, and its V counts the padding. Ours has no
    padding, so each of the others gets rate / (size - 1), and the target 1 - rate. Torch's gives r / size to all, and
    the target 1 - r besides: with r = rate size / (size - 1) these are the same.
    """
    if smoothing == "torch" or rate == 0:
        return rate
    if rate * size > size - 1:
        raise ValueError(
            f"label_smoothing must be at most {(size - 1) / size:g} for {size} words with smoothing='opennmt', where "
            f"the target is never less likely than another word, got {rate}; make it smaller"
        )
    return rate * size / (size - 1)


def _check_bands(cutoffs: tuple[int, ...], shares: tuple[float, ...]) -> None:
    if bool(cutoffs) == bool(shares):
        raise ValueError(
            f"cutoffs or shares must be given, and not both, got cutoffs {cutoffs} and shares {shares}; shares suit "
            "lexicons of any size"
        )
    if list(shares) != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
        raise ValueError(f"shares must rise and lie between 0 and 1, got {shares}")


def _bands(layer: AdaptiveInputConfig | AdaptiveOutputConfig, size: int, model_dim: int) -> Bands:
    from anymax.vocabulary import Bands

    # A share of a few words may be none of them, and every band has one at least.
    cutoffs = layer.cutoffs or tuple(max(i, round(share * size)) for i, share in enumerate(layer.shares, start=1))
    dim = model_dim if layer.dim is None else layer.dim
    return Bands.from_cutoffs(cutoffs, size, dim=dim, factor=layer.factor)


def _toy_bands(layer: Banded, model_dim: int) -> Banded:
    num_tails = len(layer.cutoffs) or len(layer.shares)
    shares = tuple(0.5 ** (num_tails - i) for i in range(num_tails))
    # A toy is too narrow for four bands that each have a quarter of the width before.
    return replace(layer, cutoffs=(), shares=shares, dim=_toy_dim(layer.dim, model_dim), factor=min(layer.factor, 2))


def _toy_dim(dim: int | None, model_dim: int) -> int | None:
    return None if dim is None or dim == model_dim else TOY_DIM


def _toy_transform(transform: TransformConfig | None) -> TransformConfig | None:
    return None if transform is None else transform.toy()
