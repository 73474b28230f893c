"""Beam search: the best sentences of a model, for many inputs at once, and whether the best is proven to be the best.

Shapes: B sentences, S of them still open, R rows (one for each beginning that is kept, up to beam for a sentence), M
candidates of a sentence, T words so far.
"""

import bisect
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.decoding.candidates import Ranked, Rules, next_words, numbers, rank
from anymax.decoding.ensemble import Ensemble
from anymax.decoding.hypotheses import Hypotheses, Hypothesis
from anymax.decoding.penalties import NO_PENALTY, LengthPenalty
from anymax.decoding.protocol import Generator
from anymax.decoding.sampling import check_ends


@torch.no_grad()
def beam_search(
    models: Generator | Sequence[Generator],
    inputs: Any,
    *,
    eos: int,
    max_length: int | Sequence[int],
    beam: int = 5,
    num_best: int = 1,
    min_length: int = 0,
    length_penalty: LengthPenalty = NO_PENALTY,
    banned: Collection[int] = (),
    stop_when_full: bool = False,
) -> list[Hypotheses]:
    """Search for the sentences of highest score; gives the best of them for every row of the inputs.

    At every step, all beginnings of a sentence are continued by all words. Of these candidates, those by <eos> that are
    among the `beam` likeliest are finished, and the `beam` likeliest others are continued. A sentence is done once no
    beginning can reach the score of the last of its `num_best` finished hypotheses, and leaves the batch. Words of
    probability zero are never continued. Dropout is off while it runs.

    A result depends on the batch only where two candidates are closer than the rounding of the model's numbers; see
    `Hypotheses.margin`.

    Args:
        models: one model, or several with the mean of their probabilities.
        inputs: what `models` start from: prompts for language models, sentences and their mask for translators.
        eos: the word that ends a sentence.
        max_length: the most words of a sentence, without <eos>: one number, or one for each row. After that many, only
            <eos> may follow, with the log-probability it has.
        beam: beginnings that are kept at every step; at most the size of the vocabulary.
        num_best: hypotheses for each row, at most `beam`. There are fewer where fewer have a probability.
        min_length: <eos> may not follow fewer words.
        length_penalty: what makes the score of a log-probability.
        banned: words that are never chosen, such as <unk>; the others keep their probabilities.
        stop_when_full: a sentence is also done once `beam` of its hypotheses are finished. With a penalty that is much
            faster, as only a very unlikely beginning is then sure to lose; the result is rarely proven.

    Example:
        >>> from anymax.decoding import AveragePenalty, beam_search
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> prompts = torch.tensor([[3, 4], [5, 6]])
        >>> found = beam_search(model, prompts, eos=0, max_length=6, num_best=2, length_penalty=AveragePenalty())
        >>> [len(hypotheses.ranked) for hypotheses in found]
        [2, 2]
        >>> found[0].best.is_finished, found[0].penalty
        (True, 'average')
    """
    ensemble = Ensemble(models)
    first_B = ensemble.first_words(inputs, eos)
    longest = [max_length] * len(first_B) if isinstance(max_length, int) else list(max_length)
    _check(ensemble.vocabulary_size, len(first_B), max_length, beam, num_best)
    for most in set(longest) or {1}:
        check_ends(ensemble.vocabulary_size, eos, min_length, most, banned)
    if not longest:
        return []
    rules = Rules(eos, beam, num_best, min_length, length_penalty, sorted(set(banned)), stop_when_full)
    with ensemble.evaluating():
        ensemble.start(inputs, max_length=max(longest) + 1)
        search = _Search(ensemble, first_B, longest, rules)
        while search.is_open:
            search.step()
    return [search.results[i] for i in range(len(longest))]


def greedy(
    models: Generator | Sequence[Generator],
    inputs: Any,
    *,
    eos: int,
    max_length: int | Sequence[int],
    min_length: int = 0,
    banned: Collection[int] = (),
) -> list[Hypotheses]:
    """Take the likeliest word at every step: a beam search of one beginning.

    Arguments are those of `beam_search`.

    Example:
        >>> from anymax.decoding import greedy
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> (found,) = greedy(model, torch.tensor([[3, 4]]), eos=0, max_length=6, min_length=6)
        >>> len(found.best.words), found.best.is_finished
        (6, True)
    """
    return beam_search(models, inputs, eos=eos, max_length=max_length, beam=1, min_length=min_length, banned=banned)


