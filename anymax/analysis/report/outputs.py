"""What is special to an output layer, measured along a text: supports, experts, bands, and transforms of scores.

Shapes: N tokens of the text, B of them at a time, D the width of hidden vectors, V words, K experts, A bands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anymax.data.units.lexicon import Lexicon
from anymax.evaluation.perplexity.predicted import BLOCK_BYTES, COPIES
from anymax.transforms import PLIF
from anymax.vocabulary import AdaptiveOutput, FullOutput, MixtureOutput, OutputLayer, SparseOutput

# Words of a support that are named.
MOST_NAMED = 50
# Equal parts of the range of scores.
PARTS = 120
# Tokens whose scores of all words are counted.
SCORED_TOKENS = 1024


@dataclass(frozen=True)
class Candidate:
    """A word that may follow, and how likely it is."""

    word: str
    prob: float


@dataclass(frozen=True)
class Text:
    """A stretch of text, and the vectors that its tokens are predicted from.

    Args:
        tokens_N: on the device of the vectors.
        lexicon: of the tokens.
    """

    tokens_N: Tensor
    hidden_ND: Tensor
    lexicon: Lexicon


@dataclass(frozen=True)
class Support:
    """The words with a probability above zero.

    Args:
        words: the likeliest of them, best first.
    """

    size: int
    words: tuple[Candidate, ...]


@dataclass(frozen=True)
class Supports:
    """What a sparse output keeps.

    Args:
        sizes: how many words have a probability above zero, for every token of the text.
        zero_targets: how often the word that follows is not among them.
        of_contexts: in the contexts that are shown.
    """

    alpha: float
    sizes: tuple[int, ...]
    zero_targets: float
    of_contexts: tuple[Support, ...]


@dataclass(frozen=True)
class Experts:
    """The weights of a mixture.

    Args:
        average: of each expert, over all tokens of the text.
        of_contexts: of each expert, in the contexts that are shown.
    """

    average: tuple[float, ...]
    of_contexts: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BandUse:
    """What an adaptive output does with one band.

    Args:
        first: the first id in it.
        size: number of words.
        dim: width of their vectors.
        num_tokens: how many tokens of the text are in it.
        mass: the probability that its words get together, the mean over all tokens of the text.
        loss: the mean over its tokens; None where there are none, as the next.
        loss_of_band: the part of it for the band, the rest is for the word in the band.
    """

    first: int
    size: int
    dim: int
    num_tokens: int
    mass: float
    loss: float | None
    loss_of_band: float | None

    @property
    def loss_of_word(self) -> float | None:
        """The part of the loss for the word, given the band."""
        return None if self.loss is None or self.loss_of_band is None else self.loss - self.loss_of_band


@dataclass(frozen=True)
class Bandwise:
    """What an adaptive output does with its bands, the head first."""

    bands: tuple[BandUse, ...]


@dataclass(frozen=True)
class Curve:
    """A transform of scores, on equal parts of the range that scores have.

    Args:
        transform: its kind.
        num_tokens: from how many tokens the scores are.
        scores: the middle of every part.
        values: what the transform makes of it.
        counts: how many scores of words lie in the part.
        follow: how many of those are scores of the word that follows.
        bound: beyond which a piecewise linear function has no pieces; None for other functions.
        outside: the share of scores beyond it.
    """

    transform: str
    num_tokens: int
    scores: tuple[float, ...]
    values: tuple[float, ...]
    counts: tuple[int, ...]
    follow: tuple[int, ...]
    bound: float | None
    outside: float | None


OfOutput = Supports | Experts | Bandwise


def measure_output(output: OutputLayer, text: Text, chosen: Sequence[int]) -> OfOutput | None:
    """What is special to the layer; None where nothing is.

    Args:
        chosen: the places in the text of the contexts that are shown.
    """
    match output:
        case SparseOutput():
            return _supports(output, text, chosen)
        case MixtureOutput():
            weights_NK = torch.cat([output.weights(hidden_BD) for hidden_BD, _ in _blocks(output, text)]).double()
            of_contexts = tuple(tuple(row) for row in weights_NK[list(chosen)].tolist())
            return Experts(tuple(weights_NK.mean(0).tolist()), of_contexts)
        case AdaptiveOutput():
            return _bands(output, text)
        case _:
            return None


def measure_transform(output: OutputLayer, text: Text) -> Curve | None:
    """The transform of the layer over the scores that it gets; None where there is none.

    The softmax takes only the differences of scores, so that what is added to all values means nothing.
    """
    if not isinstance(output, FullOutput | MixtureOutput) or output.transform is None:
        return None
    some = Text(text.tokens_N[:SCORED_TOKENS], text.hidden_ND[:SCORED_TOKENS], text.lexicon)
    low, high = _range(output, some)
    edges = torch.linspace(low, high, PARTS + 1, dtype=torch.float64)
    middles = ((edges[1:] + edges[:-1]) / 2).to(some.hidden_ND)
    counts = torch.zeros(2, PARTS, dtype=torch.int64)
    for scores, following in _scores(output, some):
        counts += torch.stack([part.float().histc(PARTS, low, high).long().cpu() for part in (scores, following)])
    of_words, of_following = counts.tolist()
    return Curve(
        transform=type(output.transform).__name__,
        num_tokens=len(some.tokens_N),
        scores=tuple(middles.tolist()),
        values=tuple(output.transform(middles).tolist()),
        counts=tuple(of_words),
        follow=tuple(of_following),
        bound=output.transform.bound if isinstance(output.transform, PLIF) else None,
        outside=_outside(output, output.transform, some) if isinstance(output.transform, PLIF) else None,
    )


def candidates(log_probs_V: Tensor, lexicon: Lexicon, most: int) -> tuple[Candidate, ...]:
    """The likeliest words, best first, without those of probability zero."""
    best = log_probs_V.topk(min(most, len(log_probs_V)))
    probs = best.values.double().exp().tolist()
    words = lexicon.decode(best.indices)
    return tuple(Candidate(word, prob) for word, prob in zip(words, probs, strict=True) if prob > 0)


def checked(log_probs: Tensor) -> Tensor:
    """Log-probabilities that are numbers, of a model that did not break in training."""
    if bool(log_probs.isnan().any()):
        raise ValueError("log-probabilities must be numbers, got nan; look for the step at which the model broke")
    return log_probs


def _supports(output: SparseOutput, text: Text, chosen: Sequence[int]) -> Supports:
    sizes: list[int] = []
    missed = 0
    for hidden_BD, tokens_B in _blocks(output, text):
        is_in_BV = checked(output.log_probs(hidden_BD)) > -math.inf
        sizes += is_in_BV.sum(1).tolist()
        missed += int((~is_in_BV.gather(1, tokens_B[:, None])).sum())
    of_contexts = tuple(
        Support(sizes[place], candidates(output.log_probs(text.hidden_ND[place]), text.lexicon, MOST_NAMED))
        for place in chosen
    )
    return Supports(float(output.alpha), tuple(sizes), missed / len(sizes), of_contexts)


def _bands(output: AdaptiveOutput, text: Text) -> Bandwise:
    bands, band_N = output.bands, output.bands.band_of(text.tokens_N)
    masses_NA = torch.cat([output.band_log_probs(hidden_BD) for hidden_BD, _ in _blocks(output, text)]).double()
    loss_N = -checked(output.log_prob(text.hidden_ND, text.tokens_N)).double()
    loss_of_band_N = -masses_NA.gather(1, band_N[:, None])[:, 0]
    mass_A = masses_NA.exp().mean(0).tolist()
    found = []
    for i, (size, dim) in enumerate(zip(bands.sizes, bands.dims, strict=True)):
        is_in_N = band_N == i
        count = int(is_in_N.sum())
        losses = [float(values[is_in_N].mean()) if count else None for values in (loss_N, loss_of_band_N)]
        found.append(BandUse(bands.edges[i], size, dim, count, mass_A[i], *losses))
    return Bandwise(tuple(found))


def _range(output: FullOutput | MixtureOutput, text: Text) -> tuple[float, float]:
    ends = torch.stack([torch.stack(scores.aminmax()) for scores, _ in _scores(output, text)])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    if not math.isfinite(high - low):
        raise ValueError(
            f"scores must be finite numbers, got some from {low} to {high}; look for the step at which the model broke"
        )
    return (low, high) if low < high else (low - 1, high + 1)


def _scores(output: FullOutput | MixtureOutput, text: Text) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores before the transform, of all words and of those that follow; of all experts, where there are several."""
    for hidden_BD, tokens_B in _blocks(output, text):
        scores = output.scores(hidden_BD)
        index = tokens_B.reshape(-1, *(1 for _ in scores.shape[1:])).expand(*scores.shape[:-1], 1)
        yield scores, scores.gather(-1, index)


def _outside(output: FullOutput | MixtureOutput, transform: PLIF, text: Text) -> float:
    """The share of scores that a piecewise linear function has no pieces for."""
    parts = [(int(transform.num_outside(scores)), scores.numel()) for scores, _ in _scores(output, text)]
    outside, total = map(sum, zip(*parts, strict=True))
    return outside / total


def _blocks(output: OutputLayer, text: Text) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors and tokens, so few at a time that the scores of all words fit into memory."""
    per_row = output.num_experts if isinstance(output, MixtureOutput) else 1
    rows = max(1, BLOCK_BYTES // (COPIES * 4 * output.vocabulary_size * per_row))
    return zip(text.hidden_ND.split(rows), text.tokens_N.split(rows), strict=True)
