"""The neural cache: against a loop over positions, in any blocks, always a distribution."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anymax.evaluation import CachedModel, CachePointer, Windows, hidden_states, perplexity, token_losses
from anymax.evaluation.adaptation import cache_pointer
from anymax.evaluation.adaptation.cache_pointer import Memory, mix
from anymax.models import LSTMLM, LanguageModel, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveOutput, Bands, FixedInput, FullOutput, SparseOutput
from tests.each import each

EOS, V = 0, 12


def transformer() -> TransformerLM:
    return TransformerLM(FixedInput(V, 8), FullOutput(V, 8), TransformerConfig(8, 1, 2, 12))


def recurrent() -> LSTMLM:
    output = AdaptiveOutput(Bands.from_cutoffs((5,), V, dim=8, factor=2), 8)
    return LSTMLM(FixedInput(V, 6), output, LSTMConfig(6, 8, 1))


def text(length: int = 45) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[9::10] = EOS
    return tokens


def distributions(model: LanguageModel, tokens: Tensor, cache: CachePointer, windows: Windows) -> Tensor:
    """Position by position, as the definition has it, in float64."""
    parts = list(hidden_states(model, tokens, windows, eos=EOS))
    hidden = torch.cat([part.hidden for part in parts])
    with torch.no_grad():
        probs = model.output.log_probs(hidden).double().exp()
    hidden = hidden.double()
    for t in range(len(tokens)):
        first = max(0, t - cache.window)
        if t == 0 or (cache.only_full and t <= cache.window):
            continue
        attention = torch.softmax(cache.theta * hidden[first:t] @ hidden[t], 0)
        of_cache = torch.zeros(V, dtype=torch.float64)
        for i in range(first, t):
            of_cache[tokens[i]] += attention[i - first]
        probs[t] = (1 - cache.weight) * probs[t] + cache.weight * of_cache
    return probs


def losses(
    model: LanguageModel, tokens: Tensor, cache: CachePointer, windows: Windows, batch_tokens: int = 8192
) -> Tensor:
    cached = CachedModel(model, cache, num_tokens=len(tokens))
    scored = token_losses(cached, tokens, windows, eos=EOS, batch_tokens=batch_tokens)
    return torch.cat([span.losses for span in scored])


@each("only_full", [False, True])
@each("window", [1, 4, 44])
@each(
    ("build", "windows", "batch_tokens"),
    [
        (transformer, Windows(6, context=2), 8192),
        (transformer, Windows(6, context=2), 12),
        (recurrent, Windows(7), 8192),
        (recurrent, Windows(45), 8192),
    ],
)
def test_losses_are_those_of_the_definition(
    build: Callable[[], LanguageModel], windows: Windows, batch_tokens: int, window: int, only_full: bool
) -> None:
    model, tokens = build(), text()
    cache = CachePointer(window=window, theta=0.7, weight=0.3, only_full=only_full)
    expected = -distributions(model, tokens, cache, windows).log().gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(losses(model, tokens, cache, windows, batch_tokens).double(), expected, atol=1e-5)


def test_the_published_script_leaves_out_the_first_word_of_later_chunks_and_agrees_elsewhere() -> None:
    model, tokens = recurrent(), text()
    cache = CachePointer(window=6, theta=0.7, weight=0.3, only_full=True)
    ours = losses(model, tokens, cache, Windows(45)).double()
    hidden = torch.cat([part.hidden for part in hidden_states(model, tokens, Windows(45), eos=EOS)]).double()
    with torch.no_grad():
        of_model = model.output.log_probs(hidden.float()).double().exp()
    for chunk in (4, 11):
        keys, words, published = hidden[:0], tokens[:0], []
        for start in range(0, 45, chunk):
            num_kept = len(words)
            keys = torch.cat([keys, hidden[start : start + chunk]])
            words = torch.cat([words, tokens[start : start + chunk]])
            for place in range(num_kept, len(words)):
                p = of_model[start + place - num_kept, words[place]]
                if place > cache.window:
                    seen = slice(place - cache.window, place)
                    attention = torch.softmax(cache.theta * keys[seen] @ keys[place], 0)
                    p = (1 - cache.weight) * p + cache.weight * attention[words[seen] == words[place]].sum()
                published.append(-p.log())
            keys, words = keys[-cache.window :], words[-cache.window :]
        is_other = ~torch.isclose(ours, torch.stack(published), atol=1e-5)
        assert is_other.nonzero()[:, 0].tolist() == [start for start in range(0, 45, chunk) if start > cache.window]


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, cache = recurrent(), text(), CachePointer(window=9, theta=2.0, weight=0.4)
    whole = losses(model, tokens, cache, Windows(45))
    for scores in (1, 20, 50):
        monkeypatch.setattr(cache_pointer, "BLOCK_SCORES", scores)
        assert torch.allclose(losses(model, tokens, cache, Windows(45)), whole, atol=1e-6)


def test_the_mixture_is_a_distribution_that_holds_the_target() -> None:
    model, tokens, cache = recurrent(), text(), CachePointer(window=9, theta=2.0, weight=0.4)
    memory, found = Memory(cache), []
    for read in hidden_states(model, tokens, Windows(8), eos=EOS):
        with torch.no_grad():
            of_model = model.output.log_probs(read.hidden)
        attended = memory.attend(read.hidden, read.tokens)
        of_cache = attended.probs(V)
        assert torch.allclose(of_cache.sum(1), attended.is_open_Q.float(), atol=1e-6)
        assert torch.allclose(of_cache.gather(1, read.tokens[:, None])[:, 0], attended.log_prob(read.tokens).exp())
        found.append(mix(of_model, of_cache.log(), attended.is_open_Q, cache.weight))
    mixed = torch.cat(found).exp()
    assert torch.allclose(mixed.sum(1), torch.ones(len(tokens)), atol=1e-5)
    assert torch.allclose(mixed.double(), distributions(model, tokens, cache, Windows(8)), atol=1e-6)


def test_a_cache_without_weight_changes_no_bit() -> None:
    model, tokens = transformer(), text()
    alone = perplexity(model, tokens, Windows(6, context=2), eos=EOS)
    cached = CachedModel(model, CachePointer(window=5, weight=0.0), num_tokens=len(tokens))
    assert perplexity(cached, tokens, Windows(6, context=2), eos=EOS) == alone


def test_a_text_that_repeats_itself_becomes_easier() -> None:
    model, tokens = recurrent(), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 0] * 12)
    alone = perplexity(model, tokens, Windows(20), eos=EOS)
    cached = CachedModel(model, CachePointer(window=40, theta=50.0, weight=0.5), num_tokens=len(tokens))
    assert perplexity(cached, tokens, Windows(20), eos=EOS).loss < alone.loss - 0.2


def test_similarities_of_any_size_give_numbers() -> None:
    model, tokens = recurrent(), text()
    assert losses(model, tokens, CachePointer(window=9, theta=1e6, weight=0.5), Windows(9)).isfinite().all()


def test_what_a_cache_cannot_do_is_refused() -> None:
    model, tokens = recurrent(), text(20)
    with pytest.raises(ValueError, match="window must be less than the 20 tokens of the text, got 20; lower it"):
        CachedModel(model, CachePointer(window=20), num_tokens=20)
    cached = CachedModel(model, CachePointer(window=5), num_tokens=20)
    with pytest.raises(ValueError, match="ids must be one row where a state is carried, got 2; score with rows=1"):
        perplexity(cached, tokens, Windows(5, rows=2), eos=EOS)
    perplexity(cached, tokens, Windows(5), eos=EOS)
    with pytest.raises(ValueError, match="the text must have the 20 tokens announced, got more; make a new model"):
        perplexity(cached, tokens, Windows(5), eos=EOS)
    with pytest.raises(ValueError, match="reduction must be 'none'"):
        cached(tokens[None], tokens[None], "mean")
    sparse = TransformerLM(FixedInput(V, 8), SparseOutput(V, 8), TransformerConfig(8, 1, 2, 12))
    with pytest.raises(ValueError, match=r"output that is a likelihood .* got SparseOutput"):
        CachedModel(sparse, CachePointer(window=5), num_tokens=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"theta": math.inf}, "theta must be at least 0 and finite, got inf"),
        ({"weight": 1.0}, "weight must be below 1, got 1.0"),
        ({"weight": -0.1}, "weight must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CachePointer(**settings)


def test_a_window_of_half_a_word_is_refused() -> None:
    with pytest.raises(TypeError, match=r"window must be an integer, got 2\.5"):
        CachePointer(window=2.5)  # type: ignore[arg-type]
