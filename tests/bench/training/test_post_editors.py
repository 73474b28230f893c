"""Post-editors of transformers against ours, and the batches they are compared on."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

from anymax.attention import EntmaxConfig
from anymax.bench.harness.timing import Budget
from anymax.bench.training import post_editors
from anymax.bench.training.post_editor_twin import twin_of_post_editor
from anymax.bench.training.post_editors import ATTENTIONS, FIRST, PAD, THEIRS, EditSize
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.models import BertConfig, PostEditor, PostEditorConfig, TransformerConfig, TransformerDecoderConfig
from anymax.models.post_editing.sharing import CROSS_TIED, SELF_TIED, TRANSFORMER
from anymax.recipes import ape_small

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = BertConfig(16, 2, 2, 24, dropout=0.0, attention_dropout=0.0)
SIZE = EditSize("for tests", SIZES, words=40, length=6, spread=0.4, max_tokens=60)
BUDGET = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)


def roughened(size: EditSize = SIZE) -> PostEditor:
    """In float64, its norms and biases no longer as they began."""
    model = post_editors.build(size).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_a_twin_has_the_same_parameters_and_losses_and_learns_the_same():
    ours = roughened()
    twin = twin_of_post_editor(ours)
    assert sum(map(torch.numel, twin.parameters())) == sum(map(torch.numel, ours.parameters()))
    # Who gets the smoothed share is not quite the same.
    ours.output.label_smoothing = twin.label_smoothing = 0.0
    models = [ours, twin]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-2) for model in models]
    seen = []
    for batch, attention in zip(post_editors.draw_batches(SIZE), 4 * ATTENTIONS, strict=True):
        twin.attend_by(attention)
        losses = [model(*batch) for model in models]
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen.append(losses[0].item())
    assert len(set(seen)) == len(seen)


def test_smoothing_differs_by_what_padding_and_the_target_get():
    ours, batch = roughened(), post_editors.draw_batches(SIZE)[0]
    twin = twin_of_post_editor(ours)
    assert ours.output.label_smoothing == twin.label_smoothing == 0.1 and ours.output.unsmoothed == PAD
    assert twin(*batch).item() == pytest.approx(ours(*batch).item(), rel=0.02)
    ours.output.unsmoothed = None
    assert twin(*batch).item() == pytest.approx(ours(*batch).item(), rel=1e-6)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout"])
def test_every_rate_of_dropout_is_at_its_place(rate: str):
    """At a rate of 1 nothing is left to chance."""
    ours = roughened(replace(SIZE, sizes=replace(SIZES, **{rate: 1.0})))
    ours.output.unsmoothed = None
    twin, batch = twin_of_post_editor(ours), post_editors.draw_batches(SIZE)[0]
    wanted = ours(*batch).item()
    assert twin(*batch).item() == pytest.approx(wanted, rel=1e-6)
    assert ours.eval()(*batch).item() != pytest.approx(wanted, rel=1e-3)


def test_ties_are_those_of_the_model():
    for sharing in (SELF_TIED, CROSS_TIED):
        ours = PostEditorConfig(SIZES, sharing).build(post_editors.Vocabulary(40))
        twin = twin_of_post_editor(ours)
        assert sum(map(torch.numel, twin.parameters())) == sum(map(torch.numel, ours.parameters()))
    ours = PostEditorConfig(replace(SIZES, mapping=EntmaxConfig(1.5))).build(post_editors.Vocabulary(40))
    with pytest.raises(ValueError, match="must attend by softmax to have a twin"):
        twin_of_post_editor(ours)
    other = TransformerDecoderConfig(TransformerConfig(16, 1, 2, 24))
    with pytest.raises(ValueError, match="must have BERT's layers in its decoder to have a twin"):
        twin_of_post_editor(PostEditorConfig(SIZES, TRANSFORMER, decoder=other).build(post_editors.Vocabulary(40)))


def test_the_small_post_editor_is_the_recipes():
    task = ape_small.self_tied().task
    assert post_editors.SMALL.sizes == task.model.encoder and task.model.sharing == PostEditorConfig().sharing
    assert post_editors.SMALL.max_tokens == task.batching.max_tokens
    assert post_editors.SMALL.words == task.data.pieces.size


def test_batches_are_triplets_of_various_lengths_within_the_budget():
    for size in (SIZE, post_editors.TINY, post_editors.SMALL, post_editors.BASE):
        batches = post_editors.draw_batches(size)
        widths = [batch.source.shape[1] for batch in batches]
        assert widths == sorted(widths) and widths[0] < 2 * size.length < widths[-1]
        for source, mask, segments, positions, ids, target in batches:
            assert source.numel() <= size.max_tokens and int(source[mask].min()) > PAD and not source[~mask].any()
            assert int(source.max()) < size.words and not segments[~mask].any()
            for row, is_word in enumerate(mask):
                sides = [int(((segments[row] == side) & is_word).sum()) for side in (0, 1)]
                assert min(sides) > 0 and positions[row, is_word].tolist() == [*range(sides[0]), *range(sides[1])]
                length = int((target[row] != IGNORE_INDEX).sum())
                assert ids[row, 0] == FIRST and ids[row, 1:length].equal(target[row, : length - 1])
        assert any(not batch.source_mask.all() for batch in batches)


def test_a_comparison_shows_the_attention_that_was_fastest():
    compared = post_editors.compare_with_transformers("job", SIZE, BUDGET, part_steps=2)
    theirs, ours = compared.entries
    (sweep,) = compared.sweeps
    assert sweep.function == THEIRS and theirs.setting == sweep.chosen
    assert list(sweep.tried) == ["attn_implementation='sdpa'", "attn_implementation='eager'"]
    assert sweep.tried[sweep.chosen] == min(sweep.tried.values())
    assert theirs.num_parameters == ours.num_parameters
    counts = [int((batch.target != IGNORE_INDEX).sum()) for batch in post_editors.draw_batches(SIZE)]
    assert compared.tokens == round(sum(counts) / len(counts))
    for entry in compared.entries:
        # Parameters, two moments and gradients, four bytes each.
        assert entry.num_bytes > 16 * entry.num_parameters and len(entry.parts) == 3
