"""The post-editor: the same hidden states as transformers with the same weights, and decoding as teacher forcing."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

from anymax.bench.training.post_editor_twin import twin_of_post_editor
from anymax.models.post_editing.sharing import PRESETS
from tests.each import each
from tests.models.post_editing.test_sharing import SMALL, WORDS, build

pytestmark = pytest.mark.usefixtures("one_thread")


@each("name", PRESETS)
@torch.no_grad()
def test_the_last_hidden_state_is_that_of_transformers(name: str):
    model = build(PRESETS[name]).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    found, generator = twin_of_post_editor(model).model, torch.Generator().manual_seed(1)
    source, ids = torch.randint(0, 30, (3, 9), generator=generator), torch.randint(0, 30, (3, 7), generator=generator)
    mask = torch.arange(9) < torch.tensor([[9], [7], [5]])
    segments = ((torch.arange(9) >= 4) & mask).long()
    positions = torch.tensor([*range(4), *range(5)]).expand(3, 9)
    memory = found.encoder(source, attention_mask=mask.long(), token_type_ids=segments, position_ids=positions)
    decoded = found(
        encoder_outputs=memory,
        attention_mask=mask.long(),
        decoder_input_ids=ids,
        decoder_token_type_ids=torch.ones_like(ids),
        output_hidden_states=True,
    )
    ours = model.encode(source, mask, segments, positions)
    torch.testing.assert_close(ours[mask], memory.last_hidden_state[mask], rtol=0, atol=2e-5)
    expected = decoded.decoder_hidden_states[-1]
    torch.testing.assert_close(model.hidden(ids, ours, mask), expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_decoding_step_by_step_gives_what_teacher_forcing_does():
    model = build(PRESETS["self_tied"]).eval()
    source, segments = torch.randint(0, 30, (3, 6)), torch.tensor([0, 0, 1, 1, 1, 1]).expand(3, 6)
    positions, mask = torch.tensor([0, 1, 0, 1, 2, 3]).expand(3, 6), torch.arange(6) < torch.tensor([[6], [4], [3]])
    inputs, ids = (source, mask, segments, positions), torch.randint(0, 30, (3, 4))
    ids[:, 0] = model.first_words(inputs, eos=3)
    assert ids[:, 0].tolist() == [WORDS.first] * 3
    expected, state = model.hidden(ids, model.encode(*inputs), mask), model.start(inputs, max_length=4)
    for step, words in enumerate(ids.unbind(1)):
        hidden, state = model.next(words, state)
        torch.testing.assert_close(hidden, expected[:, step], rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused():
    model, ids = build(PRESETS["bert"]), torch.zeros(1, 13, dtype=torch.long)
    with pytest.raises(ValueError, match="max_length must be at most the model's max_positions, 12, got 13"):
        model.start((ids[:, :2], None, ids[:, :2], ids[:, :2]), max_length=13)
    with pytest.raises(ValueError, match="ids must have at most the model's max_positions, 12, got a sentence of 13"):
        model.hidden(ids, torch.zeros(1, 2, SMALL.model_dim))
    with pytest.raises(ValueError, match="positions must be from 0 to 11"):
        model.encode(ids, None, ids, ids + 12)
