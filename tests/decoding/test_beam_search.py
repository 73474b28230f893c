"""Beam search against lists of all sentences, against itself at other batch sizes, and at its edges."""

import math

import pytest
import torch
from torch import Tensor

from anymax.decoding import (
    AveragePenalty,
    GNMTPenalty,
    Hypothesis,
    LengthPenalty,
    NoPenalty,
    agreement,
    beam_search,
    greedy,
)
from anymax.models import TransformerLM
from tests.decoding.chains import EOS, Chain, all_sentences
from tests.each import each
from tests.models.transformer.test_model import LAYERS, build, words

pytestmark = pytest.mark.usefixtures("one_thread")

PENALTIES = (NoPenalty(), AveragePenalty(), GNMTPenalty(0.6), GNMTPenalty(1.2))
INPUTS = torch.arange(6)


@each("penalty", PENALTIES)
def test_a_beam_as_wide_as_all_beginnings_finds_and_proves_what_a_list_of_all_sentences_has_first(penalty):
    # 27 beginnings of three words, of a vocabulary in which most have no probability.
    chain = Chain(40, used=3)
    found = beam_search(chain, INPUTS, eos=EOS, max_length=3, beam=40, num_best=7, length_penalty=penalty)
    for given, hypotheses in zip(INPUTS.tolist(), found, strict=True):
        wanted = all_sentences([chain], given, 3, penalty=penalty)[:7]
        assert [each.words for each in hypotheses.ranked] == [each.words for each in wanted]
        assert [each.score for each in hypotheses.ranked] == pytest.approx([each.score for each in wanted])
        assert [each.log_prob for each in hypotheses.ranked] == pytest.approx([each.log_prob for each in wanted])
        assert hypotheses.is_proven_best and all(each.is_finished for each in hypotheses.ranked)
        assert hypotheses.penalty == penalty.name


def test_penalties_say_their_names_and_count_the_word_that_ends_a_sentence():
    chain = Chain(5)
    for penalty, name in zip(PENALTIES, ("none", "average", "gnmt:0.6", "gnmt:1.2"), strict=True):
        (hypotheses,) = beam_search(chain, INPUTS[:1], eos=EOS, max_length=4, length_penalty=penalty, beam=3)
        best, length = hypotheses.best, len(hypotheses.best.words) + 1
        divisor = {"none": 1.0, "average": length}.get(name) or ((5 + length) / 6) ** float(name[5:])
        assert hypotheses.penalty == name and best.score == pytest.approx(best.log_prob / divisor)


def searched_plainly(
    chain: Chain, given: int, *, beam: int, num_best: int, max_length: int, min_length: int, penalty: LengthPenalty
) -> list[tuple[int, ...]]:
    """The rules of the search, one sentence at a time and one candidate at a time."""
    live, finished = [(0.0, ())], []
    for length in range(max_length + 1):
        candidates = []
        for log_prob, sentence in live:
            for word, of_word in enumerate(chain.log_probs((given, *sentence)).double().tolist()):
                is_allowed = length >= min_length if word == EOS else length < max_length
                if is_allowed and of_word > -math.inf:
                    candidates.append((log_prob + of_word, (*sentence, word)))
        candidates.sort(reverse=True)
        ended = [each for each in candidates[:beam] if each[1][-1] == EOS]
        finished += [(log_prob / penalty.divisor(length + 1), sentence[:-1]) for log_prob, sentence in ended]
        finished.sort(reverse=True)
        live = [each for each in candidates if each[1][-1] != EOS][:beam]
        last = finished[num_best - 1][0] if len(finished) >= num_best else -math.inf
        if not live or live[0][0] / penalty.divisor(max_length + 1) <= last:
            break
    return [sentence for _, sentence in finished[:num_best]]


@each("penalty", PENALTIES)
def test_a_narrow_beam_keeps_what_its_rules_say(penalty):
    for size, sparse, beam, num_best, min_length in (
        (9, math.inf, 1, 1, 0),
        (9, math.inf, 3, 2, 0),
        (30, math.inf, 5, 5, 2),
        (30, 1.0, 4, 3, 1),
        (6, 2.0, 6, 1, 0),
    ):
        chain = Chain(size, sparse=sparse, seed=beam)
        options = {"beam": beam, "num_best": num_best, "max_length": 6, "min_length": min_length}
        found = beam_search(chain, INPUTS, eos=EOS, length_penalty=penalty, **options)
        for given, hypotheses in zip(INPUTS.tolist(), found, strict=True):
            wanted = searched_plainly(chain, given, penalty=penalty, **options)
            assert [each.words for each in hypotheses.ranked if each.is_finished] == wanted


