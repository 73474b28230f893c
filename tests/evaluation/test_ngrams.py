"""N-grams: counts by brute force, probabilities that sum to one, and a fit that is the best there is."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from anymax.evaluation import InterpolatedBigram, LossByFrequency, interpolated_bigram, ngrams, unigram
from anymax.evaluation import ngrams as pair_counts
from anymax.evaluation.ngrams import PairCounts

EOS, V = 0, 15


def text(length: int, *, most: int = V, dtype: torch.dtype = torch.int64) -> Tensor:
    """Words that depend on the word before, some of them much more frequent than others."""
    drawn = (torch.rand(length) ** 3 * most).long()
    follows = torch.rand(length) < 0.5
    follows[0] = False
    tokens = drawn.clone()
    for place in follows.nonzero()[:, 0].tolist():
        tokens[place] = (tokens[place - 1] * 7 + 3) % (V - 2)
    return tokens.to(dtype)


def pairs_by_hand(tokens: Tensor) -> Counter[tuple[int, int]]:
    return Counter(pairwise([EOS, *tokens.tolist()]))


def fitted(edges: tuple[int, ...] = ngrams.EDGES) -> tuple[InterpolatedBigram, Tensor, Tensor]:
    # Two words never occur in the text that is counted.
    train, valid = text(600, most=V - 2), text(300)
    return interpolated_bigram(train, valid, V, eos=EOS, edges=edges), train, valid


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32, torch.int64])
@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_pairs_are_those_counted_one_by_one(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunk: int) -> None:
    monkeypatch.setattr(pair_counts, "CHUNK", chunk)
    tokens = text(500, dtype=dtype)
    pairs = PairCounts.of(tokens, V, eos=EOS)
    found = {divmod(key, V): count for key, count in zip(pairs.keys.tolist(), pairs.counts.tolist(), strict=True)}
    assert found == pairs_by_hand(tokens)
    assert pairs.keys.tolist() == sorted(set(pairs.keys.tolist()))
    assert pairs.look_up(torch.arange(V * V)).sum() == 500


def test_a_unigram_counts_every_word_once_more_than_it_occurs() -> None:
    train, test = text(200, dtype=torch.uint16), text(50)
    counts = Counter(train.tolist())
    expected = [(counts[word] + 1) / (200 + V) for word in range(V)]
    model = unigram(train, V, eos=EOS)
    torch.testing.assert_close(model.probs_V, torch.tensor(expected, dtype=torch.float64))
    loss = -sum(math.log(expected[word]) for word in test.tolist()) / 50
    result = model.perplexity(test)
    assert result.loss == pytest.approx(loss) and result.num_tokens == 50
    assert str(result).endswith("over 50 words; nothing read before a token; one <eos> per line, scored")


def bigram_by_hand(model: InterpolatedBigram, train: Tensor, previous: int, word: int) -> float:
    pairs = pairs_by_hand(train)
    count = sum(times for (before, _), times in pairs.items() if before == previous)
    unigram_prob = (train.tolist().count(word) + 1) / (len(train) + V)
    if count == 0:
        return unigram_prob
    share = model.shares_G[sum(edge <= count for edge in model.edges)].item()
    return share * pairs[previous, word] / count + (1 - share) * unigram_prob


@pytest.mark.parametrize("edges", [ngrams.EDGES, (), (5, 30)], ids=["powers", "one group", "three groups"])
def test_probabilities_are_the_formula_and_sum_to_one(edges: tuple[int, ...]) -> None:
    model, train, _ = fitted(edges)
    previous, words = torch.meshgrid(torch.arange(V), torch.arange(V), indexing="ij")
    probs = model.probs(previous, words)
    torch.testing.assert_close(probs.sum(1), torch.ones(V, dtype=torch.float64))
    assert (probs > 0).all()
    expected = [[bigram_by_hand(model, train, before, word) for word in range(V)] for before in range(V)]
    torch.testing.assert_close(probs, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("chunk", [1, 13, 10_000])
def test_perplexity_reads_the_word_before_across_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    model, train, _ = fitted()
    test = text(40, dtype=torch.uint16)
    losses = [-math.log(bigram_by_hand(model, train, *pair)) for pair in pairwise([EOS, *test.tolist()])]
    monkeypatch.setattr(pair_counts, "CHUNK", chunk)
    result = model.perplexity(test, unit="subword")
    assert result.loss == pytest.approx(sum(losses) / 40)
    assert (result.unit, result.num_tokens, result.block) == ("subword", 40, 1)
    assert torch.cat([s.losses for s in model.token_losses(test)]).tolist() == pytest.approx(losses)


def test_the_losses_of_a_bigram_can_be_binned() -> None:
    model, train, _ = fitted()
    test, counts = text(40), train.bincount(minlength=V)
    by_frequency = LossByFrequency(test, counts, eos=EOS)
    for stretch in model.token_losses(test):
        by_frequency.add(stretch)
    bins = by_frequency.table().by_word
    assert sum(bin.num_words for bin in bins) == 40
    assert sum(bin.num_words * (bin.loss or 0) for bin in bins) == pytest.approx(40 * model.perplexity(test).loss)


def test_no_step_of_the_fit_makes_the_text_less_likely() -> None:
    model, _, valid = fitted()
    assert len(model.history) > 3
    assert all(after <= before + 1e-12 for before, after in pairwise(model.history))
    assert model.history[-1] == pytest.approx(model.perplexity(valid).loss)


@pytest.mark.parametrize("edges", [(), (20,)], ids=["one group", "two groups"])
def test_the_fit_is_the_best_share_there_is(edges: tuple[int, ...]) -> None:
    model, _, valid = fitted(edges)

    def loss(share: float, group: int) -> float:
        shares = model.shares_G.clone()
        shares[group] = share
        return InterpolatedBigram(model.unigram, model.pairs, shares, edges, ()).perplexity(valid).loss

    for group in range(len(edges) + 1):
        best = minimize_scalar(loss, args=(group,), bounds=(0, 1), method="bounded", options={"xatol": 1e-8})
        assert 0.05 < best.x < 0.95
        assert model.shares_G[group].item() == pytest.approx(best.x, abs=1e-3)
        assert model.perplexity(valid).loss <= best.fun + 1e-7


def test_groups_that_the_other_text_does_not_hold_keep_a_half() -> None:
    train = torch.tensor([1, 2, 1, 2, 1, 3, 1, 4, 5])
    model = interpolated_bigram(train, torch.tensor([2, 3]), 6, eos=EOS, edges=(2, 4))
    # Before the words of the other text stand "<eos>" and 2, seen once and twice; only 1 was seen four times.
    assert model.shares_G[2] == 0.5


def test_a_word_that_always_came_as_expected_leaves_room_for_others() -> None:
    train = torch.tensor([1, 2] * 50)
    model = interpolated_bigram(train, train, 4, eos=EOS)
    assert model.shares_G.max() == ngrams.LARGEST_SHARE
    assert math.isfinite(model.perplexity(torch.tensor([1, 3, 1, 2, 2])).loss)


def test_a_bigram_beats_a_unigram_where_words_follow_each_other() -> None:
    model, train, valid = fitted()
    assert model.perplexity(valid).loss < unigram(train, V, eos=EOS).perplexity(valid).loss - 0.2


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be above every token, got 5 and the token 7"):
        unigram(torch.tensor([1, 7, 2]), 5, eos=EOS)
    with pytest.raises(ValueError, match="tokens must be one dimension of integers and not empty"):
        interpolated_bigram(text(5), torch.zeros(0, dtype=torch.int64), V, eos=EOS)
    with pytest.raises(ValueError, match=r"edges must rise, got \(4, 2\)"):
        interpolated_bigram(text(5), text(5), V, eos=EOS, edges=(4, 2))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        unigram(text(5), 0, eos=EOS)
