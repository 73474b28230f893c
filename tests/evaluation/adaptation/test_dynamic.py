"""Dynamic evaluation: against a loop over segments with torch's own gradients, and nothing left behind."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.evaluation import DynamicEvaluation, Windows, adapting, gradient_sizes, perplexity, token_losses
from anymax.models import LSTMLM, LanguageModel, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import FixedInput, FullOutput, SparseOutput, tie_

EOS, V = 0, 12


def transformer() -> TransformerLM:
    return TransformerLM(FixedInput(V, 8), FullOutput(V, 8), TransformerConfig(8, 1, 2, 12, dropout=0.5)).double()


def recurrent() -> LSTMLM:
    """With dropout, tied tables and a parameter that is not trained."""
    input, output = FixedInput(V, 8), FullOutput(V, 8, bias=True, label_smoothing=0.1)
    tie_(input, output)
    model = LSTMLM(input, output, LSTMConfig(8, 8, 2, dropout=0.5)).double()
    model.lstm.bias_hh_l1.requires_grad_(False)
    return model


def text(length: int = 43) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[9::10] = EOS
    return tokens


def bits(model: LanguageModel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def by_hand(model: LanguageModel, tokens: Tensor, spans: list[tuple[int, int, int]], update: Callable[..., Any]) -> Any:
    """The loss of every token, in segments of (read from, scored from, end), with a step after each."""
    model.eval()
    read = torch.cat([torch.tensor([EOS]), tokens])
    state = model.new_cache(len(tokens)) if model.carries_state else None
    found = []
    for start, scored, end in spans:
        model.zero_grad()
        log_probs = model.output.log_probs(model.hidden(read[None, start:end], state))[0, scored - start :]
        each = F.nll_loss(log_probs, tokens[scored:end], reduction="none")
        each.mean().backward()
        with torch.no_grad():
            update(model)
        found.append(each.detach())
    model.zero_grad()
    return torch.cat(found)


def rms_update(dynamic: DynamicEvaluation, starts: list[Tensor], sizes: list[Tensor]) -> Callable[..., None]:
    """Krause et al.'s rule, in the terms of the published script."""

    def update(model: LanguageModel) -> None:
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = sum(size.mean() for size in sizes)
        for parameter, start, size in zip(learned, starts, sizes, strict=True):
            rate = torch.minimum(size / total, torch.tensor(1 / dynamic.decay, dtype=size.dtype))
            step = dynamic.decay * rate * (start - parameter) - dynamic.lr * parameter.grad / (size + dynamic.epsilon)
            parameter.copy_(parameter + step)

    return update


def newest_update(lamb: float, lr: float, epsilon: float, starts: list[Tensor], sizes: list[Tensor]) -> Any:
    """The rule of the newest public script, whose decay rates are relative to the mean over parameter tensors."""

    def update(model: LanguageModel) -> None:
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        usual = torch.stack([size.mean() for size in sizes]).mean()
        for parameter, start, size in zip(learned, starts, sizes, strict=True):
            rate = (size / usual).clamp(max=1 / lamb)
            parameter.add_(lamb * rate * (start - parameter) - lr * parameter.grad / (size + epsilon))

    return update


def learned_bits(model: LanguageModel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad]


def dynamic_losses(
    model: LanguageModel,
    tokens: Tensor,
    dynamic: DynamicEvaluation,
    sizes: list[Tensor] | None,
    windows: Windows,
    batch_tokens: int = 8192,
) -> Tensor:
    with adapting(model, dynamic, sizes) as learning:
        return static(learning, tokens, windows, batch_tokens)


# A decay so large that the largest rates are cut.
SETTINGS = [DynamicEvaluation(lr=0.05, decay=0.3, epsilon=0.01), DynamicEvaluation(lr=0.02, decay=40.0, epsilon=0.1)]


@pytest.mark.parametrize("dynamic", SETTINGS)
@pytest.mark.parametrize("block", [15, 5])
def test_a_recurrent_model_learns_from_segment_to_segment(dynamic: DynamicEvaluation, block: int) -> None:
    model, tokens = recurrent(), text()
    sizes = gradient_sizes(model, text(60), dynamic, eos=EOS, block=1)
    found = dynamic_losses(model, tokens, dynamic, sizes, Windows(block))
    spans = [(start, start, min(start + 5, 43)) for start in range(0, 43, 5)]
    expected = by_hand(model, tokens, spans, rms_update(dynamic, learned_bits(model), sizes))
    assert torch.allclose(found, expected, atol=1e-10)
    assert not torch.allclose(found[5:], static(recurrent(), tokens, Windows(5))[5:])


