"""The AWD-LSTM: against torch's LSTM, by what is dropped where, by its penalties, its state and its precision."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from anymax.decoding import generate
from anymax.models import AWDLSTM, AWDLSTMConfig, RecurrentState
from anymax.models.lstm import layer as lstm_layer
from anymax.models.lstm.layer import LSTMLayer
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, FixedInput, FullOutput, MixtureOutput, tie_

V, D, H, LAST = 23, 6, 10, 8
BANDS = Bands.from_sizes((7, 9, 7), dim=8, factor=2)
RATES = ("word_dropout", "input_dropout", "layer_dropout", "output_dropout", "weight_dropout")
STILL = {**dict.fromkeys(RATES, 0.0), "activation": 0.0, "temporal_activation": 0.0}


pytestmark = pytest.mark.usefixtures("one_thread")


def build(num_layers: int = 3, **options: object) -> AWDLSTM:
    """A model in which nothing is dropped and nothing penalised but what is asked for."""
    config = AWDLSTMConfig(D, H, num_layers, LAST, **STILL | options)
    return AWDLSTM(FixedInput(V, D), FullOutput(V, LAST, bias=True), config)


def regularized(**options: object) -> AWDLSTM:
    """A model with everything on, its tables tied."""
    config = AWDLSTMConfig(D, H, 3, D, **options)
    input, output = FixedInput(V, D), FullOutput(V, D, bias=True)
    tie_(input, output)
    return AWDLSTM(input, output, config)


def words(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def twins(model: AWDLSTM) -> list[nn.LSTM]:
    """Torch's own layers with the weights of the model."""
    layers = []
    for lstm in model.lstms:
        layer = nn.LSTM(lstm.weight_ih.shape[1], lstm.weight_hh.shape[1]).to(lstm.weight_hh.dtype)
        layer.load_state_dict({f"{name}_l0": value for name, value in lstm.state_dict().items()})
        layers.append(layer)
    return layers


def by_torch(model: AWDLSTM, layers: list[nn.LSTM], ids: Tensor) -> Tensor:
    hidden_NBH = model.input(ids).transpose(0, 1)
    for layer in layers:
        hidden_NBH = layer(hidden_NBH)[0]
    return hidden_NBH.transpose(0, 1)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_with_nothing_dropped_it_is_a_stack_of_torch_layers(num_layers: int) -> None:
    model, ids, target = build(num_layers), words(3, 7), words(3, 7)
    layers = twins(model)
    torch.testing.assert_close(model.hidden(ids), by_torch(model, layers, ids))
    model(ids, target).backward()
    loss = model.output(by_torch(model, layers, ids), target)
    wanted = torch.autograd.grad(loss, [p for layer in layers for p in layer.parameters()])
    torch.testing.assert_close([p.grad for p in model.lstms.parameters()], list(wanted))


def test_layers_are_wide_inside_and_narrow_at_the_end() -> None:
    widths = [tuple(lstm.weight_ih.shape) for lstm in build().lstms]
    assert widths == [(4 * H, D), (4 * H, H), (4 * LAST, H)]
    assert [tuple(lstm.weight_ih.shape) for lstm in build(1).lstms] == [(4 * LAST, D)]