@each("sparse", (math.inf, 1.5))
@each("penalty", PENALTIES)
def test_what_is_proven_is_the_best_of_all_sentences_and_narrow_beams_prove_some(penalty, sparse):
    proven = 0
    chain = Chain(5, sharpness=2.0, sparse=sparse)
    inputs = torch.arange(25)
    listed = [all_sentences([chain], given, 3, penalty=penalty)[:1] for given in inputs.tolist()]
    for beam in (1, 2, 4):
        found = beam_search(chain, inputs, eos=EOS, max_length=3, beam=beam, length_penalty=penalty)
        for first, hypotheses in zip(listed, found, strict=True):
            is_best = bool(first) and hypotheses.best.words == first[0].words and hypotheses.best.is_finished
            assert is_best or not hypotheses.is_proven_best
            proven += hypotheses.is_proven_best
    # Of 75 searches: it is neither never claimed nor always.
    assert 15 <= proven < 75


def test_a_sparse_output_is_proven_by_a_narrow_beam_where_nothing_is_dropped():
    # At most two words have a probability after each beginning.
    class Narrow(Chain):
        def log_probs(self, prefix):
            dense = super().log_probs(prefix)
            kept = dense[1:].topk(1).indices + 1
            mask = torch.full_like(dense, -math.inf)
            mask[EOS] = mask[kept] = 0.0
            return (dense + mask).log_softmax(0)

    chain = Narrow(30)
    for hypotheses in beam_search(chain, INPUTS, eos=EOS, max_length=6, beam=2, length_penalty=AveragePenalty()):
        assert hypotheses.is_proven_best
    # One beginning goes on in each sentence: words of probability zero take no row.
    assert max(chain.rows) == len(INPUTS)


def test_lengths_and_bans_hold_and_the_best_under_them_is_found():
    chain = Chain(30, used=29)
    allowed = [4, 9, 21]
    banned = sorted({*range(1, 30)} - set(allowed))
    found = beam_search(chain, INPUTS, eos=EOS, max_length=3, min_length=2, beam=30, banned=banned, num_best=3)
    for given, hypotheses in zip(INPUTS.tolist(), found, strict=True):
        wanted = all_sentences([chain], given, 3, min_length=2, words=allowed)[:3]
        assert [each.words for each in hypotheses.ranked] == [each.words for each in wanted]
        assert hypotheses.is_proven_best


def test_each_input_may_have_its_own_longest_sentence():
    chain = Chain(40, used=3, sharpness=0.1)
    lengths = [1, 3, 2, 3, 1, 2]
    found = beam_search(
        chain, INPUTS, eos=EOS, max_length=lengths, min_length=1, beam=40, length_penalty=AveragePenalty()
    )
    for given, length, hypotheses in zip(INPUTS.tolist(), lengths, found, strict=True):
        wanted = all_sentences([chain], given, length, min_length=1, penalty=AveragePenalty())[0]
        assert hypotheses.best.words == wanted.words and hypotheses.is_proven_best


def test_an_ensemble_takes_the_mean_of_probabilities():
    chains = [Chain(40, used=3, seed=seed) for seed in (1, 2, 3)]
    found = beam_search(chains, INPUTS, eos=EOS, max_length=3, beam=40, num_best=4)
    for given, hypotheses in zip(INPUTS.tolist(), found, strict=True):
        wanted = all_sentences(chains, given, 3)[:4]
        assert [each.words for each in hypotheses.ranked] == [each.words for each in wanted]
        assert [each.score for each in hypotheses.ranked] == pytest.approx([each.score for each in wanted])


def test_greedy_takes_the_likeliest_word_at_every_step():
    chain = Chain(12, sharpness=1.5)
    for given, hypotheses in zip(INPUTS.tolist(), greedy(chain, INPUTS, eos=EOS, max_length=8), strict=True):
        sentence: tuple[int, ...] = ()
        while len(sentence) < 8 and (word := int(chain.log_probs((given, *sentence)).argmax())) != EOS:
            sentence = (*sentence, word)
        assert hypotheses.best.words == sentence


def test_a_search_asks_for_few_words_and_sentences_that_are_done_leave_the_batch():
    chain = Chain(500, used=20, sharpness=3.0)
    inputs = torch.arange(32)
    found = beam_search(chain, inputs, eos=EOS, max_length=40, beam=3, banned=[7, 8])
    assert set(chain.output.asked) == {3 + 2 + 2}
    assert max(chain.rows) <= 32 * 3 and chain.rows[-1] < 32
    assert not {7, 8} & {word for hypotheses in found for word in hypotheses.best.words}
    longest = max(len(hypotheses.best.words) for hypotheses in found)
    assert longest <= len(chain.rows) <= 41


def test_a_full_list_of_hypotheses_can_end_a_search_and_proves_less():
    slow, fast = Chain(20, seed=4), Chain(20, seed=4)
    options = {"eos": EOS, "max_length": 30, "length_penalty": AveragePenalty(), "beam": 4}
    thorough = beam_search(slow, INPUTS, **options)
    quick = beam_search(fast, INPUTS, stop_when_full=True, **options)
    assert sum(fast.rows) < sum(slow.rows)
    for one, other in zip(quick, thorough, strict=True):
        assert one.best.score <= other.best.score and not one.is_proven_best


