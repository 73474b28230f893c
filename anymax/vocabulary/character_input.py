"""CharacterInput: vectors of words from their spelling, by filters over bytes and a highway network.

Shapes: N words, L bytes of a word, W bytes in a window, F filters of one width, E features of a word.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.vocabulary.fixed_input import check_ids, check_index

# All bytes, and 0 for what lies beyond the end of a word.
NUM_SYMBOLS = 257
# Words of like length are computed together, in this many groups.
NUM_GROUPS = 8
FILTERS = ((1, 128), (2, 256), (3, 384), (4, 512), (5, 512), (6, 512), (7, 512))

Windows = Literal["word", "padded"]


class CharacterInput(nn.Module):
    """Vectors of words from the UTF-8 bytes of their spelling.

    Filters of several widths run over the bytes; the largest output of each filter, rectified, is a feature of the
    word. Highway layers and a projection follow. A filter sees the windows that begin at one of the word's bytes and
    zeros beyond its end, so a vector depends on the word alone, and a word may be shorter than the widest filter.

    fairseq's CharacterTokenEmbedder instead pads every word to `max_bytes` and takes the maximum over all windows of
    the padded word: those of padding alone, whose output is the filter's bias, count too. Weights trained that way give
    other vectors with the default; `windows="padded"` gives the same.

    The end of a text and the unknown word have learned vectors instead, since their spelling means nothing.

    Further words may be given by `extend`, with ids that follow those of the vocabulary: an input that reads more words
    than the output predicts.

    Each distinct word of a batch is computed once. While compiling, where no shape may depend on the words, every
    word is computed by itself, at the length of the vocabulary's longest: more work, same result.

    Args:
        words: the spelling of each word of the vocabulary.
        model_dim: the dimension of the vectors that come out.
        char_dim: the dimension of a byte.
        filters: pairs of a width and the number of filters of that width.
        num_highways: number of highway layers.
        end_index: the word that ends a text.
        unknown_index: the word that stands for those outside the vocabulary.
        padding_index: a word whose vector is zero.
        max_bytes: longer words are cut here.
        windows: "word" for the windows that begin inside the word; "padded" for all windows of the word padded with
            zeros to `max_bytes`, as fairseq has them, where no filter may be wider than that.

    Kim et al. 2016; bytes and sizes: Baevski and Auli 2019.

    Example:
        >>> words = ["<eos>", "<unk>", "walk", "walks"]
        >>> layer = anymax.vocabulary.CharacterInput(words, 16, end_index=0, unknown_index=1, filters=((1, 8), (3, 8)))
        >>> layer.extend(["walked"])  # it gets id 4
        >>> layer(torch.tensor([[2, 3, 4, 0]])).shape
        torch.Size([1, 4, 16])
    """

    spellings: Tensor
    lengths: Tensor
    further_spellings: Tensor
    further_lengths: Tensor

    def __init__(
        self,
        words: Sequence[str],
        model_dim: int,
        *,
        end_index: int,
        unknown_index: int,
        padding_index: int | None = None,
        char_dim: int = 128,
        filters: Sequence[tuple[int, int]] = FILTERS,
        num_highways: int = 1,
        max_bytes: int = 50,
        windows: Windows = "word",
    ) -> None:
        super().__init__()
        _check_filters(filters)
        check_counts(model_dim=model_dim, char_dim=char_dim, max_bytes=max_bytes)
        _check_windows(windows, filters, max_bytes)
        _check_specials(len(words), end_index, unknown_index, padding_index)
        if num_highways < 0:
            raise ValueError(f"num_highways must be at least 0, got {num_highways}")
        self.end_index, self.unknown_index, self.padding_index = end_index, unknown_index, padding_index
        self.max_bytes, self.windows = max_bytes, windows
        num_features = sum(number for _, number in filters)
        self.symbols = nn.Parameter(torch.empty(NUM_SYMBOLS, char_dim))
        self.filters = nn.ParameterList(torch.empty(char_dim, width, number) for width, number in filters)
        self.biases = nn.ParameterList(torch.empty(number) for _, number in filters)
        self.highways = nn.ModuleList(nn.Linear(num_features, 2 * num_features) for _ in range(num_highways))
        self.projection = nn.Linear(num_features, model_dim)
        # The end of a text, then the unknown word.
        self.specials = nn.Parameter(torch.empty(2, model_dim))
        # Part of the state, so that a layer made on the meta device is whole once its state is loaded.
        spellings, lengths = _encode(words, max_bytes, self.symbols.device)
        self.register_buffer("spellings", spellings)
        self.register_buffer("lengths", lengths)
        self.extend(())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.symbols, std=self.symbols.shape[1] ** -0.5)
        nn.init.zeros_(self.symbols[0])
        nn.init.normal_(self.specials, std=self.specials.shape[1] ** -0.5)
        for weight, bias in zip(self.filters, self.biases, strict=True):
            # As torch's convolutions start.
            bound = (weight.shape[0] * weight.shape[1]) ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        for layer in self.highways:
            assert isinstance(layer, nn.Linear)
            layer.reset_parameters()
            nn.init.zeros_(layer.bias)
            # Half of a layer gates; above zero, more of the features is carried on than replaced.
            nn.init.ones_(layer.bias[layer.in_features :])
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def extend(self, words: Sequence[str]) -> None:
        """Take further words, whose ids follow those of the vocabulary, in place of those of an earlier call.

        They are no part of the state, so the same weights serve another text: call it with the words of each.
        """
        spellings, lengths = _encode(words, self.max_bytes, self.symbols.device)
        self.register_buffer("further_spellings", spellings, persistent=False)
        self.register_buffer("further_lengths", lengths, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, of any shape, in one more dimension."""
        check_ids(ids, len(self.lengths) + len(self.further_lengths))
        if torch.compiler.is_compiling():
            words = ids.flatten()
            vectors = self._vectors(words, self._features(*self._spelled(words), self._answers()))
            return vectors.reshape(*ids.shape, vectors.shape[-1])
        distinct, place = torch.unique(ids, return_inverse=True)
        spellings, lengths = self._spelled(distinct)
        lengths, order = lengths.sort()
        vectors = self._vectors(distinct[order], self._features_of_sorted(spellings[order], lengths))
        return F.embedding(order.argsort()[place], vectors)

    def spell(self, words: Sequence[str]) -> Tensor:
        """The vectors of words by their spelling alone, in the vocabulary or not: one row for each."""
        spellings, lengths = _encode(words, self.max_bytes, self.symbols.device)
        return self._project(self._features(spellings, lengths, self._answers()))

    def _spelled(self, words_N: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of words, with zeros up to the longest of all, and how many each has."""
        size = len(self.lengths)
        if not len(self.further_lengths):
            return self.spellings[words_N], self.lengths[words_N]
        is_further_N, known_N, further_N = words_N >= size, words_N.clamp(max=size - 1), (words_N - size).clamp(min=0)
        widest = max(self.spellings.shape[1], self.further_spellings.shape[1])
        known_NL, further_NL = (
            F.pad(bytes_NL, (0, widest - bytes_NL.shape[1]))
            for bytes_NL in (self.spellings[known_N], self.further_spellings[further_N])
        )
        return (
            torch.where(is_further_N[:, None], further_NL, known_NL),
            torch.where(is_further_N, self.further_lengths[further_N], self.lengths[known_N]),
        )

    def _answers(self) -> list[Tensor]:
        """What every filter answers to every symbol at each place of its window: for a symbol, a row per place.

        A filter's answer to a window is the sum of its answers to the symbols in it, so with these few rows at hand the
        filters need no product per window.
        """
        # A symbol beyond the end of a word answers zero, and stays so.
        symbols = torch.cat([torch.zeros_like(self.symbols[:1]), self.symbols[1:]])
        return [(symbols @ weight.flatten(1)).view(-1, weight.shape[2]) for weight in self.filters]

    def _features_of_sorted(self, spellings_NL: Tensor, lengths_N: Tensor) -> Tensor:
        """Features of words sorted by length, in groups as wide as their longest word."""
        answers, size = self._answers(), -(-len(lengths_N) // NUM_GROUPS)
        groups = []
        for spellings, lengths in zip(spellings_NL.split(size or 1), lengths_N.split(size or 1), strict=True):
            longest = max([1, *lengths[-1:].tolist()])
            groups.append(self._features(spellings[:, :longest], lengths, answers))
        return torch.cat(groups)

    def _features(self, spellings_NL: Tensor, lengths_N: Tensor, answers: list[Tensor]) -> Tensor:
        """The largest answer of every filter to each word, at least 0."""
        n, num_places = spellings_NL.shape
        place_L = torch.arange(num_places, device=spellings_NL.device)
        symbols_NL = (spellings_NL.long() + 1).masked_fill(place_L >= lengths_N[:, None], 0)
        # A word without letters is one window of zeros.
        is_beyond_NL1 = (place_L >= lengths_N.clamp(min=1)[:, None])[..., None]
        features = []
        for weight, bias, answer in zip(self.filters, self.biases, answers, strict=True):
            _, width, number = weight.shape
            windows_NLW = F.pad(symbols_NL, (0, width - 1)).unfold(1, width, 1)
            rows_NLW = windows_NLW * width + torch.arange(width, device=windows_NLW.device)
            sums = F.embedding_bag(rows_NLW.reshape(-1, width), answer, mode="sum").view(n, num_places, number)
            features.append(self._largest(sums, is_beyond_NL1, lengths_N, width) + bias)
        return torch.cat(features, 1).relu()

    def _largest(self, sums_NLF: Tensor, is_beyond_NL1: Tensor, lengths_N: Tensor, width: int) -> Tensor:
        """The largest answer of filters of one width to each word, without their bias."""
        # The first place where a window would reach beyond the padded word.
        end = None if self.windows == "word" else self.max_bytes - width + 1
        largest_NF = sums_NLF[:, :end].masked_fill(is_beyond_NL1[:, :end], -torch.inf).max(1).values
        if end is None:
            return largest_NF
        # A window of padding alone answers zero, and is there where a word leaves room for it.
        return torch.where((lengths_N < end)[:, None], largest_NF.clamp(min=0), largest_NF)

    def _project(self, features_NE: Tensor) -> Tensor:
        for layer in self.highways:
            replaced_NE, gate_NE = layer(features_NE).chunk(2, -1)
            gate_NE = gate_NE.sigmoid()
            features_NE = gate_NE * features_NE + (1 - gate_NE) * replaced_NE.relu()
        return self.projection(features_NE)

    def _vectors(self, words_N: Tensor, features_NE: Tensor) -> Tensor:
        """The vectors of words of the vocabulary, of which a few have their own."""
        vectors = self._project(features_NE)
        vectors = torch.where((words_N == self.end_index)[:, None], self.specials[0], vectors)
        vectors = torch.where((words_N == self.unknown_index)[:, None], self.specials[1], vectors)
        return (
            vectors if self.padding_index is None else vectors.masked_fill((words_N == self.padding_index)[:, None], 0)
        )

    def extra_repr(self) -> str:
        return (
            f"vocabulary_size={len(self.spellings)}, model_dim={self.specials.shape[1]}, "
            f"char_dim={self.symbols.shape[1]}, filters={tuple(tuple(weight.shape[1:]) for weight in self.filters)}, "
            f"end_index={self.end_index}, unknown_index={self.unknown_index}, padding_index={self.padding_index}, "
            f"max_bytes={self.max_bytes}, windows={self.windows!r}"
        )


def _encode(words: Sequence[str], max_bytes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The bytes of all words, with zeros up to the longest, and how many each has."""
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, got the one string {words!r}; put it into a list")
    # A damaged text may hold half of a pair of surrogates; it is spelled like anything else.
    encoded = [word.encode(errors="surrogatepass")[:max_bytes] for word in words]
    longest = max([1, *map(len, encoded)])
    flat = bytearray(b"".join(word.ljust(longest, b"\0") for word in encoded))
    # An empty buffer is refused.
    spellings = torch.frombuffer(flat, dtype=torch.uint8) if flat else torch.empty(0, dtype=torch.uint8)
    lengths = torch.tensor([len(word) for word in encoded], dtype=torch.int32)
    return spellings.view(len(encoded), longest).to(device), lengths.to(device)


def _check_specials(vocabulary_size: int, end_index: int, unknown_index: int, padding_index: int | None) -> None:
    named = {"end_index": end_index, "unknown_index": unknown_index, "padding_index": padding_index}
    for name, index in named.items():
        check_index(name, index, vocabulary_size)
    if len(set(named.values())) < len(named):
        raise ValueError(f"end_index, unknown_index and padding_index must differ, got {tuple(named.values())}")


def _check_filters(filters: Sequence[tuple[int, int]]) -> None:
    if not filters or any(width < 1 or number < 1 for width, number in filters):
        raise ValueError(f"filters must be pairs of a width and a number, each at least 1, got {tuple(filters)}")


def _check_windows(windows: str, filters: Sequence[tuple[int, int]], max_bytes: int) -> None:
    if windows not in get_args(Windows):
        raise ValueError(f"windows must be one of {get_args(Windows)}, got {windows!r}")
    widest = max(width for width, _ in filters)
    if windows == "padded" and widest > max_bytes:
        raise ValueError(
            f"max_bytes must be at least {widest}, the width of the widest filter, with windows='padded', "
            f"got {max_bytes}; raise it, or take windows='word'"
        )
