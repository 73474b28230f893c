"""What a decoder takes from its encoder: the published numbers of parameters, and what stays shared."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anymax.attention import EntmaxConfig, LearnedEntmaxConfig, SoftpickConfig
from anymax.mappings import LearnedEntmax, Softpick
from anymax.models import (
    Bert,
    BertConfig,
    DualSourceTransformerConfig,
    PostEditor,
    PostEditorConfig,
    Sharing,
    TransformerConfig,
    TransformerDecoderConfig,
    fsdp_groups,
)
from anymax.models.post_editing.sharing import (
    BERT,
    CROSS_COPIED,
    CROSS_TIED,
    FEED_FORWARD_TIED,
    PRESETS,
    SELF_TIED,
    TRANSFORMER,
)
from anymax.training.checkpoint.tensors import load_model, model_tensors, whole_copy
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


class Words(NamedTuple):
    """What a model must know of word pieces."""

    size: int
    pad: int = 0
    first: int = 5

    def __len__(self) -> int:
        return self.size


WORDS = Words(30)
SMALL = BertConfig(16, 2, 2, 24, max_positions=12)


def build(sharing: Sharing, seed: int = 0, **changes: object) -> PostEditor:
    torch.manual_seed(seed)
    return PostEditorConfig(SMALL, sharing, **changes).build(WORDS)


def num_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_with_multilingual_bert_are_the_published_ones():
    published = {TRANSFORMER: 290_805_243, BERT: 290_805_243, CROSS_COPIED: 290_805_243}
    published |= {SELF_TIED: 262_456_827, CROSS_TIED: 234_108_411, FEED_FORWARD_TIED: 177_439_227}
    assert list(published) == list(PRESETS.values())
    for sharing, size in published.items():
        with torch.device("meta"):
            model = PostEditorConfig(BertConfig(), sharing).build(Words(119_547))
        assert num_parameters(model) == size
        assert num_parameters(model.encoder) == 177_262_848


def test_the_published_transformer_decoder_is_opennmts():
    decoder = TransformerDecoderConfig()
    body = decoder.body
    assert (body.norm_first, body.final_norm, body.norm_eps, body.activation) == (True, True, 1e-6, "relu")
    assert (body.positions, body.dropout, body.attention_dropout, body.activation_dropout) == (
        "sinusoidal",
        *[0.1] * 3,
    )
    with torch.device("meta"):
        model = PostEditorConfig(BertConfig(), TRANSFORMER, decoder=decoder).build(Words(119_547))
    attention, feed_forward, norm = 4 * (768 * 768 + 768), 2 * 768 * 3072 + 3072 + 768, 2 * 768
    layers = 12 * (2 * attention + feed_forward + 3 * norm) + norm
    # The norm behind its layers has as many as the one before BERT's, and tables are shared.
    assert num_parameters(model) == 177_262_848 + layers + 119_547 == 290_805_243
    assert model.output.table is model.target_input.words.table is model.encoder.words.table


@torch.no_grad()
def test_a_transformer_decoder_reads_scaled_words_and_sinusoids_through_pre_norm_layers():
    body = TransformerConfig(16, 1, 2, 24, final_norm=True, norm_eps=1e-6)
    model = build(TRANSFORMER, decoder=TransformerDecoderConfig(body, max_positions=12))
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    bert = changed_bert()
    model.begin_from(bert)
    assert model.target_input.words.table.equal(bert.words.table)
    model, ids, memory = model.eval(), torch.randint(0, 30, (3, 7)), torch.randn(3, 4, 16)
    (block,), norm = model.decoder.blocks, model.decoder.final_norm
    rates = 10_000 ** (-torch.arange(8) / 7)
    angles = torch.arange(7)[:, None] * rates
    hidden = 4 * bert.words.table[ids] + torch.cat([angles.sin(), angles.cos()], -1)
    hidden = hidden + block.attention(block.attention_norm(hidden), is_causal=True)
    hidden = hidden + block.cross_attention(block.cross_attention_norm(hidden), memory)
    inner = block.feed_forward.inner(block.feed_forward_norm(hidden)).relu()
    expected = norm(hidden + block.feed_forward.outer(inner))
    torch.testing.assert_close(model.hidden(ids, memory), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="ids must have at most the model's max_positions, 12, got a sentence of 13"):
        model.hidden(torch.zeros(1, 13, dtype=torch.long), memory[:1])


def test_a_transformer_decoder_shares_the_table_of_words_alone():
    decoder = TransformerDecoderConfig(TransformerConfig(16, 2, 2, 24))
    for sharing, part in ((SELF_TIED, "self_attention"), (replace(TRANSFORMER, norms="copied"), "norms")):
        with pytest.raises(ValueError, match=f"{part} must be random with a TransformerDecoderConfig"):
            PostEditorConfig(SMALL, sharing, decoder=decoder)
    narrow = TransformerDecoderConfig(TransformerConfig(8, 2, 2, 24))
    with pytest.raises(ValueError, match="embeddings must have the same model_dim in decoder and encoder to be tied"):
        PostEditorConfig(SMALL, TRANSFORMER, decoder=narrow)
    model = build(replace(TRANSFORMER, embeddings="random"), decoder=narrow)
    assert loss(model).isfinite() and model.target_input.words.table is not model.encoder.words.table
    loss(model).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    groups = fsdp_groups(build(TRANSFORMER, decoder=decoder))
    ids = [{id(parameter) for module in group for parameter in module.parameters()} for group in groups]
    assert all(not first & second for i, first in enumerate(ids) for second in ids[:i])


# Which layers of the decoder have the values of which of the encoder, and which of those are the same parameters.
LAYERS = {
    "self_attention": ("attention.query", "attention.output"),
    "cross_attention": ("cross_attention.key", "cross_attention.value"),
    "feed_forward": ("feed_forward.inner", "feed_forward.outer"),
    "norms": ("attention_norm", "cross_attention_norm", "feed_forward_norm"),
}


def changed_bert(config: BertConfig = SMALL) -> Bert:
    torch.manual_seed(9)
    bert = config.build(len(WORDS), head=True, pooler=True)
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.normal_()
    return bert


@each("name", PRESETS)
def test_parts_are_random_copied_or_tied_as_the_row_says_and_stay_so(
    name: str, tmp_path_factory: pytest.TempPathFactory
):
    sharing, bert = PRESETS[name], changed_bert()
    model = build(sharing)
    model.begin_from(bert)
    encoder = dict(model.encoder.named_parameters())
    for parameter_name, parameter in encoder.items():
        assert parameter.equal(dict(bert.named_parameters())[parameter_name])
    assert model.output.table is model.target_input.words.table is model.encoder.words.table
    check_shares(model, sharing)
    saved = tmp_path_factory.mktemp("saved") / "model.safetensors"
    save_file({name: tensor.detach() for name, tensor in model_tensors(model).items()}, saved)
    again = build(sharing, seed=1)
    load_model(again, load_file(saved), saved)
    check_shares(again, sharing)
    copied = whole_copy(model, lambda: build(sharing, seed=2))
    check_shares(copied, sharing)
    assert same_outputs(model, again) and same_outputs(model, copied)
    # A step changes both ends of a tie, and what was only copied goes its own way.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model).backward()
    optimizer.step()
    for part, of_layers in pairs(model).items():
        assert all((own is theirs) == (getattr(sharing, part) == "tied") for own, theirs in of_layers), part
        assert all(own.equal(theirs) == (own is theirs) for own, theirs in of_layers), part


def pairs(model: PostEditor) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Weights of the decoder by part, and of the encoder those that they are shared with."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for of_encoder, of_decoder in zip(model.encoder.encoder.blocks, model.decoder.blocks, strict=True):
        for part, layers in LAYERS.items():
            for layer in layers:
                theirs = of_encoder.get_submodule(layer.replace("cross_", "")).weight
                found.setdefault(part, []).append((of_decoder.get_submodule(layer).weight, theirs))
    return found


def check_shares(model: PostEditor, sharing: Sharing) -> None:
    for part, of_layers in pairs(model).items():
        way = getattr(sharing, part)
        for own, theirs in of_layers:
            assert (own is theirs) == (way == "tied"), part
            assert own.equal(theirs) == (way != "random"), part


def loss(model: PostEditor) -> Tensor:
    torch.manual_seed(3)
    source, ids = torch.randint(0, 30, (3, 9)), torch.randint(0, 30, (3, 6))
    segments = (torch.arange(9) >= 5).long().expand(3, 9)
    positions = torch.tensor([*range(5), *range(4)]).expand(3, 9)
    return model.eval()(source, None, segments, positions, ids, ids.roll(-1, 1))


def same_outputs(model: PostEditor, other: PostEditor) -> bool:
    return bool(loss(model).equal(loss(other)))


def test_cross_attention_can_be_that_of_the_encoder():
    tied = build(replace(CROSS_TIED, self_attention="random", cross_attention_of="encoder"))
    assert tied.decoder.blocks[1].cross_attention.key.weight is tied.encoder.encoder.blocks[1].attention.key.weight
    copied = build(replace(CROSS_COPIED, self_attention="random"))
    block = copied.decoder.blocks[1]
    assert block.cross_attention.key.weight.equal(block.attention.key.weight)
    assert not block.attention.key.weight.equal(copied.encoder.encoder.blocks[1].attention.key.weight)


def test_tied_layers_are_sharded_together():
    groups = fsdp_groups(build(SELF_TIED))
    ids = [{id(parameter) for module in group for parameter in module.parameters()} for group in groups]
    assert all(not first & second for i, first in enumerate(ids) for second in ids[:i])
    assert sum(map(len, groups)) == len(build(SELF_TIED).in_order())


def test_what_differs_in_shape_is_not_shared():
    narrow = replace(SMALL, ffn_dim=20)
    for sharing, decoder, part, size in (
        (FEED_FORWARD_TIED, narrow, "feed_forward", "ffn_dim"),
        (BERT, replace(SMALL, num_layers=1), "self_attention", "num_layers"),
        (SELF_TIED, replace(SMALL, num_heads=4), "self_attention", "num_heads"),
        (TRANSFORMER, replace(SMALL, model_dim=8), "embeddings", "model_dim"),
        (
            replace(TRANSFORMER, embeddings="random", cross_attention="copied"),
            replace(SMALL, model_dim=8),
            "cross_attention",
            "model_dim",
        ),
    ):
        with pytest.raises(ValueError, match=f"{part} must have the same {size} in decoder and encoder"):
            PostEditorConfig(SMALL, sharing, decoder=decoder)
    # What is random may have any shape.
    model = build(replace(TRANSFORMER, embeddings="random"), decoder=replace(narrow, model_dim=8, num_layers=1))
    assert loss(model).isfinite()


def test_a_bert_of_another_shape_is_refused_before_anything_changes():
    model = build(BERT)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for config, message in (
        (
            replace(SMALL, ffn_dim=32, num_layers=3),
            "num_layers is 3 and should be 2, its ffn_dim is 32 and should be 24",
        ),
        (replace(SMALL, num_layers=1), "num_layers is 1 and should be 2"),
        # What no shape shows.
        (replace(SMALL, num_heads=4), "num_heads is 4 and should be 2"),
        (replace(SMALL, norm_eps=1e-5), "norm_eps is 1e-05 and should be 1e-12"),
        (replace(SMALL, activation="relu"), "activation is relu and should be gelu"),
        (replace(SMALL, mapping=LearnedEntmaxConfig()), "has encoder.blocks.0.attention.mapping.pre_alpha"),
    ):
        with pytest.raises(ValueError, match=message):
            model.begin_from(config.build(len(WORDS)))
    with pytest.raises(ValueError, match=r"words.table is \(31, 16\) and should be \(30, 16\)"):
        model.begin_from(SMALL.build(31))
    assert all(parameter.equal(before[name]) for name, parameter in model.named_parameters())


def test_ways_that_do_not_exist_are_refused():
    for wrong in ({"norms": "tied"}, {"self_attention": "shared"}, {"cross_attention_of": "bert"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            Sharing(**wrong)
    with pytest.raises(ValueError, match="cross_attention_of must be left out"):
        Sharing(cross_attention="random", cross_attention_of="encoder")
    for side in ("encoder", "decoder"):
        with pytest.raises(ValueError, match=f"{side}.num_segments must be at least 2"):
            PostEditorConfig(
                **{"encoder": SMALL} | {side: replace(SMALL, num_segments=1)},
                sharing=replace(TRANSFORMER, embeddings="random"),
            )


def test_every_field_reaches_the_models():
    decoder = replace(SMALL, dropout=0.3, mapping=LearnedEntmaxConfig())
    config = PostEditorConfig(
        replace(SMALL, mapping=EntmaxConfig(1.3)),
        BERT,
        decoder=decoder,
        cross_mapping=SoftpickConfig(),
        label_smoothing=0.2,
    )
    model = config.build(WORDS)
    encoder, block = model.encoder.encoder.blocks[0], model.decoder.blocks[0]
    assert encoder.attention.mapping.alpha == 1.3 and isinstance(block.attention.mapping, LearnedEntmax)
    assert isinstance(block.cross_attention.mapping, Softpick) and block.dropout == 0.3 and encoder.dropout == 0.1
    assert (model.output.label_smoothing, model.output.unsmoothed, model.first) == (0.2, WORDS.pad, WORDS.first)
    # What is copied from BERT leaves out what its heads learn, which a BERT with softmax has none of.
    model.begin_from(SMALL.build(len(WORDS)))
    mappings = {"encoder_mapping": EntmaxConfig(1.3), "decoder_mapping": LearnedEntmaxConfig()}
    body = TransformerConfig(16, 2, 2, 24)
    two = DualSourceTransformerConfig(
        body, **mappings, cross_mapping=SoftpickConfig(), label_smoothing=0.2, max_positions=9
    ).build(WORDS)
    for stack in (two.source_encoder, two.translation_encoder):
        assert stack.blocks[1].attention.mapping.alpha == 1.3
    block = two.decoder.blocks[1]
    assert isinstance(block.attention.mapping, LearnedEntmax) and two.max_positions == 9
    assert isinstance(block.cross_attention.mapping, Softpick) and isinstance(block.second_attention.mapping, Softpick)
    assert (two.output.label_smoothing, two.output.unsmoothed, two.first) == (0.2, WORDS.pad, WORDS.first)
