"""The dual-source Transformer: its blocks written down, sentence and translation apart, decoding, and its size."""

import pytest
import torch
from torch import Tensor

from anymax.models import (
    DualSourceTransformer,
    DualSourceTransformerConfig,
    TransformerBlock,
    TransformerConfig,
    fsdp_groups,
)
from anymax.models.post_editing.edit_model import Inputs
from tests.each import each
from tests.models.post_editing.test_sharing import WORDS, Words

pytestmark = pytest.mark.usefixtures("one_thread")
BODY = TransformerConfig(16, 2, 2, 24, final_norm=True)


def build() -> DualSourceTransformer:
    torch.manual_seed(0)
    return DualSourceTransformerConfig(BODY, max_positions=12).build(WORDS).eval()


def inputs() -> Inputs:
    """Two rows, of 4 and 5 and of 2 and 3 pieces."""
    source = torch.randint(6, 30, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    segments = (torch.arange(9) >= torch.tensor([[4], [2]])).long() * mask
    return source, mask, segments, torch.zeros_like(source)


@each("norm_first", [True, False])
@torch.no_grad()
def test_a_block_attends_to_itself_then_to_both_encoders(norm_first: bool):
    config = TransformerConfig(16, 1, 2, 24, norm_first=norm_first)
    block = TransformerBlock(config, memory_dim=16, second_memory_dim=12).eval()
    hidden, first, second = torch.randn(2, 5, 16), torch.randn(2, 3, 16), torch.randn(2, 4, 12)
    first_mask, second_mask = torch.rand(2, 3) < 0.8, torch.rand(2, 4) < 0.8
    layers = (
        (block.attention_norm, lambda x: block.attention(x, is_causal=True)),
        (block.cross_attention_norm, lambda x: block.cross_attention(x, first, mask=first_mask[:, None, None])),
        (block.second_attention_norm, lambda x: block.second_attention(x, second, mask=second_mask[:, None, None])),
        (block.feed_forward_norm, block.feed_forward),
    )
    expected = hidden
    for norm, layer in layers:
        expected = expected + layer(norm(expected)) if norm_first else norm(expected + layer(expected))
    given = {"memory": first, "memory_mask": first_mask, "second_memory": second, "second_mask": second_mask}
    torch.testing.assert_close(block(hidden, is_causal=True, **given), expected)
    caches = {"memory_cache": block.precompute(first, first_mask)}
    caches |= {"second_cache": block.precompute_second(second, second_mask)}
    torch.testing.assert_close(block(hidden, is_causal=True, **caches), expected)


@torch.no_grad()
def test_each_encoder_reads_its_own_part_from_position_zero():
    model, (source, mask, segments, positions) = build(), inputs()
    found = model.remember((source, mask, segments, positions))
    for row, (sentence, whole) in enumerate(((4, 9), (2, 5))):
        for part, encoder, (memory, stands) in (
            (source[row : row + 1, :sentence], model.source_encoder, found[:2]),
            (source[row : row + 1, sentence:whole], model.translation_encoder, found[2:]),
        ):
            length = part.shape[1]
            assert stands[row].tolist() == [place < length for place in range(stands.shape[1])]
            torch.testing.assert_close(memory[row, :length], encoder(model.embed_target(part))[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_decoding_step_by_step_gives_what_teacher_forcing_does_in_any_order_of_rows():
    model, given, ids = build(), inputs(), torch.randint(6, 30, (2, 4))
    expected, state = model.hidden(ids, *model.remember(given)), model.start(given, max_length=4)
    assert model.first_words(given, eos=3).tolist() == [WORDS.first] * 2
    order = torch.arange(2)
    for step in range(4):
        hidden, state = model.next(ids[order, step], state)
        torch.testing.assert_close(hidden, expected[order, step], rtol=0, atol=1e-5)
        state, order = model.reorder(state, torch.tensor([1, 0])), order.flip(0)


def test_both_texts_change_the_loss_and_every_parameter_learns():
    model, (source, mask, segments, positions), ids = build(), inputs(), torch.randint(6, 30, (2, 4))

    def loss(source: Tensor) -> Tensor:
        return model(source, mask, segments, positions, ids, ids.roll(-1, 1))

    for changed in (0, 6):
        other = source.clone()
        other[0, changed] = 6 + (other[0, changed] - 5) % 24
        assert not loss(other).isclose(loss(source))
    loss(source).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(map(len, fsdp_groups(model))) == len(model.in_order())


def test_its_size_with_multilingual_pieces():
    with torch.device("meta"):
        model = DualSourceTransformerConfig().build(Words(119_547))
    dim, inner, words = 512, 2048, 119_547
    attention, norm = 4 * (dim * dim + dim), 2 * dim
    feed_forward = 2 * dim * inner + dim + inner
    encoder = 6 * (attention + feed_forward + 2 * norm) + norm
    decoder = 6 * (3 * attention + feed_forward + 4 * norm) + norm
    size = sum(parameter.numel() for parameter in model.parameters())
    assert size == words * dim + words + 2 * encoder + decoder == 130_693_371


def test_what_does_not_fit_is_refused():
    model, (source, mask, segments, positions) = build(), inputs()
    long = torch.full((1, 13), 7)
    with pytest.raises(ValueError, match="source must have at most the model's max_positions, 12, got a sentence of 1"):
        model.remember((long, None, long * 0, long))
    with pytest.raises(ValueError, match="ids must have at most the model's max_positions, 12, got a sentence of 13"):
        model.hidden(long, *model.remember((source[:1], mask[:1], segments[:1], positions[:1])))
    with pytest.raises(ValueError, match="second_memory_dim must be None for a block without cross-attention"):
        TransformerBlock(BODY, second_memory_dim=16)
    block, hidden = TransformerBlock(BODY, memory_dim=16), torch.zeros(1, 2, 16)
    with pytest.raises(ValueError, match=r"second_memory must be left out .*build the block with second_memory_dim"):
        block(hidden, memory=hidden, second_memory=hidden)
    with pytest.raises(ValueError, match="second_memory must be left out"):
        block.precompute_second(hidden)