def test_a_sentence_that_nothing_may_follow_is_cut_and_says_so():
    class DeadEnd(Chain):
        def log_probs(self, prefix):
            row = torch.full((6,), -math.inf)
            row[2 if len(prefix) < 3 else EOS] = 0.0
            return row

    (hypotheses,) = beam_search(DeadEnd(6), INPUTS[:1], eos=EOS, max_length=9, min_length=5)
    assert hypotheses.best.words == (2, 2) and not hypotheses.best.is_finished and not hypotheses.is_proven_best
    (hypotheses,) = beam_search(DeadEnd(6), INPUTS[:1], eos=EOS, max_length=1)
    assert hypotheses.best.words == (2,) and not hypotheses.best.is_finished
    (hypotheses,) = beam_search(DeadEnd(6), INPUTS[:1], eos=EOS, max_length=9, num_best=3)
    assert [each.words for each in hypotheses.ranked] == [(2, 2)] and hypotheses.is_proven_best


def log_prob_of(model: TransformerLM, prompt: Tensor, hypothesis: Hypothesis) -> float:
    """In one call, without a cache."""
    ending = [EOS] if hypothesis.is_finished else []
    text = torch.cat([prompt, torch.tensor([*hypothesis.words, *ending])])
    with torch.no_grad():
        hidden = model.eval().hidden(text[None, :-1])[0, len(prompt) - 1 :]
        return float(model.output.log_probs(hidden).gather(1, text[len(prompt) :, None]).double().sum())


@each("layers", LAYERS)
def test_scores_are_those_of_whole_sentences_read_at_once(layers):
    model, prompts = build(layers), words(5, 4)
    found = beam_search(model, prompts, eos=EOS, max_length=8, num_best=5, min_length=2)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        scores = [each.score for each in hypotheses.ranked]
        assert scores == sorted(scores, reverse=True) and all(len(each.words) >= 2 for each in hypotheses.ranked)
        for hypothesis in hypotheses.ranked:
            assert hypothesis.log_prob == pytest.approx(log_prob_of(model, prompt, hypothesis), abs=1e-4)


def test_differences_are_ties_only_where_a_decision_was_close():
    chain = Chain(8)
    first = beam_search(chain, INPUTS, eos=EOS, max_length=4)
    other = beam_search(Chain(8, seed=9), INPUTS, eos=EOS, max_length=4)
    assert agreement(first, first) == (6, 0, 0)
    assert agreement(first, other).different > 3
    assert agreement(first, other, tolerance=math.inf).different == 0
    with pytest.raises(ValueError, match="over the same inputs, got 6 and 5"):
        agreement(first, first[:5])

    class Even(Chain):
        def log_probs(self, prefix):
            return torch.zeros(4).log_softmax(0)

    assert all(each.margin == 0 for each in beam_search(Even(4), INPUTS, eos=EOS, max_length=3, beam=2))


def test_no_input_gives_no_result_and_modules_keep_their_mode():
    assert beam_search(Chain(4), INPUTS[:0], eos=EOS, max_length=3, beam=2) == []
    model = build(dropout=0.5)
    first = beam_search(model, words(2, 2), eos=EOS, max_length=3)
    assert model.training and len(first) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 9}, "beam must be at most the vocabulary size, 8, got 9; lower it"),
        ({"beam": 0}, "beam must be at least 1, got 0"),
        ({"beam": 2, "num_best": 3}, "num_best must be at most beam, 2, got 3"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": [3, 4]}, "max_length must be one number, or one for each of the 6 rows, got 2"),
        ({"min_length": 4}, "min_length must be at most max_length, 3, got 4"),
        ({"eos": 8}, "eos must be a word of the vocabulary, from 0 to 7, got 8"),
        ({"banned": [8]}, "banned must be a word of the vocabulary, from 0 to 7, got 8"),
        ({"banned": [EOS]}, "banned must leave eos, 0"),
        ({"models": []}, "models must be a model or several, got an empty list"),
        ({"models": [Chain(8), Chain(9)]}, r"models must have one vocabulary, got sizes \[8, 9\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_search_refuses_what_it_cannot_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        beam_search(**{"models": Chain(8), "inputs": INPUTS, "eos": EOS, "max_length": 3} | options)


def test_a_penalty_that_prefers_short_sentences_and_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="alpha must be at least 0"):
        GNMTPenalty(-0.1)

    class Broken(Chain):
        def log_probs(self, prefix):
            return torch.full((4,), math.nan)

    with pytest.raises(ValueError, match="log-probabilities must be numbers, but the model's are not"):
        beam_search(Broken(4), INPUTS, eos=EOS, max_length=3, beam=2)