@pytest.mark.parametrize("lamb", [0.05, 4.0])
def test_the_newest_rule_is_the_mean_with_a_decay_for_each_parameter_tensor(lamb: float) -> None:
    model, tokens = recurrent(), text()
    starts = learned_bits(model)
    dynamic = DynamicEvaluation(lr=0.01, decay=lamb * len(starts), epsilon=0.02, statistics="mean")
    sizes = gradient_sizes(model, text(60), dynamic, eos=EOS, block=1)
    found = dynamic_losses(model, tokens, dynamic, sizes, Windows(5))
    spans = [(start, start, min(start + 5, 43)) for start in range(0, 43, 5)]
    expected = by_hand(model, tokens, spans, newest_update(lamb, 0.01, 0.02, starts, sizes))
    assert torch.allclose(found, expected, atol=1e-10)


def static(model: nn.Module, tokens: Tensor, windows: Windows, batch_tokens: int = 8192) -> Tensor:
    scored = token_losses(model, tokens, windows, eos=EOS, batch_tokens=batch_tokens)
    return torch.cat([span.losses for span in scored])


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_a_transformer_learns_from_window_to_window(batch_tokens: int) -> None:
    model, tokens, dynamic = transformer(), text(), DynamicEvaluation(lr=0.01, decay=0.3, epsilon=0.1)
    sizes = gradient_sizes(model, text(60), dynamic, eos=EOS, block=8)
    found = dynamic_losses(model, tokens, dynamic, sizes, Windows(8, context=3), batch_tokens=batch_tokens)
    spans = [tuple(window) for window in Windows(8, context=3).over(tokens, eos=EOS)]
    expected = by_hand(model, tokens, spans, rms_update(dynamic, learned_bits(model), sizes))
    assert torch.allclose(found, expected, atol=1e-10)


def test_plain_steps_follow_the_gradient_and_return_by_a_share() -> None:
    model, tokens, dynamic = recurrent(), text(), DynamicEvaluation("sgd", lr=0.5, decay=0.1, block=7)
    starts = learned_bits(model)
    found = dynamic_losses(model, tokens, dynamic, None, Windows(7))

    def update(model: LanguageModel) -> None:
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter, start in zip(learned, starts, strict=True):
            parameter.copy_(parameter - 0.5 * parameter.grad + 0.1 * (start - parameter))

    expected = by_hand(model, tokens, [(start, start, min(start + 7, 43)) for start in range(0, 43, 7)], update)
    assert torch.allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("statistics", ["sum", "mean"])
def test_sizes_of_gradients_are_roots_of_squares_over_training_text(statistics: Any) -> None:
    model, tokens = transformer(), text(50)
    dynamic = DynamicEvaluation(statistics=statistics, batch_size=2)
    found = gradient_sizes(model, tokens, dynamic, eos=EOS, block=8)
    model.eval()
    read, squares = torch.cat([torch.tensor([EOS]), tokens]), [torch.zeros_like(p) for p in model.parameters()]
    for start in range(0, 50, 16):
        rows = [(at, min(at + 8, 50)) for at in range(start, min(start + 16, 50), 8)]
        targets = torch.cat([tokens[a:b] for a, b in rows])
        log_probs = torch.cat([model.output.log_probs(model.hidden(read[None, a:b]))[0] for a, b in rows])
        gradients = torch.autograd.grad(F.nll_loss(log_probs, targets), list(model.parameters()))
        squares = [square + gradient**2 for square, gradient in zip(squares, gradients, strict=True)]
    divisor = 1 if statistics == "sum" else 4
    for size, square in zip(found, squares, strict=True):
        assert torch.allclose(size, (square / divisor).sqrt(), atol=1e-12)


def test_fewer_batches_are_read_where_that_is_asked_and_progress_is_told() -> None:
    model, tokens, seen = recurrent(), text(90), []
    short = DynamicEvaluation(batch_size=3, max_batches=2)
    some = gradient_sizes(model, tokens, short, eos=EOS, block=1, progress=lambda *done: seen.append(done))
    whole = gradient_sizes(model, tokens, DynamicEvaluation(batch_size=3), eos=EOS, block=1)
    assert seen == [(1, 2), (2, 2)]
    assert all((few <= many + 1e-12).all() for few, many in zip(some, whole, strict=True))


