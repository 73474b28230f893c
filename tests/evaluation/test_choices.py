"""What a model chooses: against sums by hand, for outputs with and without a likelihood."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anymax.evaluation import ChoiceCounter, Windows, measure_choices, perplexity
from anymax.models import LSTMLM, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import FixedInput, FullOutput, OutputLayer, SparseOutput

EOS, V = 0, 12
# Rows: one mode, two tied modes, and three words that have all of it.
PROBS = torch.tensor([[0.1, 0.6, 0.3, 0.0], [0.4, 0.2, 0.4, 0.0], [0.25, 0.25, 0.5, 0.0]], dtype=torch.float64)


def counted(probs: Tensor, targets: list[int], epsilon: float = 0.01) -> Any:
    counter = ChoiceCounter(epsilon)
    counter.add(torch.tensor(targets), probs.log())
    return counter.choices()


def model(output: OutputLayer) -> TransformerLM:
    return TransformerLM(FixedInput(V, 8), output, TransformerConfig(8, 1, 2, 12))


def text(length: int = 37) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[9::10] = EOS
    return tokens


def test_every_measure_is_the_mean_over_positions() -> None:
    found = counted(PROBS, [1, 2, 3])
    # The first is right, the second by half, the third not.
    assert found.accuracy == pytest.approx(0.5)
    entropies = [-sum(p * math.log(p) for p in row if p) for row in PROBS.tolist()]
    assert found.entropy == pytest.approx(sum(entropies) / 3)
    assert (found.ties, found.zero_targets) == pytest.approx((1 / 3, 1 / 3))
    assert found.support == 3
    smoothed = [(p + 0.01) / (1 + 4 * 0.01) for p in (0.6, 0.4, 0.0)]
    assert found.epsilon_perplexity == pytest.approx(math.exp(-sum(map(math.log, smoothed)) / 3))


def test_parts_add_up_to_the_whole() -> None:
    counter = ChoiceCounter(0.01)
    for row, target in zip(PROBS.split(1), (1, 2, 3), strict=True):
        counter.add(torch.tensor([target]), row.log())
    assert counter.choices().metrics() == pytest.approx(counted(PROBS, [1, 2, 3]).metrics())


def test_smoothed_probabilities_sum_to_one() -> None:
    each = [1 / counted(PROBS[:1], [word]).epsilon_perplexity for word in range(4)]
    assert sum(each) == pytest.approx(1)


def test_a_small_epsilon_gives_the_perplexity_of_a_likelihood() -> None:
    built, tokens = model(FullOutput(V, 8)), text()
    for windows in (Windows(7, context=2), Windows(7, context=2, first="stride")):
        found = measure_choices(built, tokens, windows, eos=EOS, epsilon=1e-12)
        measured = perplexity(built, tokens, windows, eos=EOS)
        assert found.epsilon_perplexity == pytest.approx(measured.perplexity, rel=1e-5)
    assert (found.zero_targets, found.support, found.ties, found.num_tokens) == (0, V, 0, 37)
    assert 0 < found.entropy < math.log(V)


def test_a_sparse_output_is_measured_over_its_support() -> None:
    output = SparseOutput(V, 8, alpha=2.0)
    with torch.no_grad():
        output.table.mul_(4)
    built, tokens = model(output).eval(), text()
    found = measure_choices(built, tokens, Windows(len(tokens)), eos=EOS)
    with torch.no_grad():
        probs = output.log_probs(built.hidden(torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]))[0].exp()
    assert found.support == pytest.approx((probs > 0).sum().item() / 37) and found.support < V
    assert found.zero_targets == pytest.approx((probs.gather(1, tokens[:, None]) == 0).double().mean().item())
    assert found.accuracy == pytest.approx((probs.argmax(-1) == tokens).double().mean().item())
    assert math.isfinite(found.epsilon_perplexity) and 0 < found.zero_targets < 1


def test_a_model_that_carries_a_state_is_measured_whatever_the_block() -> None:
    built, tokens = LSTMLM(FixedInput(V, 6), FullOutput(V, 8), LSTMConfig(6, 8, 1)), text()
    found = [measure_choices(built, tokens, Windows(block), eos=EOS).metrics() for block in (5, 37)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_the_measures_are_flat_numbers_with_a_sentence() -> None:
    found = counted(PROBS, [1, 2, 3])
    assert json.loads(json.dumps(found.metrics(), allow_nan=False)) == found.metrics()
    assert "accuracy 50.00% over 3 tokens" in str(found) and "(epsilon 0.01)" in str(found)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="log-probabilities must be numbers, got nan"):
        counted(torch.full((1, 4), math.nan), [1])
    with pytest.raises(ValueError, match="epsilon must be a positive finite number, got 0"):
        ChoiceCounter(0)
    with pytest.raises(ValueError, match="at least one token, got none"):
        ChoiceCounter().choices()
