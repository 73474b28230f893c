"""Sentences drawn from any generator: by their probabilities, within their limits, and for some of several models."""

import math

import pytest
import torch

from anymax.decoding import Hypothesis, sample
from tests.decoding.chains import EOS, Chain, all_sentences
from tests.each import each
from tests.models.transformer.test_model import build, words

pytestmark = pytest.mark.usefixtures("one_thread")

INPUTS = torch.arange(4)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each("num_models", (1, 2))
def test_sentences_are_drawn_as_often_as_they_are_likely(num_models: int):
    chains = [Chain(4, used=2, seed=seed) for seed in range(num_models)]
    number, longest = 3_000, 2
    (drawn,) = sample(chains, INPUTS[:1], eos=EOS, max_length=longest + 1, num_samples=number, generator=seeded(1))
    assert len(drawn) == number
    counts: dict[tuple[int, ...], int] = {}
    for hypothesis in drawn:
        if hypothesis.is_finished:
            counts[hypothesis.words] = counts.get(hypothesis.words, 0) + 1
        assert hypothesis.is_finished == (len(hypothesis.words) <= longest)
    wanted = {each.words: math.exp(each.log_prob) for each in all_sentences(chains, 0, longest)}
    for sentence, prob in wanted.items():
        assert counts.get(sentence, 0) / number == pytest.approx(prob, abs=4 * math.sqrt(prob / number) + 1e-3)


@each("options", ({}, {"top_k": 2}, {"top_p": 0.7}, {"temperature": 0.5}, {"banned": [3]}, {"min_length": 2}))
def test_log_probabilities_are_those_of_the_model_whatever_the_limits(options: dict[str, object]):
    chain = Chain(6)
    drawn = sample(chain, INPUTS, eos=EOS, max_length=5, num_samples=8, generator=seeded(2), **options)
    assert [len(of_input) for of_input in drawn] == [8] * 4
    for given, of_input in enumerate(drawn):
        for hypothesis in of_input:
            ending = (EOS,) if hypothesis.is_finished else ()
            said = (*hypothesis.words, *ending)
            log_prob = sum(float(chain.log_probs((given, *said[:i]))[word]) for i, word in enumerate(said))
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4) and hypothesis.score == hypothesis.log_prob
            assert len(hypothesis.words) >= options.get("min_length", 0)
            assert 3 not in hypothesis.words or "banned" not in options


def test_with_one_candidate_all_draws_are_the_greedy_sentence_and_ended_ones_leave_the_batch():
    chain = Chain(9, sharpness=2.0)
    drawn = sample(chain, INPUTS, eos=EOS, max_length=20, num_samples=3, top_k=1)
    for given, of_input in enumerate(drawn):
        assert len(set(of_input)) == 1
        sentence: tuple[int, ...] = ()
        while (word := int(chain.log_probs((given, *sentence)).argmax())) != EOS and len(sentence) < 20:
            sentence = (*sentence, word)
        assert of_input[0].words == sentence
    assert chain.rows[0] == 12 and sorted(chain.rows, reverse=True) == chain.rows and chain.rows[-1] < 12


def test_a_seed_decides_what_is_drawn_from_a_language_model():
    model, prompts = build(dropout=0.5), words(3, 4)
    options = {"eos": EOS, "max_length": 9, "num_samples": 2}
    first = sample(model, prompts, generator=seeded(1), **options)
    assert first == sample(model, prompts, generator=seeded(1), **options)
    assert first != sample(model, prompts, generator=seeded(2), **options)
    assert sample(model, prompts[:0], **options) == []


def test_a_sentence_with_nothing_left_to_draw_is_cut():
    class DeadEnd(Chain):
        def log_probs(self, prefix):
            row = torch.full((6,), -math.inf)
            row[2 if len(prefix) < 3 else EOS] = 0.0
            return row

    (drawn,) = sample(DeadEnd(6), INPUTS[:1], eos=EOS, max_length=9, min_length=4)
    assert drawn == (Hypothesis((2, 2), 0.0, 0.0, False),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"top_k": 9}, "top_k must be between 1 and the vocabulary size, 8, got 9"),
        ({"temperature": 0.0}, "temperature must be a positive finite number, got 0.0"),
        ({"banned": [EOS]}, "banned must leave eos, 0"),
        ({"min_length": 4}, "min_length must be at most max_length, 3, got 4"),
    ],
    ids=str,
)
def test_sampling_refuses_what_it_cannot_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**{"models": Chain(8), "inputs": INPUTS, "eos": EOS, "max_length": 3} | options)
