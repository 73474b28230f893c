"""Words drawn from a model by their probabilities.

Shapes: B sentences, R rows that are still drawn for, V words, K candidates, T words so far.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.decoding.ensemble import Ensemble, Hidden
from anymax.decoding.hypotheses import Hypothesis
from anymax.decoding.protocol import Generator
from anymax.vocabulary import OutputLayer, TopK
from anymax.vocabulary.output import draw, draw_by


@torch.no_grad()
def sample(
    models: Generator | Sequence[Generator],
    inputs: Any,
    *,
    eos: int,
    max_length: int,
    min_length: int = 0,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    banned: Collection[int] = (),
    generator: torch.Generator | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """Draw sentences for every row of the inputs; gives `num_samples` for each, in the order they were drawn.

    Their log-probabilities are those of the model itself, before temperature and limits, and so are their scores. A
    sentence that ended leaves the batch. Dropout is off while it runs.

    Args:
        models: one model, or several with the mean of their probabilities.
        inputs: what `models` start from: prompts for language models, sentences and their mask for translators.
        eos: the word that ends a sentence.
        max_length: a sentence of this many words is cut, without <eos>.
        min_length: <eos> is not drawn before this many words.
        num_samples: sentences for each row.
        temperature, top_k, top_p: as in `generate`.
        banned: words that are never drawn, such as <unk>.
        generator: where the randomness comes from; by default torch's own.

    Example:
        >>> from anymax.decoding import sample
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> (drawn,) = sample(model, torch.tensor([[3, 4]]), eos=0, max_length=4, num_samples=3, top_k=5)
        >>> len(drawn), all(hypothesis.log_prob < 0 for hypothesis in drawn)
        (3, True)
    """
    ensemble = Ensemble(models)
    check_sampling(ensemble.vocabulary_size, temperature, top_k, top_p)
    check_counts(max_length=max_length, num_samples=num_samples)
    check_ends(ensemble.vocabulary_size, eos, min_length, max_length, banned)
    last_R = ensemble.first_words(inputs, eos).repeat_interleave(num_samples)
    drawn: dict[int, Hypothesis] = {}
    open_R = torch.arange(len(last_R), device=last_R.device)
    words_RT = last_R[:, None][:, :0]
    log_prob_R = last_R.new_zeros(len(last_R), dtype=torch.float64)
    if not len(open_R):
        return []
    with ensemble.evaluating():
        ensemble.start(inputs, max_length=max_length)
        if num_samples > 1:
            ensemble.reorder(open_R // num_samples)
        for length in range(max_length):
            if not len(open_R):
                break
            hidden = ensemble.next(last_R)
            barred = [*banned, eos] if length < min_length else list(banned)
            chosen_R, is_stuck_R = _draw(ensemble, hidden, temperature, top_k, top_p, barred, generator)
            log_prob_R = torch.where(is_stuck_R, log_prob_R, log_prob_R + ensemble.log_prob(hidden, chosen_R))
            is_eos_R = (chosen_R == eos) & ~is_stuck_R
            ends_R = is_eos_R | is_stuck_R
            _note(drawn, open_R[ends_R], words_RT[ends_R], log_prob_R[ends_R], is_eos_R[ends_R])
            kept = (~ends_R).nonzero()[:, 0]
            if len(kept) < len(ends_R):
                ensemble.reorder(kept)
            open_R, log_prob_R, last_R = open_R[kept], log_prob_R[kept], chosen_R[kept].to(last_R.dtype)
            words_RT = torch.cat([words_RT[kept], last_R[:, None]], 1)
    _note(drawn, open_R, words_RT, log_prob_R, torch.zeros_like(open_R, dtype=torch.bool))
    return [tuple(drawn[i + j] for j in range(num_samples)) for i in range(0, len(drawn), num_samples)]


def draw_next(
    output: OutputLayer,
    hidden: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a word for every row of hidden vectors, (batch,).

    Args:
        output: the output layer.
        hidden: (batch, model_dim), the vectors it reads.
        temperature, top_k, top_p, generator: as in `generate`.

    Example:
        >>> from anymax.decoding import draw_next
        >>> from anymax.vocabulary import FullOutput
        >>> output = FullOutput(10, 8)
        >>> hidden = torch.randn(4, 8)
        >>> draw_next(output, hidden, top_k=1).equal(output.log_probs(hidden).argmax(-1))
        True
    """
    if top_k is None and top_p is None:
        return output.sample(hidden, temperature=temperature, generator=generator)
    best = output.topk(hidden, output.vocabulary_size if top_k is None else top_k)
    return _draw_among(best, temperature, top_p, generator)