@pytest.mark.parametrize("build", [transformer, recurrent])
def test_without_rate_and_decay_nothing_changes(build: Callable[[], LanguageModel]) -> None:
    model, tokens = build(), text()
    dynamic = DynamicEvaluation(lr=0.0, decay=0.0)
    sizes = gradient_sizes(model, text(60), dynamic, eos=EOS, block=5)
    assert torch.allclose(
        dynamic_losses(model, tokens, dynamic, sizes, Windows(5)), static(model, tokens, Windows(5)), atol=1e-12
    )


@pytest.mark.parametrize("build", [transformer, recurrent])
def test_a_model_is_to_the_bit_what_it_was(build: Callable[[], LanguageModel]) -> None:
    model, tokens, dynamic = build().float(), text(), DynamicEvaluation("sgd", lr=0.1)
    before = bits(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    dynamic_losses(model, tokens, dynamic, None, Windows(5))
    assert all(torch.equal(now, then) for now, then in zip(bits(model), before, strict=True))
    assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model.parameters())
    assert model.training


def test_a_model_is_what_it_was_after_an_error_too() -> None:
    model = recurrent()
    before = bits(model)

    def broken_off() -> None:
        with adapting(model, DynamicEvaluation("sgd", lr=1.0)) as learning:
            for _ in zip(range(3), token_losses(learning, text(), Windows(5), eos=EOS), strict=False):
                pass
            assert not torch.equal(bits(model)[0], before[0])
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        broken_off()
    assert all(torch.equal(now, then) for now, then in zip(bits(model), before, strict=True))


def test_losses_that_are_no_numbers_are_told() -> None:
    model = recurrent()
    before = bits(model)
    with pytest.raises(ValueError, match=r"losses must stay finite while the model learns, got .*; lower lr"):
        dynamic_losses(model, text(), DynamicEvaluation("sgd", lr=1e300), None, Windows(5))
    assert all(torch.equal(now, then) for now, then in zip(bits(model), before, strict=True))


def test_a_text_that_repeats_itself_becomes_easier_for_any_output() -> None:
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 0] * 12)
    for output in (FullOutput(V, 8), SparseOutput(V, 8)):
        model = TransformerLM(FixedInput(V, 8), output, TransformerConfig(8, 1, 2, 12))
        alone = perplexity(model, tokens, Windows(9), eos=EOS)
        with adapting(model, DynamicEvaluation("sgd", lr=0.1, decay=0.0)) as learning:
            adapted = perplexity(learning, tokens, Windows(9), eos=EOS)
        assert adapted.loss < alone.loss - 0.3 and adapted.loss_name == alone.loss_name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "adam"}, r"rule must be one of \('rms', 'sgd'\), got 'adam'"),
        ({"statistics": "median"}, r"statistics must be one of \('sum', 'mean'\), got 'median'"),
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"decay": math.nan}, "decay must be at least 0"),
        ({"block": 0}, "block must be at least 1"),
        ({"rule": "sgd", "decay": 1.5}, "decay must be at most 1"),
        ({"rule": "sgd", "epsilon": 0.1, "max_batches": 3}, "epsilon and max_batches must be left out with the rule"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicEvaluation(**settings)


def test_what_cannot_be_learned_from_is_refused() -> None:
    model, other = transformer(), recurrent()
    sizes = gradient_sizes(model, text(), DynamicEvaluation(), eos=EOS, block=8)
    with pytest.raises(ValueError, match="sizes must be given for the rule 'rms'"):
        dynamic_losses(model, text(), DynamicEvaluation(), None, Windows(5))
    with pytest.raises(ValueError, match="left out with the rule 'sgd'"):
        dynamic_losses(model, text(), DynamicEvaluation("sgd"), sizes, Windows(5))
    with pytest.raises(ValueError, match="sizes must be those of this model's trainable parameters"):
        dynamic_losses(other, text(), DynamicEvaluation(), sizes, Windows(5))
    with pytest.raises(ValueError, match="must not all be zero"):
        dynamic_losses(model, text(), DynamicEvaluation(), [torch.zeros_like(size) for size in sizes], Windows(5))
    with pytest.raises(ValueError, match="block must be None for a model that carries no state, got 5"):
        dynamic_losses(model, text(), DynamicEvaluation("sgd", block=5), None, Windows(5))
    with pytest.raises(ValueError, match="ids must be one row where a state is carried, got 2"):
        dynamic_losses(other, text(), DynamicEvaluation("sgd"), None, Windows(5, rows=2))
    with adapting(model, DynamicEvaluation("sgd")) as learning, pytest.raises(ValueError, match="reduction must be"):
        learning(text()[None], text()[None], "mean")
