"""Bert by itself: what its inputs do, what is refused, which parameters learn, and how many there are."""

import pytest
import torch

import anymax
from anymax.attention import EntmaxConfig, LearnedEntmaxConfig
from anymax.models import Bert, BertConfig, learned_alphas
from tests.each import each

CONFIG = BertConfig(16, 2, 2, 24, max_positions=9, dropout=0.0, attention_dropout=0.0, initial_std=0.3)
IDS = torch.tensor([[2, 5, 6, 3, 7], [2, 8, 3, 0, 0]])
MASK = IDS != 0
TARGET = torch.where(torch.tensor([[0, 1, 0, 0, 1], [0, 1, 0, 0, 0]]) > 0, IDS, -100)


def test_padding_and_other_rows_change_nothing():
    model = CONFIG.build(10)
    together, alone = model.encode(IDS, MASK), model.encode(IDS[1:, :3])
    torch.testing.assert_close(together[1:, :3], alone)
    other = model.encode(IDS.masked_fill(~MASK, 9), MASK)
    torch.testing.assert_close(other[MASK], together[MASK])


def test_positions_that_restart_are_those_of_two_sequences_at_the_same_places():
    model = CONFIG.build(10)
    restarted = torch.tensor([[0, 1, 0, 1, 2]])
    plain = model.embed(IDS[:1, 2:])
    torch.testing.assert_close(model.embed(IDS[:1], positions=restarted)[:, 2:], plain)
    # More tokens than positions are fine where they share positions.
    assert model.encode(IDS[:1].repeat(1, 3), positions=restarted.repeat(1, 3)).shape == (1, 15, 16)


def test_the_loss_is_that_of_hidden_tokens_alone_whatever_else_is_there():
    model = CONFIG.build(10)
    log_probs = model.head.log_probs(model.encode(IDS, MASK))
    expected = [-log_probs[row, place, IDS[row, place]] for row, place in ((0, 1), (0, 4), (1, 1))]
    losses = model(IDS, MASK, None, TARGET, "none")
    torch.testing.assert_close(losses, torch.stack(expected))
    torch.testing.assert_close(model(IDS, MASK, None, TARGET, "sum"), losses.sum())
    torch.testing.assert_close(model(IDS, MASK, None, TARGET), losses.mean())


@each("target", [TARGET, torch.full_like(IDS, -100)])
def test_every_parameter_gets_a_gradient_also_where_nothing_was_hidden(target):
    model = BertConfig(16, 2, 2, 24, mapping=LearnedEntmaxConfig()).build(10)
    loss = model(IDS, MASK, torch.zeros_like(IDS), target, "sum")
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients.values())
    is_zero = {name for name, gradient in gradients.items() if not bool(gradient.any())}
    assert (is_zero == gradients.keys()) if bool((target == -100).all()) else (not any("alpha" in n for n in is_zero))


def test_a_head_per_alpha_is_named_and_any_mapping_can_be_given():
    model = BertConfig(16, 2, 2, 24, mapping=LearnedEntmaxConfig(1.5)).build(10)
    assert learned_alphas(model) == {
        f"alpha/encoder/layer_{i}/head_{j}": pytest.approx(1.5) for i in range(2) for j in range(2)
    }
    torch.manual_seed(0)
    fixed = BertConfig(16, 2, 2, 24, mapping=EntmaxConfig(2.0)).build(10).eval()
    torch.manual_seed(0)
    given = Bert(BertConfig(16, 2, 2, 24), 10, mapping=lambda: anymax.sparsemax).eval()
    torch.testing.assert_close(given.encode(IDS, MASK), fixed.encode(IDS, MASK))
    with anymax.attention.capture(given) as weights:
        given.encode(IDS, MASK)
    assert len(weights["encoder"]) == 2 and bool((weights["encoder"][0] == 0).any())


def test_a_model_of_base_size_has_as_many_parameters_as_published():
    with torch.device("meta"):
        encoder = BertConfig().build(119_547, head=False)
        whole = BertConfig().build(119_547)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (encoder, whole)]
    # What the head adds to the tied table.
    assert sizes == [177_262_848, 177_262_848 + 768 * 768 + 3 * 768 + 119_547]


@each(
    ("make", "match"),
    [
        (
            lambda m: m.encode(torch.ones(1, 10, dtype=torch.int64)),
            "at most the model's max_positions, 9, got .* 10",
        ),
        (lambda m: m.encode(IDS[0]), r"ids must be \(batch, positions\) with at least one position, got \(5,\)"),
        (lambda m: m.encode(IDS + 5), "ids must be from 0 to 9, as the vocabulary has 10 words, got 10"),
        (lambda m: m.encode(IDS, MASK[:, :3]), r"mask must have the shape of ids, \(2, 5\), got \(2, 3\)"),
        (lambda m: m.encode(IDS, None, IDS), "segments must be from 0 to 1, as the model has 2 segments, got 2"),
        (lambda m: m.encode(IDS, None, IDS[:1]), r"segments must have the shape of ids, \(2, 5\), got \(1, 5\)"),
        (
            lambda m: m.encode(IDS, positions=IDS + 3),
            "positions must be from 0 to 8, as the model has 9",
        ),
        (lambda m: m(IDS, MASK, None, TARGET[:1]), r"target must have the shape of ids, \(2, 5\), got \(1, 5\)"),
    ],
)
def test_inputs_that_are_none_are_refused(make, match: str):
    with pytest.raises(ValueError, match=match):
        make(CONFIG.build(10))


def test_configs_of_no_model_are_refused():
    for make, match in (
        (lambda: BertConfig(activation="swiglu"), "activation must be 'gelu' or 'relu', got 'swiglu'"),
        (lambda: BertConfig(max_positions=0), "max_positions must be at least 1, got 0"),
        (lambda: BertConfig(num_heads=7), "model_dim must be a multiple of num_heads, got 768 and 7"),
        (lambda: BertConfig(initial_std=0.0), "initial_std must be above 0 and finite, got 0.0"),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_weights_are_drawn_as_bert_draws_them_and_dropout_acts_in_training_alone():
    model = BertConfig(64, 2, 2, 256).build(500)
    for weight in (model.words.table, model.encoder.blocks[1].feed_forward.inner.weight, model.head.dense.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.encoder.blocks[0].attention.query.bias.any()
    first, second = model.encode(IDS, MASK), model.encode(IDS, MASK)
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model.encode(IDS, MASK), model.encode(IDS, MASK))
