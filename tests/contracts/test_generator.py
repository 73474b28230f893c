"""What every model that generates promises: rows do not see each other, and stay themselves wherever they are moved."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from anymax.decoding import Generator, GNMTPenalty, Hypotheses, agreement, beam_search
from anymax.models import (
    AWDLSTM,
    LSTMLM,
    AWDLSTMConfig,
    BertConfig,
    DualSourceTransformerConfig,
    LSTMConfig,
    PostEditorConfig,
    TransformerConfig,
    TransformerDecoderConfig,
)
from anymax.models.post_editing.sharing import TRANSFORMER
from anymax.vocabulary import AdaptiveOutput, FixedInput, FullOutput, SparseOutput
from tests.each import each
from tests.models.post_editing.test_sharing import Words
from tests.models.transformer.test_model import LAYERS, VARIANTS, V, build, words

pytestmark = pytest.mark.usefixtures("one_thread")

EOS = 0
NUM_INPUTS = 16


class Member(NamedTuple):
    """A model, and the inputs that it decodes from, of which an index names some."""

    model: Generator
    inputs: Callable[[Tensor], Any]


def language_model(model: Any) -> Member:
    """Its scores far enough apart that rounding decides nothing, and its sentences of different lengths."""
    with torch.no_grad():
        for table in model.output.tables if isinstance(model.output, AdaptiveOutput) else [model.output.table]:
            table.mul_(2.0)
    prompts = words(NUM_INPUTS, 3)
    return Member(model.eval(), lambda index: prompts[index])


def lstm() -> LSTMLM:
    return LSTMLM(FixedInput(V, 16), FullOutput(V, 16), LSTMConfig(16, 16, 2))


def awd_lstm() -> AWDLSTM:
    return AWDLSTM(FixedInput(V, 16), SparseOutput(V, 16), AWDLSTMConfig(16, 20, 2, 16))


def post_editor(config: PostEditorConfig | DualSourceTransformerConfig) -> Member:
    """Rows of sentences and translations of different lengths."""
    model = config.build(Words(V)).eval()
    with torch.no_grad():
        model.output.table.mul_(2.0 if isinstance(config, DualSourceTransformerConfig) else 40.0)
    source, place = words(NUM_INPUTS, 9), torch.arange(9)
    mask = place < 5 + torch.arange(NUM_INPUTS)[:, None] % 5
    segments = (place >= 2 + torch.arange(NUM_INPUTS)[:, None] % 3).long() * mask
    parts = source, mask, segments, place.expand(NUM_INPUTS, -1)
    return Member(model, lambda index: tuple(part[index] for part in parts))


BERT = BertConfig(16, 2, 2, 24, max_positions=16)
BODY = TransformerConfig(16, 2, 2, 24, final_norm=True)
MEMBERS: dict[str, Callable[[], Member]] = {
    **{f"transformer, {layers}": (lambda layers=layers: language_model(build(layers))) for layers in LAYERS},
    **{f"transformer, {name}": (lambda name=name: language_model(build(**VARIANTS[name]))) for name in VARIANTS},
    "lstm": lambda: language_model(lstm()),
    "post-editor": lambda: post_editor(PostEditorConfig(BERT)),
    "post-editor with a Transformer's decoder": lambda: post_editor(
        PostEditorConfig(BERT, TRANSFORMER, decoder=TransformerDecoderConfig(BODY, max_positions=16))
    ),
    "dual-source": lambda: post_editor(DualSourceTransformerConfig(BODY)),
    "awd-lstm": lambda: language_model(awd_lstm()),
}
ALL = torch.arange(NUM_INPUTS)


def read(member: Member, index: Tensor, later: Tensor) -> Tensor:
    """What the output layer reads after some first words and later ones, (rows, steps)."""
    inputs = member.inputs(index)
    state = member.model.start(inputs, max_length=1 + later.shape[1])
    hidden = []
    for ids in (member.model.first_words(inputs, EOS), *later.unbind(1)):
        of_step, state = member.model.next(ids, state)
        hidden.append(of_step)
    return torch.stack(hidden, 1)


@each("name", MEMBERS)
@torch.no_grad()
def test_a_row_is_what_it_is_alone(name: str):
    member, later = MEMBERS[name](), words(NUM_INPUTS, 4)
    together = read(member, ALL, later)
    assert together.shape == (NUM_INPUTS, 5, member.model.output.model_dim)
    for i in (0, 3, 15):
        torch.testing.assert_close(read(member, ALL[i : i + 1], later[i : i + 1])[0], together[i], rtol=0, atol=1e-5)


@each("name", MEMBERS)
@torch.no_grad()
def test_rows_that_are_kept_repeated_and_moved_continue_as_themselves(name: str):
    member, later = MEMBERS[name](), words(NUM_INPUTS, 4)
    model, inputs = member.model, member.inputs(ALL)
    more = torch.tensor([3, 3, 0, 15, 7, *range(NUM_INPUTS)])
    fewer = torch.tensor([20, 1, 3])
    state = model.reorder(model.start(inputs, max_length=5), more)
    first = model.first_words(inputs, EOS)[more]
    hidden, state = model.next(first, state)
    _, state = model.next(later[more][:, 0], state)
    state = model.reorder(state, fewer)
    _, state = model.next(later[more][fewer][:, 1], state)
    last, _ = model.next(later[more][fewer][:, 2], state)
    rows = more[fewer]
    torch.testing.assert_close(hidden, read(member, more, later[more])[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(last, read(member, rows, later[rows])[:, 3], rtol=0, atol=1e-5)


def test_a_search_gives_the_same_at_every_batch_size():
    lengths: set[int] = set()
    for name, make in MEMBERS.items():
        member = make()
        searches: list[list[Hypotheses]] = []
        for size in (1, 7, 16):
            found = [
                beam_search(
                    member.model,
                    member.inputs(part),
                    eos=EOS,
                    max_length=8,
                    num_best=2,
                    length_penalty=GNMTPenalty(1.0),
                )
                for part in ALL.split(size)
            ]
            searches.append([hypotheses for part in found for hypotheses in part])
        for other in searches[1:]:
            compared = agreement(searches[0], other)
            assert compared.different == 0 and compared.ties <= 1, name
            for one, two in zip(searches[0], other, strict=True):
                if one.best.words == two.best.words:
                    assert one.best.log_prob == pytest.approx(two.best.log_prob, abs=1e-4), name
        lengths |= {len(hypotheses.best.words) for hypotheses in searches[0]}
    assert len(lengths) > 3
