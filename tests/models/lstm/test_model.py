"""The LSTM language model: its size, what it carries from batch to batch, decoding, learning, generation."""

import copy

import pytest
import torch
from torch import Tensor

from anymax.decoding import generate
from anymax.models import LSTMLM, LSTMConfig, RecurrentState
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, FixedInput, FullOutput

V, D, H = 23, 6, 10
BANDS = Bands.from_sizes((7, 9, 7), dim=8, factor=2)


pytestmark = pytest.mark.usefixtures("one_thread")


def build(num_layers: int = 2, dropout: float = 0.0) -> LSTMLM:
    return LSTMLM(AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, H), LSTMConfig(D, H, num_layers, dropout=dropout))


def words(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def written_out(model: LSTMLM, ids: Tensor) -> Tensor:
    """The equations of an LSTM, one position at a time."""
    below = model.input(ids)
    for layer in range(model.config.num_layers):
        into, within, bias, more = (
            getattr(model.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden, cell, outs = torch.zeros(len(ids), H), torch.zeros(len(ids), H), []
        for vector in below.unbind(1):
            enter, forget, new, leave = (vector @ into.T + hidden @ within.T + bias + more).chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            outs.append(hidden)
        below = torch.stack(outs, 1)
    return below


def test_the_model_is_the_equations_of_an_lstm() -> None:
    model, ids = build(), words(3, 7)
    torch.testing.assert_close(model.hidden(ids), written_out(model, ids), rtol=1e-4, atol=1e-5)


def test_the_whole_model_has_the_size_of_its_formula() -> None:
    with torch.device("meta"):
        model = LSTMLM(FixedInput(44_371, 256), FullOutput(44_371, 512), LSTMConfig())
    expected = 44_371 * (256 + 512) + 4 * 512 * (256 + 512 + 2)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_the_loss_is_that_of_the_output_for_what_follows() -> None:
    model, ids, target = build(), words(2, 6), words(2, 6)
    for reduction in ("mean", "sum", "none"):
        torch.testing.assert_close(
            model(ids, target, reduction), model.output(written_out(model, ids), target, reduction)
        )


@pytest.mark.parametrize("parts", [(1,) * 7, (3, 1, 2, 1), (4, 3)])
def test_a_state_carries_on_where_the_words_before_ended(parts: tuple[int, ...]) -> None:
    model, ids, target = build(), words(2, 7), words(2, 7)
    state = model.new_cache()
    steps = [model.hidden(part, state) for part in ids.split(parts, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model.hidden(ids))
    state = model.new_cache()
    pieces = zip(ids.split(parts, 1), target.split(parts, 1), strict=True)
    losses = [model(part, wanted, "sum", state) for part, wanted in pieces]
    torch.testing.assert_close(torch.stack(losses).sum(), model(ids, target, "sum"))


def test_gradients_stop_at_the_state() -> None:
    model, state = build(), RecurrentState()
    first, second = words(2, 4), words(2, 4)
    model.hidden(first, state)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())
    model.hidden(second, state).sum().backward()
    with_state = model.input.tables[0].grad.clone()
    model.zero_grad()
    start = tuple(tensor.detach() for tensor in model.lstm(model.input(first).transpose(0, 1))[1])
    model.lstm(model.input(second).transpose(0, 1), start)[0].sum().backward()
    torch.testing.assert_close(with_state, model.input.tables[0].grad)


def test_a_saved_state_goes_on_as_the_one_it_was_saved_from() -> None:
    model, state = build(), RecurrentState()
    assert state.tensors() == {}
    model.hidden(words(3, 4), state)
    saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
    assert {name: tuple(tensor.shape) for name, tensor in saved.items()} == dict.fromkeys(
        ("hidden_0", "cell_0", "hidden_1", "cell_1"), (3, H)
    )
    ids = words(3, 3)
    # Rows can be shared out among others who go on with them.
    some = RecurrentState.of_tensors({name: tensor[1:] for name, tensor in saved.items()})
    torch.testing.assert_close(model.hidden(ids[1:], some), model.hidden(ids, RecurrentState.of_tensors(saved))[1:])
    assert torch.equal(model.hidden(ids, RecurrentState.of_tensors(saved)), model.hidden(ids, state))
    assert torch.equal(model.hidden(ids, RecurrentState.of_tensors({})), model.hidden(ids))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_dropout_acts_in_training_alone(num_layers: int) -> None:
    model, ids = build(num_layers, dropout=0.5), words(2, 6)
    assert not torch.equal(model.hidden(ids), model.hidden(ids))
    # What leaves the last layer is dropped too.
    assert (model.hidden(ids) == 0).any()
    without = build(num_layers)
    without.load_state_dict(model.state_dict())
    assert torch.equal(model.eval().hidden(ids), without.hidden(ids))


def test_a_gradient_reaches_every_parameter() -> None:
    model = build()
    model(words(4, 30), words(4, 30)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_text_read_in_parts_is_learned_by_heart() -> None:
    model = LSTMLM(FixedInput(V, 16), FullOutput(V, 32), LSTMConfig(16, 32))
    # Every word has two that follow it, so the words before decide.
    text = torch.tensor([[0, 1, 2, 0, 2, 1] * 6])
    ids, target = text[:, :-1], text[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    first = model(ids, target).item()
    for _ in range(60):
        state = model.new_cache()
        for part, wanted in zip(ids.split(5, 1), target.split(5, 1), strict=True):
            optimizer.zero_grad()
            loss = model(part, wanted, cache=state)
            loss.backward()
            optimizer.step()
    assert first > 1 and loss.item() < 0.02
    assert torch.equal(generate(model, ids[:, :8], num_tokens=12, top_k=1), text[:, :20])


@torch.no_grad()
def test_greedy_generation_takes_the_likeliest_word_of_the_whole_text() -> None:
    model, prompt = build(dropout=0.5), words(3, 4)
    expected = prompt
    for _ in range(6):
        best = model.output.log_probs(written_out(model, expected)[:, -1]).argmax(-1)
        expected = torch.cat([expected, best[:, None]], 1)
    assert torch.equal(generate(model, prompt, num_tokens=6, top_k=1), expected)


def test_autocast_is_near_and_carries_a_state() -> None:
    model, state, wide = build(), RecurrentState(), RecurrentState()
    for _ in range(2):
        ids, target = words(2, 6), words(2, 6)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids, target, cache=state)
        torch.testing.assert_close(loss, model(ids, target, cache=wide), rtol=0.05, atol=0.05)
        loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_model_in_bfloat16_gives_what_its_weights_give_in_float32() -> None:
    model = LSTMLM(FixedInput(V, D), FullOutput(V, H), LSTMConfig(D, H, 2)).bfloat16()
    wide, ids, target = copy.deepcopy(model).float(), words(2, 6), words(2, 6)
    # Exactly where it is computed in float32, as on most processors, else to the precision of bfloat16.
    tolerance = 0.02 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 0.0
    torch.testing.assert_close(model.hidden(ids), wide.hidden(ids).bfloat16(), rtol=tolerance, atol=tolerance / 10)
    loss = model(ids, target)
    torch.testing.assert_close(loss, wide(ids, target), rtol=0.02, atol=0)
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_autocast_after_a_table_is_float32_where_torch_has_no_less() -> None:
    model, ids = LSTMLM(FixedInput(V, D), FullOutput(V, H), LSTMConfig(D, H, 2)), words(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(ids)
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden, model.hidden(ids), rtol=0.05, atol=0.01)


def test_a_gradient_comes_in_evaluation_too() -> None:
    model, ids, target = build(), words(2, 6), words(2, 6)
    model(ids, target).backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.eval()(ids, target).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted)


def test_a_model_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="output must have the hidden_dim of the config, 10, got 6"):
        LSTMLM(FixedInput(V, D), FullOutput(V, D), LSTMConfig(D, H))
    with pytest.raises(ValueError, match="input must give vectors of the config's input_dim, 6, got 10"):
        LSTMLM(FixedInput(V, H), FullOutput(V, H), LSTMConfig(D, H)).hidden(words(1, 2))
    model, state = build(), RecurrentState()
    with pytest.raises(ValueError, match=r"ids must be \(batch, positions\)"):
        model.hidden(words(3))
    model.hidden(words(2, 3), state)
    with pytest.raises(ValueError, match="as many rows as the state before them, 2, got 3; begin with a new state"):
        model.hidden(words(3, 3), state)


@pytest.mark.parametrize(
    "shapes",
    [
        {"hidden_0": (2, 3)},
        {"hidden_0": (2, 3), "cell_1": (2, 3)},
        {"hidden_0": (2, 3), "cell_0": (2, 4)},
        {"hidden_0": (1, 2, 3), "cell_0": (1, 2, 3)},
        {"hidden_0": (2, 3), "cell_0": (2, 3), "hidden_1": (3, 3), "cell_1": (3, 3)},
    ],
    ids=str,
)
def test_a_state_refuses_tensors_it_did_not_give(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"tensors must be a hidden and a cell for each layer, .* got"):
        RecurrentState.of_tensors({name: torch.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"input_dim": -3}, "input_dim must be at least 1, got -3"),
        ({"dropout": 1.5}, "dropout must be between 0 and 1, got 1.5"),
    ],
    ids=str,
)
def test_a_config_refuses_what_cannot_be_built(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LSTMConfig(**options)