def check_sampling(vocabulary_size: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a positive finite number, got {temperature}; top_k=1 takes the best")
    if top_k is not None and not 1 <= top_k <= vocabulary_size:
        raise ValueError(f"top_k must be between 1 and the vocabulary size, {vocabulary_size}, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie above 0 and be at most 1, got {top_p}; top_k=1 takes the best")


def check_ends(vocabulary_size: int, eos: int, min_length: int, max_length: int, banned: Collection[int]) -> None:
    """Refuse words that are not there, lengths that exclude each other, and a ban of what ends a sentence."""
    for name, word in (("eos", eos), *(("banned", word) for word in banned)):
        if not 0 <= word < vocabulary_size:
            raise ValueError(f"{name} must be a word of the vocabulary, from 0 to {vocabulary_size - 1}, got {word}")
    if eos in banned:
        raise ValueError(f"banned must leave eos, {eos}, got it; max_length alone would end sentences")
    check_counts(0, min_length=min_length)
    if min_length > max_length:
        raise ValueError(f"min_length must be at most max_length, {max_length}, got {min_length}")


def _draw(
    ensemble: Ensemble,
    hidden: Hidden,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    barred: list[int],
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """A word for every row, and which rows have none left that may be drawn."""
    if len(hidden) == 1 and not barred:
        words_R = draw_next(
            ensemble.models[0].output,
            hidden[0],
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
        )
        return words_R, torch.zeros_like(words_R, dtype=torch.bool)
    return draw_allowed(
        ensemble.log_probs(hidden), barred, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator
    )


def draw_allowed(
    log_probs_RV: Tensor,
    barred: Sequence[int],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """A word for every row that is not barred, and which rows have none left, whose words mean nothing."""
    log_probs_RV[:, barred] = -math.inf
    is_stuck_R = (log_probs_RV == -math.inf).all(1)
    log_probs_RV = log_probs_RV.masked_fill(is_stuck_R[:, None], 0.0)
    if top_k is None and top_p is None:
        return draw(log_probs_RV / temperature, generator), is_stuck_R
    size = log_probs_RV.shape[1]
    best = TopK(*log_probs_RV.topk(size if top_k is None else min(top_k, size)))
    return _draw_among(best, temperature, top_p, generator), is_stuck_R


def _draw_among(best: TopK, temperature: float, top_p: float | None, generator: torch.Generator | None) -> Tensor:
    # Counted from the best, which no temperature can then carry to minus infinity.
    probs_BK = ((best.log_probs - best.log_probs[:, :1]) / temperature).softmax(-1)
    if top_p is not None:
        # A word is kept if those before it are not yet enough.
        probs_BK = probs_BK * (probs_BK.cumsum(-1) - probs_BK < top_p)
    return best.words.gather(1, draw_by(probs_BK, generator)[:, None])[:, 0]


def _note(
    drawn: dict[int, Hypothesis], rows_R: Tensor, words_RT: Tensor, log_prob_R: Tensor, is_finished_R: Tensor
) -> None:
    parts = (rows_R, words_RT, log_prob_R, is_finished_R)
    for row, words, log_prob, is_finished in zip(*(part.tolist() for part in parts), strict=True):
        drawn[row] = Hypothesis(tuple(words), log_prob, log_prob, is_finished)