def test_evaluation_drops_nothing_and_training_does_again() -> None:
    model, ids, target = regularized(), words(3, 7), words(3, 7)
    names = list(model.state_dict())
    model.eval()
    plain = by_torch(model, twins(model), ids)
    torch.testing.assert_close(model.hidden(ids), plain)
    torch.testing.assert_close(model(ids, target), model.output(plain, target))
    assert model.penalty is None
    of_layers = [f"lstms.{i}.{name}" for i in range(3) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    assert list(model.state_dict()) == names == ["input.table", *of_layers, "output.table", "output.bias"]
    model.train()
    assert not torch.equal(model.hidden(ids), model.hidden(ids))


def zeros_over_time(vectors_NBH: Tensor) -> Tensor:
    """Which numbers of each row are zero, the same at every position; (B, H)."""
    is_zero = vectors_NBH == 0
    assert (is_zero == is_zero[0]).all()
    return is_zero[0]


@pytest.mark.parametrize(("rate", "layer"), [("input_dropout", 0), ("layer_dropout", 1), ("layer_dropout", 2)])
def test_masks_of_what_enters_a_layer_are_shared_over_time_and_fresh_per_row_and_call(rate: str, layer: int) -> None:
    model, entered = build(**{rate: 0.5}), []
    model.lstms[layer].register_forward_pre_hook(lambda _, given: entered.append(given[0].detach()))
    for _ in range(2):
        model.hidden(words(20, 5))
    first, second = (zeros_over_time(vectors) for vectors in entered)
    assert 0.3 < first.double().mean() < 0.7
    assert not torch.equal(first, second) and not (first == first[0]).all()


def test_masks_of_the_output_are_shared_over_time_and_fresh_per_row_and_call() -> None:
    model = build(output_dropout=0.5)
    first, second = (zeros_over_time(model.hidden(words(20, 5)).transpose(0, 1)) for _ in range(2))
    assert 0.3 < first.double().mean() < 0.7
    assert not torch.equal(first, second) and not (first == first[0]).all()


@pytest.mark.parametrize("rate", RATES)
def test_each_dropout_acts_where_its_rate_is_and_in_training_alone(rate: str) -> None:
    model, ids = build(**{rate: 0.5}), words(4, 6)
    assert not torch.equal(model.hidden(ids), model.hidden(ids))
    without = build()
    without.load_state_dict(model.state_dict())
    assert torch.equal(model.eval().hidden(ids), without.hidden(ids))


def test_recurrent_weights_are_dropped_once_for_a_whole_sequence() -> None:
    layer, vectors = LSTMLayer(2, 1, weight_dropout=0.5), torch.randn(9, 1, 2)
    plain = nn.LSTM(2, 1)
    plain.load_state_dict({f"{name}_l0": value for name, value in layer.state_dict().items()})
    possible = []
    with torch.no_grad():
        for mask in itertools.product((0.0, 2.0), repeat=4):
            plain.weight_hh_l0.copy_(layer.weight_hh * torch.tensor(mask)[:, None])
            possible.append(plain(vectors)[0])
        drawn = [layer(vectors)[0] for _ in range(200)]
    distances = torch.stack([torch.stack([(one - other).abs().max() for other in possible]) for one in drawn])
    assert (distances.min(1).values < 1e-5).all()
    # Every mask comes, and none much more often than another.
    counts = distances.argmin(1).bincount(minlength=16)
    assert counts.min() > 0 and counts.max() < 35


def test_words_are_dropped_wherever_they_stand() -> None:
    model, ids, entered = build(word_dropout=0.5), words(6, 9), []
    model.lstms[0].register_forward_pre_hook(lambda _, given: entered.append(given[0].transpose(0, 1)))
    model.hidden(ids)
    is_zero = (entered[0] == 0).all(-1)
    kept = set(ids[~is_zero].tolist())
    assert kept and kept.isdisjoint(ids[is_zero].tolist()) and len(kept) < len(ids.unique())
    torch.testing.assert_close(entered[0][~is_zero], 2 * model.input(ids)[~is_zero])


def test_a_tied_output_scores_with_the_whole_table_though_words_are_dropped() -> None:
    model, ids, target = regularized(**STILL | {"word_dropout": 1.0}), words(2, 5), words(2, 5)
    layers, hidden_NBH = twins(model), torch.zeros(5, 2, D)
    for layer in layers:
        hidden_NBH = layer(hidden_NBH)[0]
    loss = model(ids, target)
    scores = hidden_NBH.transpose(0, 1) @ model.input.table.T + model.output.bias
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()))
    loss.backward()
    assert (model.input.table.grad != 0).any(1).all()


@pytest.mark.parametrize("kind", ["mean_square", "norm"])
def test_the_loss_has_the_size_of_the_dropped_output_and_the_change_of_the_raw_one(kind: str) -> None:
    model = build(output_dropout=0.5, activation=2.0, temporal_activation=3.0, penalty=kind)
    ids, target, read = words(4, 6), words(4, 6), []
    model.output.register_forward_pre_hook(lambda _, given: read.append(given[0].detach().double()))
    loss = model(ids, target)
    dropped, raw = read[0], by_torch(model, twins(model), ids).double()
    change = raw[:, 1:] - raw[:, :-1]
    if kind == "mean_square":
        expected = 2 * dropped.square().mean() + 3 * change.square().mean()
    else:
        expected = 2 * dropped.norm(dim=-1).mean() + 3 * change.norm(dim=-1).mean()
    torch.testing.assert_close(model.penalty.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss - model.penalty, model.output(dropped.float(), target))
    assert not model.penalty.requires_grad