class _Search:
    """Where a search stands. Log-probabilities are summed in float64, each row by itself."""

    def __init__(self, ensemble: Ensemble, first_B: Tensor, longest: list[int], rules: Rules) -> None:
        self.ensemble, self.rules = ensemble, rules
        self.results: dict[int, Hypotheses] = {}
        self.length = 0
        count, device = len(longest), first_B.device
        # Of each sentence the finished hypotheses, best first: one more than asked for, to know by how much it lost.
        self._pools: list[list[Hypothesis]] = [[] for _ in longest]
        self._num_finished = [0] * count
        self._open_S = torch.arange(count, device=device)
        self._longest_S = torch.tensor(longest, device=device)
        divisors = [rules.penalty.divisor(most + 1) for most in longest]
        self._divisor_S = torch.tensor(divisors, dtype=torch.float64, device=device)
        # The score that the last of the best has, and the most that what was dropped could have reached.
        self._worst_S = numbers(count, -math.inf, device)
        self._rival_S = numbers(count, -math.inf, device)
        self._margin_S = numbers(count, math.inf, device)
        # Sentences in order, and the beginnings of each, likeliest first.
        self._place_R = torch.arange(count, device=device)
        self._log_prob_R = numbers(count, 0.0, device)
        self._last_R = first_B
        self._words_RT = first_B[:, None][:, :0]

    @property
    def is_open(self) -> bool:
        return len(self._open_S) > 0

    def step(self) -> None:
        """Read a word of every row, and choose the next ones."""
        hidden = self.ensemble.next(self._last_R)
        is_last_R = (self._longest_S == self.length)[self._place_R]
        found = next_words(self.ensemble, hidden, self.rules, length=self.length, is_last_R=is_last_R)
        ranked = rank(found, self._log_prob_R, self._place_R, len(self._open_S))
        is_possible_SM = ranked.log_prob_SM > -math.inf
        is_eos_SM = ranked.words_SM == self.rules.eos
        is_first_SM = torch.arange(ranked.words_SM.shape[1], device=self._open_S.device) < self.rules.beam
        # How many others stand before each.
        before_SM = (~is_eos_SM).cumsum(1) - (~is_eos_SM).long()
        is_kept_SM = ~is_eos_SM & is_possible_SM & (before_SM < self.rules.beam)
        is_next_SM = ~is_eos_SM & is_possible_SM & (before_SM == self.rules.beam)
        dropped_S = _most(ranked.log_prob_SM, is_next_SM)
        self._narrow(ranked, is_kept_SM, dropped_S)
        self._finish(ranked, is_eos_SM & is_possible_SM & is_first_SM)
        # A dropped beginning may still become likelier by its length; a dropped sentence has its score.
        unseen_S = self._per_sentence(self._log_prob_R + found.unseen_eos_R)
        ended_S = _most(ranked.log_prob_SM, is_eos_SM & ~is_first_SM).maximum(unseen_S)
        ended_S = ended_S / self.rules.penalty.divisor(self.length + 1)
        self._rival_S = self._rival_S.maximum(dropped_S / self._divisor_S).maximum(ended_S)
        is_done_S = self._close(_most(ranked.log_prob_SM, is_kept_SM) / self._divisor_S)
        self._continue(ranked, is_kept_SM & ~is_done_S[:, None], is_done_S)

    def _narrow(self, ranked: Ranked, is_kept_SM: Tensor, dropped_S: Tensor) -> None:
        """Note how close the decisions of this step were: which beginnings are kept, and which may finish."""
        beam = self.rules.beam
        kept_S = ranked.log_prob_SM.masked_fill(~is_kept_SM, math.inf).amin(1)
        self._note_margin(kept_S, dropped_S)
        if ranked.log_prob_SM.shape[1] > beam:
            self._note_margin(ranked.log_prob_SM[:, beam - 1], ranked.log_prob_SM[:, beam])

    def _note_margin(self, better_S: Tensor, worse_S: Tensor) -> None:
        gap_S = (better_S - worse_S).abs()
        is_decision_S = better_S.isfinite() & worse_S.isfinite()
        self._margin_S = torch.where(is_decision_S, self._margin_S.minimum(gap_S), self._margin_S)

    def _finish(self, ranked: Ranked, is_finished_SM: Tensor) -> None:
        """Put hypotheses that <eos> ends among the best of their sentences, where they belong there."""
        place, column = is_finished_SM.nonzero().unbind(1)
        if not len(place):
            return
        rows = ranked.row_SM[place, column]
        parts = (place, self._open_S[place], self._words_RT[rows], ranked.log_prob_SM[place, column])
        divisor, num_best = self.rules.penalty.divisor(self.length + 1), self.rules.num_best
        worst = self._worst_S.tolist()
        for here, sentence, words, log_prob in zip(*(part.tolist() for part in parts), strict=True):
            pool = self._pools[sentence]
            bisect.insort(pool, Hypothesis(tuple(words), log_prob, log_prob / divisor, True), key=lambda h: -h.score)
            del pool[num_best + 1 :]
            self._num_finished[sentence] += 1
            if len(pool) >= num_best:
                worst[here] = pool[num_best - 1].score
        self._worst_S = torch.tensor(worst, dtype=torch.float64, device=self._worst_S.device)

    def _close(self, bound_S: Tensor) -> Tensor:
        """Give the results of sentences that are done: of no beginning that is left can one be better.

        Args:
            bound_S: the best score that one could reach; minus infinity where none is left, which ends any sentence.
        """
        self._note_margin(self._worst_S, bound_S)
        is_done_S = bound_S <= self._worst_S
        if self.rules.stop_when_full:
            is_full = [self._num_finished[sentence] >= self.rules.beam for sentence in self._open_S.tolist()]
            is_done_S |= torch.tensor(is_full, device=is_done_S.device)
        done = is_done_S.nonzero()[:, 0]
        if len(done):
            rival = self._rival_S.maximum(bound_S)[done].tolist()
            for place, sentence, most, margin in zip(
                done.tolist(), self._open_S[done].tolist(), rival, self._margin_S[done].tolist(), strict=True
            ):
                self.results[sentence] = self._result(place, self._pools[sentence], most, margin)
        return is_done_S

    def _result(self, place: int, pool: list[Hypothesis], rival: float, margin: float) -> Hypotheses:
        gaps = [one.score - other.score for one, other in itertools.pairwise(pool)]
        ranked = tuple(pool[: self.rules.num_best]) or (self._cut(place),)
        is_proven_best = ranked[0].is_finished and ranked[0].score > rival
        return Hypotheses(ranked, self.rules.penalty.name, is_proven_best, min([margin, *gaps]))

    def _cut(self, place: int) -> Hypothesis:
        """The likeliest beginning of a sentence that nothing may follow, not even <eos>."""
        row = int((self._place_R == place).nonzero()[0, 0])
        log_prob = float(self._log_prob_R[row])
        score = log_prob / self.rules.penalty.divisor(max(1, self.length))
        return Hypothesis(tuple(self._words_RT[row].tolist()), log_prob, score, False)

    def _continue(self, ranked: Ranked, is_kept_SM: Tensor, is_done_S: Tensor) -> None:
        """Leave the rows that are kept, and the sentences that are open."""
        place_R, column_R = is_kept_SM.nonzero().unbind(1)
        rows_R = ranked.row_SM[place_R, column_R]
        is_left_S = ~is_done_S
        self._open_S, self._longest_S = self._open_S[is_left_S], self._longest_S[is_left_S]
        self._divisor_S, self._worst_S = self._divisor_S[is_left_S], self._worst_S[is_left_S]
        self._rival_S, self._margin_S = self._rival_S[is_left_S], self._margin_S[is_left_S]
        is_same = len(rows_R) == len(self._place_R) and bool((rows_R[1:] - rows_R[:-1] == 1).all())
        if not is_same and len(rows_R):
            self.ensemble.reorder(rows_R)
        self._place_R = (is_left_S.cumsum(0) - 1)[place_R]
        self._log_prob_R = ranked.log_prob_SM[place_R, column_R]
        self._last_R = ranked.words_SM[place_R, column_R].to(self._last_R.dtype)
        self._words_RT = torch.cat([self._words_RT[rows_R], self._last_R[:, None]], 1)
        self.length += 1

    def _per_sentence(self, log_prob_R: Tensor) -> Tensor:
        """The greatest number among the rows of each sentence."""
        least_S = numbers(len(self._open_S), -math.inf, log_prob_R.device)
        return least_S.scatter_reduce(0, self._place_R, log_prob_R, "amax")


def _most(log_prob_SM: Tensor, where_SM: Tensor) -> Tensor:
    """The greatest log-probability of each sentence where it counts, minus infinity where none does."""
    return log_prob_SM.masked_fill(~where_SM, -math.inf).amax(1)


def _check(vocabulary_size: int, num_rows: int, max_length: int | Sequence[int], beam: int, num_best: int) -> None:
    check_counts(beam=beam, num_best=num_best)
    if beam > vocabulary_size:
        raise ValueError(f"beam must be at most the vocabulary size, {vocabulary_size}, got {beam}; lower it")
    if num_best > beam:
        raise ValueError(f"num_best must be at most beam, {beam}, got {num_best}; widen the beam")
    for most in [max_length] if isinstance(max_length, int) else max_length:
        check_counts(max_length=most)
    if not isinstance(max_length, int) and len(max_length) != num_rows:
        raise ValueError(
            f"max_length must be one number, or one for each of the {num_rows} rows, got {len(max_length)}"
        )
