"""Hidden vectors and rows of log-probabilities along a stream: each token once, from what its window promises."""

from typing import Any

import pytest
import torch
from torch import Tensor

from anymax.evaluation import Windows, hidden_states, predictions, token_losses
from anymax.evaluation.perplexity import predicted
from anymax.models import LSTMLM, LanguageModel, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveOutput, Bands, FixedInput, FullOutput, MixtureOutput, OutputLayer

EOS, V = 0, 12


def transformer(output: OutputLayer | None = None) -> TransformerLM:
    return TransformerLM(FixedInput(V, 8), output or FullOutput(V, 8), TransformerConfig(8, 1, 2, 12, dropout=0.5))


def recurrent() -> LSTMLM:
    return LSTMLM(FixedInput(V, 6), FullOutput(V, 8, bias=True, label_smoothing=0.3), LSTMConfig(6, 8, 2, dropout=0.5))


def text(length: int = 37) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[9::10] = EOS
    return tokens


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        (transformer, Windows(7, context=3)),
        (transformer, Windows(7, context=3, first="stride")),
        (transformer, Windows(8, kind="sentences")),
        (recurrent, Windows(5)),
    ],
)
def test_the_predictions_of_tokens_give_their_losses(model: Any, windows: Windows) -> None:
    built, tokens = model(), text()
    parts = list(predictions(built, tokens, windows, eos=EOS))
    assert torch.equal(torch.cat([part.tokens for part in parts]), tokens)
    assert [part.start for part in parts] == [0, *torch.tensor([len(part.tokens) for part in parts]).cumsum(0)[:-1]]
    found = torch.cat([-part.log_probs.gather(1, part.tokens[:, None])[:, 0] for part in parts])
    losses = torch.cat([scored.losses for scored in token_losses(built, tokens, windows, eos=EOS)])
    assert torch.allclose(found, losses, atol=1e-5)
    assert built.training and not found.requires_grad


def test_rows_come_so_few_at_a_time_that_they_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "BLOCK_BYTES", 3 * 4 * predicted.COPIES * V)
    parts = list(predictions(transformer(), text(), Windows(8), eos=EOS))
    assert [len(part.tokens) for part in parts] == [3] * 12 + [1]
    assert [part.start for part in parts] == list(range(0, 37, 3))


@pytest.mark.parametrize(
    "output",
    [
        lambda: AdaptiveOutput(Bands.from_cutoffs((4,), V, dim=8), 8),
        lambda: MixtureOutput(V, 8, num_experts=3, latent_dropout=0.5),
    ],
)
def test_the_vectors_are_those_that_the_output_reads(output: Any) -> None:
    model, tokens = transformer(output()), text()
    (read,) = hidden_states(model, tokens, Windows(len(tokens)), eos=EOS)
    model.eval()
    with torch.no_grad():
        whole = model.hidden(torch.cat([torch.tensor([EOS]), tokens[:-1]])[None])[0]
    assert torch.allclose(read.hidden, whole, atol=1e-6)


def test_what_is_no_language_model_is_refused() -> None:
    with pytest.raises(TypeError, match="model must be a LanguageModel"):
        hidden_states(torch.nn.Linear(2, 2), text(), Windows(4), eos=EOS)


def test_a_model_is_as_it_was_when_the_reader_has_enough() -> None:
    model: LanguageModel = recurrent()
    reading = hidden_states(model, text(), Windows(5), eos=EOS)
    next(reading)
    assert not model.training
    del reading
    assert model.training and model.output.label_smoothing == 0.3
