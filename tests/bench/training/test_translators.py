"""Translators of torch's own modules against ours, and the batches they are compared on."""

from dataclasses import replace

import pytest
import torch

from anymax.attention import EntmaxConfig, SoftmaxConfig
from anymax.bench.harness.comparison import Comparison
from anymax.bench.harness.learner import Learner
from anymax.bench.harness.timing import Budget
from anymax.bench.training import translators
from anymax.bench.training.translator_twin import twin_of_translator
from anymax.bench.training.translators import Size
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.models import TransformerConfig
from anymax.models.translation.model import Translator
from anymax.recipes import multi30k

pytestmark = pytest.mark.usefixtures("one_thread")

BODY = TransformerConfig(16, num_layers=2, num_heads=2, ffn_dim=24, dropout=0.0, final_norm=True)
SIZE = Size("for tests", BODY, words=40, length=6, spread=0.4, max_tokens=36)
BUDGET = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)


def roughened(size: Size = SIZE) -> Translator:
    """In float64, its norms and biases no longer as they began."""
    model = translators.build(size, SoftmaxConfig()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("changes", [{}, {"norm_first": False, "final_norm": False, "activation": "gelu"}])
def test_a_twin_has_the_same_parameters_and_losses_and_learns_the_same(changes: dict[str, object]):
    body = replace(BODY, dropout=0.3, attention_dropout=0.3, activation_dropout=0.3, **changes)
    ours = roughened(replace(SIZE, body=body))
    twin = twin_of_translator(ours)
    assert sum(map(torch.numel, twin.parameters())) == sum(map(torch.numel, ours.parameters()))
    models = [ours.eval(), twin.eval()]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-2) for model in models]
    seen = []
    for batch in translators.draw_batches(SIZE):
        losses = [model(*batch) for model in models]
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
        assert twin(*batch, "sum").item() == pytest.approx(ours(*batch, "sum").item(), rel=1e-6)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen.append(losses[0].item())
    assert len(set(seen)) == len(seen)
    # Smoothing, ties and masks took part: without the smoothing the loss is another.
    ours.output.label_smoothing = 0.0
    assert ours(*batch).item() != pytest.approx(twin(*batch).item(), rel=1e-3)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_every_rate_of_dropout_is_at_its_place(rate: str):
    """At a rate of 1 nothing is left to chance."""
    ours = roughened(replace(SIZE, body=replace(BODY, **{rate: 1.0})))
    twin = twin_of_translator(ours)
    batch = translators.draw_batches(SIZE)[0]
    wanted = ours(*batch).item()
    assert twin(*batch).item() == pytest.approx(wanted, rel=1e-6)
    assert ours.eval()(*batch).item() != pytest.approx(wanted, rel=1e-3)


def test_a_translator_without_a_twin_is_refused():
    with pytest.raises(ValueError, match="must attend by softmax"):
        twin_of_translator(translators.build(SIZE, EntmaxConfig(1.5)))
    model = roughened()
    model.source_input = torch.nn.Embedding(40, 16)
    with pytest.raises(ValueError, match="one table for both inputs and the output"):
        twin_of_translator(model)


def test_the_small_translator_is_the_recipes():
    task = multi30k.softmax().task
    assert translators.SMALL.body == task.model.body and translators.SMALL.max_tokens == task.batching.max_tokens
    assert translators.SMALL.words == multi30k.TEXT.units.size


def test_batches_are_of_various_lengths_within_the_budget():
    for size in (SIZE, translators.SMALL, translators.BASE):
        batches = translators.draw_batches(size)
        widths = [batch.ids.shape[1] for batch in batches]
        assert widths == sorted(widths) and widths[0] < size.length < widths[-1]
        for batch in batches:
            assert batch.source.numel() <= size.max_tokens and batch.source.shape == batch.ids.shape
            assert int(batch.source.max()) < size.words and int(batch.source.min()) == 0
            is_word = batch.target != IGNORE_INDEX
            lengths = is_word.sum(1)
            for row, length in enumerate(lengths.tolist()):
                # Every target ends in "<eos>" and is read from "<eos>" on, one word later.
                assert is_word[row, :length].all() and batch.target[row, length - 1] == 0
                assert batch.ids[row, 0] == 0 and torch.equal(batch.ids[row, 1:length], batch.target[row, : length - 1])
            last = batch.source_mask.sum(1, keepdim=True) - 1
            assert not batch.source.gather(1, last).any() and not batch.source[~batch.source_mask].any()
        assert any(not batch.source_mask.all() for batch in batches)


def test_all_mappings_meet_torch_with_the_same_weights(monkeypatch: pytest.MonkeyPatch):
    found: list[Learner] = []

    def keep(job: str, learners: list[Learner], *_: object, **__: object) -> Comparison:
        found.extend(learners)
        return Comparison(job, ())

    monkeypatch.setattr(translators, "compare_steps", keep)
    translators.compare_mappings("job", SIZE, BUDGET, part_steps=1)
    assert [one.name for one in found] == [translators.TORCHS, *translators.MAPPINGS]
    torchs, softmax, *others = ([one() for _ in range(3)] for one in found)
    assert softmax == pytest.approx(torchs, rel=1e-5)
    assert all(losses[0] != pytest.approx(torchs[0], rel=1e-5) for losses in others)


def test_a_comparison_shows_speed_memory_and_parts():
    compared = translators.compare_mappings("job", SIZE, BUDGET, part_steps=2)
    counts = [int((batch.target != IGNORE_INDEX).sum()) for batch in translators.draw_batches(SIZE)]
    assert compared.tokens == round(sum(counts) / len(counts))
    torchs, softmax, fixed, learned = compared.entries
    heads = 2 * 3 * 2
    assert learned.num_parameters == softmax.num_parameters + heads == fixed.num_parameters + heads
    assert torchs.num_parameters == softmax.num_parameters
    for entry in compared.entries:
        assert list(entry.parts) == ["forward", "backward", "optimizer"] and min(entry.parts.values()) > 0
        # Parameters, two moments and gradients, four bytes each.
        assert entry.num_bytes > 16 * entry.num_parameters
