"""The candidates of one step of beam search: which words may follow each beginning, and their order in a sentence.

Shapes: S sentences that are open, R rows (one for each beginning that is kept, sentence by sentence), W beginnings of
the sentence that has most, K next words of each, M = W K candidates of a sentence.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.decoding.ensemble import Ensemble, Hidden, rows_of
from anymax.decoding.penalties import LengthPenalty


class Rules(NamedTuple):
    """The options of a search, checked."""

    eos: int
    beam: int
    num_best: int
    min_length: int
    penalty: LengthPenalty
    banned: list[int]
    stop_when_full: bool


class NextWords(NamedTuple):
    """The next words of every row with log-probabilities of their own, minus infinity for what may not follow."""

    log_prob_RK: Tensor
    words_RK: Tensor
    unseen_eos_R: Tensor
    """The most that the log-probability of <eos> can be where it is none of the words, else minus infinity."""


class Ranked(NamedTuple):
    """The candidates of every sentence, likeliest first, with the row that each continues."""

    log_prob_SM: Tensor
    words_SM: Tensor
    row_SM: Tensor


def next_words(ensemble: Ensemble, hidden: Hidden, rules: Rules, *, length: int, is_last_R: Tensor) -> NextWords:
    """The likeliest words after beginnings of `length` words; only <eos> where `is_last_R`."""
    size, device = ensemble.vocabulary_size, is_last_R.device
    # Enough that the best are left when <eos> and the banned words are taken away, and the best of what is dropped.
    k = min(size, rules.beam + 2 + len(rules.banned))
    last_R, rest_R = is_last_R.nonzero()[:, 0], (~is_last_R).nonzero()[:, 0]
    words_RK = torch.full((len(is_last_R), k if len(rest_R) else 1), rules.eos, device=device)
    log_prob_RK = numbers(words_RK.shape, -math.inf, device)
    unseen_eos_R = log_prob_RK[:, 0].clone()
    if len(last_R):
        log_prob_RK[last_R, 0] = ensemble.log_prob(rows_of(hidden, last_R), words_RK[last_R, 0]).double()
    if len(rest_R):
        best = ensemble.topk(rows_of(hidden, rest_R) if len(last_R) else hidden, k)
        log_prob_RK[rest_R], words_RK[rest_R] = best.log_probs.double(), best.words
        if k < size and length >= rules.min_length:
            is_seen_R = (best.words == rules.eos).any(1)
            unseen_eos_R[rest_R] = torch.where(is_seen_R, -math.inf, log_prob_RK[rest_R, -1])
    if bool(log_prob_RK.isnan().any()):
        raise ValueError(
            "log-probabilities must be numbers, but the model's are not; its weights are too large: use another "
            "checkpoint"
        )
    barred = [*rules.banned, rules.eos] if length < rules.min_length else rules.banned
    is_barred_RK = torch.isin(words_RK, torch.tensor(barred, dtype=torch.long, device=device))
    # No more than 0, whatever rounding made of a probability of one: bounds rest on it.
    return NextWords(log_prob_RK.masked_fill(is_barred_RK, -math.inf).clamp(max=0), words_RK, unseen_eos_R)


def rank(found: NextWords, log_prob_R: Tensor, place_R: Tensor, num_sentences: int) -> Ranked:
    """All candidates of a sentence in one row, sorted; equal ones in the order they had.

    Args:
        log_prob_R: of the beginnings.
        place_R: the sentence of each row, rising.
    """
    counts_S = place_R.bincount(minlength=num_sentences)
    first_S = counts_S.cumsum(0) - counts_S
    slot_R = torch.arange(len(place_R), device=place_R.device) - first_S[place_R]
    num_words = found.words_RK.shape[1]
    shape = (num_sentences, int(counts_S.max()), num_words)
    log_prob_SWK = numbers(shape, -math.inf, place_R.device)
    words_SWK = found.words_RK.new_zeros(shape)
    log_prob_SWK[place_R, slot_R] = log_prob_R[:, None] + found.log_prob_RK
    words_SWK[place_R, slot_R] = found.words_RK
    log_prob_SM, order_SM = log_prob_SWK.flatten(1).sort(dim=1, descending=True, stable=True)
    row_SM = first_S[:, None] + order_SM // num_words
    return Ranked(log_prob_SM, words_SWK.flatten(1).gather(1, order_SM), row_SM)


def numbers(shape: int | tuple[int, ...], value: float, device: torch.device) -> Tensor:
    """Float64, in which log-probabilities are summed and compared."""
    return torch.full((shape,) if isinstance(shape, int) else shape, value, dtype=torch.float64, device=device)
