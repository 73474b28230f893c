"""Text drawn from a language model: what decides it, what is kept, where it ends."""

import math
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from anymax.decoding import draw_next, generate
from anymax.vocabulary import FullOutput, TopK
from tests.models.transformer.test_model import LAYERS, VARIANTS, V, build, words

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}])
def test_generation_depends_on_the_seed_alone(options: dict[str, float]) -> None:
    model, prompt = build(dropout=0.5), words(3, 4)
    first = generate(model, prompt, num_tokens=12, generator=seeded(1), **options)
    assert first.shape == (3, 16) and torch.equal(first[:, :4], prompt)
    assert torch.equal(generate(model, prompt, num_tokens=12, generator=seeded(1), **options), first)
    assert not torch.equal(generate(model, prompt, num_tokens=12, generator=seeded(2), **options), first)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("variant", ["paper", "modern"])
@torch.no_grad()
def test_greedy_generation_takes_the_likeliest_word_of_the_whole_text(layers: str, variant: str) -> None:
    model, prompt = build(layers, **VARIANTS[variant]), words(3, 4)
    expected = prompt
    for _ in range(6):
        best = model.output.log_probs(model.hidden(expected)[:, -1]).argmax(-1)
        expected = torch.cat([expected, best[:, None]], 1)
    assert torch.equal(generate(model, prompt, num_tokens=6, top_k=1), expected)


class Given(FullOutput):
    """An output whose distribution is given, and that counts how it was asked."""

    def __init__(self, probs: list[float]) -> None:
        super().__init__(len(probs), 4)
        self.given = torch.tensor(probs)
        self.asked: list[str] = []

    def log_probs(self, hidden: Tensor) -> Tensor:
        return self.given.log().expand(*hidden.shape[:-1], -1)

    def sample(self, hidden: Tensor, **options: object) -> Tensor:
        self.asked.append("sample")
        return super().sample(hidden, **options)

    def topk(self, hidden: Tensor, k: int) -> TopK:
        self.asked.append(f"top {k}")
        return super().topk(hidden, k)


PROBS = [0.05, 0.4, 0.0, 0.2, 0.25, 0.1]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.45}, {1, 4}),
        ({"top_p": 0.66}, {1, 4, 3}),
        ({"top_p": 0.9}, {1, 4, 3, 5}),
        ({"top_p": 1.0}, {1, 4, 3, 5, 0}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 4, 3}),
        ({"top_k": 6}, {1, 4, 3, 5, 0}),
        # Of three words, the best two have 0.76 of what is left.
        ({"top_k": 3, "top_p": 0.75}, {1, 4}),
        ({"top_k": 3, "temperature": 0.5}, {1, 4, 3}),
        ({"top_k": 6, "temperature": 1e-40}, {1}),
        # At a high temperature five words are nearly even.
        ({"top_p": 0.7, "temperature": 100.0}, {1, 4, 3, 5}),
        ({}, {1, 4, 3, 5, 0}),
        ({"temperature": 2.0}, {1, 4, 3, 5, 0}),
    ],
    ids=str,
)
def test_words_are_drawn_among_those_kept_by_their_probabilities(options: dict[str, float], kept: set[int]) -> None:
    drawn = draw_next(Given(PROBS), torch.zeros(20_000, 4), **options)
    expected = torch.tensor([p if word in kept else 0.0 for word, p in enumerate(PROBS)])
    expected = expected.double() ** (1 / options.get("temperature", 1.0)) if len(kept) > 1 else (expected > 0).double()
    counts = drawn.bincount(minlength=6)
    assert set(counts.nonzero()[:, 0].tolist()) == kept
    torch.testing.assert_close(counts / 20_000, (expected / expected.sum()).float(), rtol=0, atol=0.02)


def test_the_output_is_asked_for_no_more_than_is_needed() -> None:
    for options, asked in (({}, "sample"), ({"top_k": 2}, "top 2"), ({"top_p": 0.5}, "top 6")):
        output = Given(PROBS)
        draw_next(output, torch.zeros(2, 4), **options)
        assert output.asked == [asked]


def test_texts_end_at_the_word_that_stops_them() -> None:
    model, prompt = build(), words(4, 3)
    free = generate(model, prompt, num_tokens=30, generator=seeded(3))
    stop = int(free[0, 7])
    texts = generate(model, prompt, num_tokens=30, generator=seeded(3), stop=stop)[:, 3:]
    for text in texts.tolist():
        if stop in text:
            assert set(text[text.index(stop) :]) == {stop}
    assert stop in texts[0].tolist()
    alone = generate(model, prompt[:1], num_tokens=30, top_k=1)
    stop = int(alone[0, 6])
    short = generate(model, prompt[:1], num_tokens=30, top_k=1, stop=stop)
    assert short[0].tolist() == alone[0, : 3 + alone[0, 3:].tolist().index(stop) + 1].tolist()


def test_banned_words_are_never_drawn_and_another_stands_where_nothing_else_is_likely() -> None:
    model, prompt = build(), words(4, 3)
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.5}):
        free = generate(model, prompt, num_tokens=30, generator=seeded(3), **options)[:, 3:]
        banned = free.flatten().mode().values.item()
        texts = generate(model, prompt, num_tokens=30, generator=seeded(3), banned=[banned], otherwise=0, **options)
        assert banned not in texts[:, 3:].flatten().tolist()
    output = model.output
    certain = torch.full((4, V), -math.inf).index_fill(1, torch.tensor([5]), 0.0)
    with patch.object(output, "log_probs", lambda hidden: certain.clone()):
        stuck = generate(model, prompt, num_tokens=4, banned=[5], otherwise=7)
    assert stuck[:, 3:].tolist() == [[7] * 4] * 4


def test_generation_leaves_every_module_in_its_mode() -> None:
    model = build(dropout=0.1)
    model.blocks[0].eval()
    generate(model, words(1, 2), num_tokens=2)
    assert model.training and model.blocks[1].training and not model.blocks[0].attention.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be a positive finite number, got 0.0; top_k=1"),
        ({"top_k": 0}, "top_k must be between 1 and the vocabulary size, 23, got 0"),
        ({"top_k": 24}, "top_k must be between 1 and the vocabulary size, 23, got 24"),
        ({"top_p": 0.0}, "top_p must lie above 0 and be at most 1, got 0.0"),
        ({"stop": V}, "stop must be a word of the vocabulary, from 0 to 22, got 23"),
        ({"banned": [3]}, "otherwise must be given with banned"),
        ({"otherwise": 3}, "otherwise must be given with banned"),
        ({"banned": [3], "otherwise": 3}, "be another word, got 3"),
        ({"banned": [V], "otherwise": 3}, "must be words of the vocabulary, from 0 to 22, got 23"),
        ({"prompt_ids": torch.arange(3)}, r"prompt_ids must be \(batch, positions\)"),
        ({"prompt_ids": torch.arange(0).view(3, 0)}, r"got shape \(3, 0\)"),
    ],
    ids=str,
)
def test_generation_refuses_what_it_cannot_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(build(), **{"prompt_ids": words(1, 3), "num_tokens": 2} | options)


@pytest.mark.parametrize("options", [{}, {"top_k": 3}])
def test_probabilities_that_are_not_finite_are_refused_in_words(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="probabilities must be finite, but the model's are not"):
        draw_next(Given([float("nan")] * 6), torch.zeros(2, 4), **options)
