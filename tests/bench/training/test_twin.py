"""Models of torch's own modules: they learn, step by step, what ours learn."""

import pytest
import torch
from torch import Tensor, nn

import anymax
from anymax.bench.training.benchmark import build
from anymax.bench.training.twin import MAX_LENGTH, TwinLM, twin_of
from anymax.evaluation import Windows, perplexity
from anymax.models import TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, FixedInput, FullOutput, SparseOutput, tie_

V, D = 30, 16
BANDS = Bands.from_sizes((8, 10, 12), dim=D)
BODY = TransformerConfig(D, num_layers=2, num_heads=2, ffn_dim=24)
POST_NORM = TransformerConfig(D, 2, 2, 24, activation="gelu", norm_first=False, norm_eps=1e-2, final_norm=True)
FINAL_NORM = TransformerConfig(D, num_layers=1, num_heads=2, ffn_dim=24, final_norm=True)


pytestmark = pytest.mark.usefixtures("one_thread")


def tables_tied() -> TransformerLM:
    input, output = AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, D)
    tie_(input, output)
    return TransformerLM(input, output, BODY)


MODELS = {
    "SM": lambda: build("SM", BODY, BANDS),
    "SM, narrow": lambda: build("SM", BODY, BANDS, dim=D // 2),
    "SM-T": lambda: build("SM-T", BODY, BANDS),
    "SM-T, narrow": lambda: build("SM-T", BODY, BANDS, dim=D // 2),
    "ADP": lambda: build("ADP", BODY, BANDS),
    "ADP, tables tied": tables_tied,
    "ADP-T": lambda: build("ADP-T", BODY, BANDS),
    "SM, post-norm": lambda: build("SM", POST_NORM, BANDS),
    "ADP-T, final norm": lambda: build("ADP-T", FINAL_NORM, BANDS),
}


def batch() -> tuple[Tensor, Tensor]:
    """Rows with words of every band, some without a target."""
    ids, target = torch.randperm(V).view(3, 10), torch.randperm(V).view(3, 10)
    target[0, :2] = -100
    return ids, target


def roughened(model: TransformerLM) -> TransformerLM:
    """In float64, its norms and biases no longer as they began."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def losses_of_training(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for ids, target in batches:
        loss = model(ids, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_twin_has_the_same_parameters_and_learns_the_same(name: str, chunk: int | None):
    ours = roughened(MODELS[name]())
    twin = twin_of(ours, chunk=chunk)
    assert sum(map(torch.numel, twin.parameters())) == sum(map(torch.numel, ours.parameters()))
    batches = [batch() for _ in range(10)]
    losses = losses_of_training(ours, batches)
    assert losses_of_training(twin, batches) == pytest.approx(losses, rel=1e-7)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["SM, narrow", "SM, post-norm", "ADP", "ADP-T"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_reduction_is_the_same_in_training_and_evaluation(name: str, reduction: str):
    ours = roughened(MODELS[name]())
    twin = twin_of(ours)
    ids, target = batch()
    for is_training in (True, False):
        ours.train(is_training)
        twin.train(is_training)
        with torch.set_grad_enabled(is_training):
            wanted = ours(ids, target, reduction)
            torch.testing.assert_close(twin(ids, target, reduction), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_every_rate_of_dropout_is_at_its_place(rate: str):
    """At a rate of 1 nothing is left to chance."""
    body = TransformerConfig(D, num_layers=2, num_heads=2, ffn_dim=24, **{rate: 1.0})
    ours = roughened(build("ADP-T", body, BANDS))
    ids, target = batch()
    wanted = ours(ids, target)
    assert twin_of(ours)(ids, target).item() == pytest.approx(wanted.item(), rel=1e-6)
    assert ours.eval()(ids, target).item() != pytest.approx(wanted.item(), rel=1e-3)


def test_dropout_of_tails_is_there():
    ours = roughened(tables_tied())
    ours.output.tail_dropout = (1.0, 0.0)
    ids, target = batch()
    assert twin_of(ours)(ids, target).item() == pytest.approx(ours(ids, target).item(), rel=1e-6)


def test_a_twin_can_be_evaluated_as_ours():
    ours = roughened(MODELS["ADP-T"]())
    tokens = torch.randint(V, (50,))
    found, wanted = (perplexity(model, tokens, Windows(12, context=3), eos=0) for model in (twin_of(ours), ours))
    assert found.loss == pytest.approx(wanted.loss, rel=1e-6) and found.is_likelihood


def test_copied_weights_are_not_shared():
    ours = MODELS["SM-T"]()
    twin = twin_of(ours)
    with torch.no_grad():
        ours.input.table.zero_()
    assert isinstance(twin, TwinLM) and all(parameter.any() for parameter in twin.input.parameters())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: TransformerLM(FixedInput(V, D), SparseOutput(V, D), BODY), "FixedInput and SparseOutput"),
        (lambda: TransformerLM(FixedInput(V, D), FullOutput(V, D, bias=True), BODY), "no bias"),
        (lambda: TransformerLM(FixedInput(V, D, padding_index=0), FullOutput(V, D), BODY), "without padding"),
        (lambda: TransformerLM(AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, D, tail_dropout=0.1), BODY), "tail_drop"),
        (lambda: TransformerLM(AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, D, head_projection=True), BODY), "head"),
        (lambda: build("SM", TransformerConfig(D, 1, 2, 24, positions="rotary"), BANDS), "sinusoidal"),
        (
            lambda: TransformerLM(FixedInput(V, D), FullOutput(V, D), BODY, mapping=lambda: anymax.Entmax(1.5)),
            "attend by softmax",
        ),
    ],
)
def test_a_model_that_torch_has_no_modules_for_is_refused(model, message: str):
    with pytest.raises(ValueError, match=message):
        twin_of(model())


def test_a_twin_keeps_no_cache_and_reads_no_more_than_it_has_positions_for():
    twin = twin_of(MODELS["SM"]())
    ids, target = batch()
    with pytest.raises(ValueError, match="cache must be None"):
        twin(ids, target, "mean", object())
    with pytest.raises(ValueError, match="at most 4096 positions"):
        twin.hidden(torch.zeros(1, MAX_LENGTH + 1, dtype=torch.long))