def test_the_penalty_of_a_sum_is_that_of_its_mean_for_every_counted_word() -> None:
    model, ids, target = build(activation=2.0, temporal_activation=1.0), words(3, 7), words(3, 7)
    target[1, 4:] = -100
    target[2, 1:] = -100
    mean = model(ids, target)
    of_mean = model.penalty
    total = model(ids, target, "sum")
    torch.testing.assert_close(total, 12 * mean)
    torch.testing.assert_close(model.penalty, 12 * of_mean)
    parts = [model(ids[rows], target[rows], "sum") for rows in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(total, sum(parts))
    # What is only read changes nothing.
    ids[1, 5:] = (ids[1, 5:] + 1) % V
    torch.testing.assert_close(model(ids, target, "sum"), total)


def test_losses_of_single_words_are_without_penalty() -> None:
    model, ids, target = build(activation=2.0), words(3, 7), words(3, 7)
    torch.testing.assert_close(model(ids, target, "none"), model.output(model.hidden(ids), target, "none"))
    assert model.penalty is None


def test_without_words_to_count_loss_penalty_and_gradients_are_zero() -> None:
    model = regularized()
    loss = model(words(2, 5), torch.full((2, 5), -100), "sum")
    loss.backward()
    assert loss == 0 and model.penalty == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("parts", [(1,) * 7, (3, 1, 2, 1), (4, 3)])
def test_a_state_carries_on_where_the_words_before_ended(parts: tuple[int, ...]) -> None:
    model, ids, target = build(), words(2, 7), words(2, 7)
    state = model.new_cache()
    steps = [model.hidden(part, state) for part in ids.split(parts, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model.hidden(ids))
    assert {name: tuple(held.shape) for name, held in state.tensors().items()} == {
        f"{name}_{i}": (2, width) for i, width in enumerate((H, H, LAST)) for name in ("hidden", "cell")
    }
    state = model.new_cache()
    pieces = zip(ids.split(parts, 1), target.split(parts, 1), strict=True)
    losses = [model(part, wanted, "sum", state) for part, wanted in pieces]
    torch.testing.assert_close(torch.stack(losses).sum(), model(ids, target, "sum"))


def test_gradients_stop_at_the_state_and_a_saved_one_goes_on() -> None:
    model, state, ids = build(), RecurrentState(), words(3, 4)
    model.hidden(words(3, 4), state)
    saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
    assert not any(tensor.requires_grad for tensor in saved.values())
    some = RecurrentState.of_tensors({name: tensor[1:] for name, tensor in saved.items()})
    torch.testing.assert_close(model.hidden(ids[1:], some), model.hidden(ids, RecurrentState.of_tensors(saved))[1:])
    assert torch.equal(model.hidden(ids, RecurrentState.of_tensors(saved)), model.hidden(ids, state))


@pytest.mark.parametrize("output", ["full", "adaptive", "mixture"])
def test_a_gradient_reaches_every_parameter_of_any_layers(output: str) -> None:
    layers = {
        "full": (FixedInput(V, D), FullOutput(V, LAST, dim=5)),
        "adaptive": (AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, LAST)),
        "mixture": (FixedInput(V, D), MixtureOutput(V, LAST, num_experts=3, dim=D)),
    }
    model = AWDLSTM(*layers[output], AWDLSTMConfig(D, H, 2, LAST, input_dropout=0.1))
    model(words(8, 30), words(8, 30)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_copy_and_a_saved_model_are_the_same(tmp_path: Path) -> None:
    model, ids, target = regularized(), words(2, 6), words(2, 6)
    model(ids, target).backward()
    copied, other = copy.deepcopy(model).eval(), regularized().eval()
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, tmp_path / "model.safetensors")
    model.eval()
    assert torch.equal(copied.hidden(ids), model.hidden(ids))
    assert torch.equal(other(ids, target), model(ids, target))
    model.train().double()
    assert model.hidden(ids).dtype == torch.float64
    torch.testing.assert_close(model.eval().float()(ids, target), copied(ids, target))


def test_weights_may_be_given_from_outside() -> None:
    model, other, ids, target = build(), build(), words(2, 6), words(2, 6)
    loss = torch.func.functional_call(model, dict(other.named_parameters()), (ids, target))
    torch.testing.assert_close(loss, other(ids, target))
    loss.backward()
    assert all(p.grad is not None for p in other.parameters()) and all(p.grad is None for p in model.parameters())


def test_a_model_in_bfloat16_gives_what_its_weights_give_in_float32() -> None:
    model, ids, target = build(activation=1.0, temporal_activation=1.0).bfloat16(), words(2, 6), words(2, 6)
    wide = copy.deepcopy(model).float()
    hidden = model.hidden(ids)
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.float(), wide.hidden(ids), rtol=0.02, atol=0.004)
    loss = model(ids, target)
    torch.testing.assert_close(loss, wide(ids, target), rtol=0.02, atol=0)
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_autocast_is_near_and_carries_a_state(has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lstm_layer, "_cpu_has_bfloat16", lambda: has_bfloat16)
    model, state, wide = build(activation=1.0, temporal_activation=1.0), RecurrentState(), RecurrentState()
    for _ in range(2):
        ids, target = words(2, 6), words(2, 6)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(ids)
            loss = model(ids, target, cache=state)
        assert hidden.dtype == loss.dtype == torch.float32
        torch.testing.assert_close(hidden, model.hidden(ids), rtol=0.05, atol=0.01)
        torch.testing.assert_close(loss, model(ids, target, cache=wide), rtol=0.05, atol=0.05)
        loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_text_read_in_parts_is_learned_by_heart() -> None:
    config = AWDLSTMConfig(16, 24, 2, 16, **STILL | {"weight_dropout": 0.1, "activation": 0.01})
    model = AWDLSTM(FixedInput(V, 16), FullOutput(V, 16, bias=True), config)
    # Every word has two that follow it, so the words before decide.
    text = torch.tensor([[0, 1, 2, 0, 2, 1] * 6])
    ids, target = text[:, :-1], text[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(40):
        state = model.new_cache()
        for part, wanted in zip(ids.split(9, 1), target.split(9, 1), strict=True):
            optimizer.zero_grad()
            model(part, wanted, cache=state).backward()
            optimizer.step()
    assert model.eval()(ids, target).item() < 0.1
    assert torch.equal(generate(model.train(), ids[:, :8], num_tokens=12, top_k=1), text[:, :20])


@torch.no_grad()
def test_greedy_generation_takes_the_likeliest_word_of_the_whole_text() -> None:
    model, prompt = regularized(), words(3, 4)
    expected = prompt
    for _ in range(6):
        best = model.output.log_probs(by_torch(model, twins(model), expected)[:, -1]).argmax(-1)
        expected = torch.cat([expected, best[:, None]], 1)
    assert torch.equal(generate(model, prompt, num_tokens=6, top_k=1), expected)


# Torch's own, where the compiler looks at what stands after a break of its graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_model_gives_the_same_loss_penalty_and_gradients() -> None:
    model, ids, target = build(2, activation=2.0, temporal_activation=1.0), words(2, 6), words(2, 6)
    loss = model(ids, target)
    penalty, wanted = model.penalty, torch.autograd.grad(loss, list(model.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")(ids, target)
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(model.penalty, penalty)
    torch.testing.assert_close(torch.autograd.grad(compiled, list(model.parameters())), wanted)


def test_a_model_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="output must have the output_dim of the config, 8, got 6"):
        AWDLSTM(FixedInput(V, D), FullOutput(V, D), AWDLSTMConfig(D, H, 2, LAST))
    with pytest.raises(ValueError, match="input must give vectors of the config's input_dim, 6, got 10"):
        AWDLSTM(FixedInput(V, H), FullOutput(V, LAST), AWDLSTMConfig(D, H, 2, LAST)).hidden(words(1, 2))
    model, state = build(), RecurrentState()
    with pytest.raises(ValueError, match=r"ids must be \(batch, positions\)"):
        model.hidden(words(3))
    model.hidden(words(2, 3), state)
    with pytest.raises(ValueError, match="as many rows as the state before them, 2, got 3; begin with a new state"):
        model.hidden(words(3, 3), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"output_dim": -3}, "output_dim must be at least 1, got -3"),
        ({"weight_dropout": 1.5}, "weight_dropout must be between 0 and 1, got 1.5"),
        ({"word_dropout": float("nan")}, "word_dropout must be between 0 and 1, got nan"),
        ({"activation": -1.0}, "activation must be a finite number of at least 0, got -1.0"),
        ({"temporal_activation": float("inf")}, "temporal_activation must be a finite number of at least 0, got inf"),
        ({"penalty": "l1"}, r"penalty must be one of \('mean_square', 'norm'\), got 'l1'"),
    ],
    ids=str,
)
def test_a_config_refuses_what_cannot_be_built(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AWDLSTMConfig(**options)
