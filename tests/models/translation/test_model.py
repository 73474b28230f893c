"""The translator: torch's own Transformer, its published size, decoding word by word, padding, learning."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anymax
from anymax.attention import MultiHeadAttention, capture
from anymax.models import TransformerBlock, TransformerConfig, Translator
from anymax.models.language_model.model import evaluating
from anymax.models.transformer.decoder import Decoder
from anymax.models.transformer.encoder import Encoder
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    SparseOutput,
    tie_,
)
from tests.each import each
from tests.lexicons import Made

V, D, H = 23, 16, 4
BANDS = Bands.from_sizes((7, 9, 7), dim=D, factor=2)
EOS = 0
VARIANTS = {
    "pre-norm": {"final_norm": True},
    "post-norm": {"norm_first": False, "activation": "gelu"},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2, "norm": "rms", "activation": "swiglu"},
}
# One of a kind each, told apart by their zeros: every head's own alpha, sparsemax, softmax.
MAPPINGS = {
    "encoder_mapping": lambda: anymax.LearnedEntmax(shape=(H, 1, 1)),
    "decoder_mapping": lambda: anymax.sparsemax,
    "cross_mapping": None,
}
SOURCE_LENGTHS, LENGTHS = torch.tensor([6, 3, 1]), torch.tensor([5, 2, 4])
SOURCE_MASK = torch.arange(6) < SOURCE_LENGTHS[:, None]

pytestmark = pytest.mark.usefixtures("one_thread")

Layers = tuple[nn.Module, nn.Module, OutputLayer]


def two_way() -> Layers:
    source, target, output = FixedInput(V, D), FixedInput(V, D), FullOutput(V, D, bias=True)
    tie_(target, output)
    return source, target, output


def three_way() -> Layers:
    input, output = FixedInput(V, D), FullOutput(V, D, bias=True)
    tie_(input, output)
    return input, input, output


def adaptive() -> Layers:
    input, output = AdaptiveInput(BANDS, D), AdaptiveOutput(BANDS, D)
    tie_(input, output, projections=True)
    return FixedInput(V + 4, D, dim=5), input, output


def characters() -> Layers:
    words = Made(V)
    input = CharacterInput(words.words, D, end_index=words.eos, unknown_index=words.unk, filters=((1, 4),))
    return input, input, MixtureOutput(V, D, num_experts=2)


LAYERS: dict[str, Callable[[], Layers]] = {
    "two-way": two_way,
    "three-way": three_way,
    "adaptive": adaptive,
    "sparse": lambda: (FixedInput(V, D), FixedInput(V, D), SparseOutput(V, D)),
    "characters, mixture": characters,
}


def config(**options: object) -> TransformerConfig:
    return TransformerConfig(D, 2, H, 24, **options)


def build(layers: str = "three-way", *, mappings: bool = True, **options: object) -> Translator:
    """A small model in training mode, its norms and biases no longer as they began."""
    model = Translator(*LAYERS[layers](), config(**options), decoder_layers=3, **(MAPPINGS if mappings else {}))
    with torch.no_grad():
        for parameter in [*model.encoder.parameters(), *model.decoder.parameters()]:
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def words(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    target = words(3, 5)
    ids = torch.cat([torch.full((3, 1), EOS), target[:, :-1]], 1)
    return words(3, 6), SOURCE_MASK, ids, target.masked_fill(torch.arange(5) >= LENGTHS[:, None], -100)


def copy_block(block: TransformerBlock, twin: nn.Module) -> None:
    def attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
        inputs = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.data = torch.cat([layer.weight.detach() for layer in inputs])
        theirs.in_proj_bias.data = torch.cat([layer.bias.detach() for layer in inputs])
        theirs.out_proj.load_state_dict(ours.output.state_dict())

    attention(block.attention, twin.self_attn)
    norms = [block.attention_norm, block.feed_forward_norm]
    if block.cross_attention is not None:
        attention(block.cross_attention, twin.multihead_attn)
        norms.insert(1, block.cross_attention_norm)
    for i, norm in enumerate(norms, start=1):
        getattr(twin, f"norm{i}").load_state_dict(norm.state_dict())
    twin.linear1.load_state_dict(block.feed_forward.inner.state_dict())
    twin.linear2.load_state_dict(block.feed_forward.outer.state_dict())


@each("norm_first", [True, False])
def test_the_stacks_are_torchs_transformer_with_its_weights(norm_first: bool) -> None:
    options = config(norm_first=norm_first, final_norm=True)
    encoder, decoder = Encoder(options), Decoder(options)
    layer = nn.TransformerEncoderLayer(D, H, 24, norm_first=norm_first, batch_first=True)
    # By itself torch warns that nested tensors do not go with pre-norm.
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
    twin = nn.Transformer(D, H, 2, 2, 24, norm_first=norm_first, batch_first=True, custom_encoder=stack).eval()
    with torch.no_grad():
        for parameter in [*encoder.parameters(), *decoder.parameters()]:
            parameter.add_(0.2 * torch.randn(parameter.shape))
        for stack, of_twin in ((encoder, twin.encoder), (decoder, twin.decoder)):
            of_twin.norm.load_state_dict(stack.final_norm.state_dict())
            for block, layer in zip(stack.blocks, of_twin.layers, strict=True):
                copy_block(block, layer)
    source, target = torch.randn(3, 6, D), torch.randn(3, 5, D)
    wanted = twin(
        source,
        target,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=~SOURCE_MASK,
        memory_key_padding_mask=~SOURCE_MASK,
    )
    got = decoder(target, encoder(source, SOURCE_MASK), SOURCE_MASK)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_base_model_has_its_published_size() -> None:
    base, size = TransformerConfig(512, 6, 8, 2048, final_norm=True), 32_000
    with torch.device("meta"):
        input, output = FixedInput(size, 512), FullOutput(size, 512, bias=True)
        tie_(input, output)
        alphas = dict.fromkeys(MAPPINGS, lambda: anymax.LearnedEntmax(shape=(8, 1, 1)))
        model = Translator(input, input, output, base, **alphas)
        twin = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    stacks = [*model.encoder.parameters(), *model.decoder.parameters()]
    assert sum(p.numel() for p in twin.parameters()) == 44_140_544
    assert sum(p.numel() for p in stacks) == 44_140_544 + 144
    # One table for three uses, and the bias of the output.
    assert sum(p.numel() for p in model.parameters()) == 44_140_544 + 144 + 512 * size + size


@each("layers", LAYERS)
def test_the_loss_is_that_of_the_output_for_what_follows(layers: str) -> None:
    model, (source, mask, ids, target) = build(layers), batch()
    hidden = model.hidden(ids, model.encode(source, mask), mask)
    for reduction in ("mean", "sum", "none"):
        loss = model(source, mask, ids, target, reduction)
        torch.testing.assert_close(loss, model.output(hidden, target, reduction))
    assert (loss[target == -100] == 0).all() and (loss[target != -100] > 0).all()
    torch.testing.assert_close(model(source, mask, ids, target), loss.sum() / LENGTHS.sum())


@each("variant", VARIANTS)
@torch.no_grad()
def test_word_by_word_gives_what_all_words_at_once_give(variant: str) -> None:
    model, (source, mask, ids, _) = build(**VARIANTS[variant]).eval(), batch()
    whole = model.hidden(ids, model.encode(source, mask), mask)
    state = model.start((source, mask), max_length=5)
    for i in range(5):
        assert state.length == i
        hidden, state = model.next(ids[:, i], state)
        torch.testing.assert_close(hidden, whole[:, i], rtol=1e-5, atol=1e-5)
    alone = model.start((source[:1], None), max_length=1)
    torch.testing.assert_close(model.next(ids[:1, 0], alone)[0], whole[:1, 0], rtol=1e-5, atol=1e-5)


@each("variant", VARIANTS)
@torch.no_grad()
def test_reordered_rows_continue_as_if_they_had_always_stood_there(variant: str) -> None:
    model, (source, mask, _, _) = build(**VARIANTS[variant]).eval(), batch()
    state = model.start((source, mask), max_length=6)
    rows, ids = torch.arange(3), torch.full((3, 1), EOS)
    # As beams do: grown, changing places within a sentence, shrunk to one sentence, none left.
    orders = ([0, 0, 1, 1, 2, 2], [1, 1, 3, 2, 4, 5], [5, 2, 3], [1, 2], [])
    for order in orders:
        hidden, state = model.next(ids[:, -1], state)
        whole = model.hidden(ids, model.encode(source[rows], mask[rows]), mask[rows])
        torch.testing.assert_close(hidden, whole[:, -1], rtol=1e-5, atol=1e-5)
        index = torch.tensor(order, dtype=torch.long)
        state, rows = model.reorder(state, index), rows[index]
        ids = torch.cat([ids[index], words(len(order), 1)], 1)
    with pytest.raises(ValueError, match=r"index must name rows of the batch, from 0 to 2, got \[3\]"):
        model.reorder(model.start((source, mask), max_length=1), torch.tensor([3]))


@torch.no_grad()
def test_what_is_kept_of_the_source_is_copied_only_when_a_row_changes_its_sentence() -> None:
    model, (source, mask, _, _) = build().eval(), batch()
    state = model.start((source, mask), max_length=4)

    def reordered(*order: int) -> list[Tensor]:
        model.reorder(state, torch.tensor(order))
        return [cache.keys for cache in state.memory]

    grown = reordered(0, 0, 1, 1)
    assert all(kept is before for kept, before in zip(reordered(1, 0, 2, 2), grown, strict=True))
    assert all(copied is not before for copied, before in zip(reordered(2, 1, 0, 3), grown, strict=True))


@each("layers", LAYERS)
def test_padding_and_other_rows_change_nothing(layers: str) -> None:
    model, (source, mask, ids, target) = build(layers, **VARIANTS["pre-norm"]), batch()
    together = model(source, mask, ids, target, "none")
    noise = torch.where(mask, source, words(3, 6))
    torch.testing.assert_close(model(noise, mask, ids, target, "none"), together, rtol=1e-5, atol=1e-5)
    for i in range(3):
        row, read, length = slice(i, i + 1), int(SOURCE_LENGTHS[i]), int(LENGTHS[i])
        alone = model(source[row, :read], None, ids[row, :length], target[row, :length], "none")
        torch.testing.assert_close(alone, together[row, :length], rtol=1e-5, atol=1e-5)


def test_later_words_change_nothing_earlier_and_every_word_of_the_source_counts() -> None:
    for options in VARIANTS.values():
        model, (source, mask, ids, _) = build(mappings=False, **options), batch()
        memory = model.encode(source, mask).detach().requires_grad_()
        hidden = model.hidden(ids, memory, mask)
        changed = ids.clone()
        changed[:, 3:] = (ids[:, 3:] + 1) % V
        torch.testing.assert_close(model.hidden(changed, memory, mask)[:, :3], hidden[:, :3], rtol=0, atol=1e-5)
        (grad,) = torch.autograd.grad(hidden[:, 0].square().sum(), memory)
        assert torch.equal((grad != 0).any(-1), mask)


def test_each_mapping_reaches_the_attention_of_its_kind() -> None:
    model, (source, mask, ids, target) = build().eval(), batch()
    with capture(model) as weights:
        model(source, mask, ids, target)
    shapes = {kind: [tuple(layer.shape) for layer in layers] for kind, layers in weights.items()}
    assert shapes == {"encoder": [(3, H, 6, 6)] * 2, "decoder": [(3, H, 5, 5)] * 3, "cross": [(3, H, 5, 6)] * 3}
    first = model.encoder.blocks[0].attention
    assert isinstance(first.mapping, anymax.LearnedEntmax)
    assert all(block.attention.mapping is anymax.sparsemax for block in model.decoder.blocks)
    assert all(block.cross_attention.mapping is None for block in model.decoder.blocks)
    # Softmax leaves nothing at zero but padding, sparsemax leaves more than later words.
    assert torch.equal(weights["cross"][0] > 0, mask[:, None, None].expand(3, H, 5, 6))
    assert (weights["decoder"][0].tril() > 0).sum() < 0.9 * 3 * H * 15
    assert len({id(block.attention.mapping) for block in model.encoder.blocks}) == 2


def test_three_way_tying_is_one_table_whose_gradients_add_up() -> None:
    model, (source, mask, ids, target) = build(mappings=False), batch()
    table = model.source_input.table
    assert table is model.target_input.table and table is model.output.table
    free = Translator(FixedInput(V, D), FixedInput(V, D), FullOutput(V, D, bias=True), config(), decoder_layers=3)
    free.load_state_dict(model.state_dict())
    for each_model in (model, free):
        each_model(source, mask, ids, target).backward()
    parts = [layer.table.grad for layer in (free.source_input, free.target_input, free.output)]
    assert all(part.any() for part in parts)
    torch.testing.assert_close(table.grad, sum(parts), rtol=1e-5, atol=1e-6)
    count = sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in model.parameters())
    assert count == 2 * V * D
    two = build("two-way")
    assert two.target_input.table is two.output.table and two.source_input.table is not two.output.table


@each("layers", LAYERS)
def test_a_gradient_reaches_every_parameter(layers: str) -> None:
    alphas = dict.fromkeys(MAPPINGS, lambda: anymax.LearnedEntmax(shape=(H, 1, 1)))
    model = Translator(*LAYERS[layers](), config(final_norm=True), **alphas)
    model(words(4, 30), None, words(4, 30), words(4, 30)).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias of keys adds the same to all scores of a query.
    assert [name for name in without if not name.endswith("attention.key.bias")] == []


def test_pairs_are_learned_by_heart_and_the_alphas_move() -> None:
    alphas = dict.fromkeys(MAPPINGS, lambda: anymax.LearnedEntmax(shape=(H, 1, 1), clamp=1.01))
    model = Translator(*three_way(), config(), **alphas)
    before = anymax.models.learned_alphas(model)
    source = 1 + torch.randint(V - 1, (8, 5))
    target = torch.cat([source.flip(1), torch.full((8, 1), EOS)], 1)
    ids = torch.cat([torch.full((8, 1), EOS), target[:, :-1]], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = model(source, None, ids, target).item()
    for _ in range(80):
        optimizer.zero_grad()
        loss = model(source, None, ids, target)
        loss.backward()
        optimizer.step()
    assert first > 1 and loss.item() < 0.05
    after = anymax.models.learned_alphas(model)
    assert all(abs(after[name] - alpha) > 1e-4 for name, alpha in before.items() if alpha > 1.011)
    # Greedily, each word by the one before.
    with evaluating(model):
        state, last, chosen = model.start((source, None), max_length=6), torch.full((8,), EOS), []
        for _ in range(6):
            hidden, state = model.next(last, state)
            last = model.output.topk(hidden, 1).words[:, 0]
            chosen.append(last)
    assert torch.equal(torch.stack(chosen, 1), target)


def test_alphas_are_named_by_the_kind_of_attention_its_layer_and_head() -> None:
    learned = {name: lambda: anymax.LearnedEntmax(shape=(2, 1, 1)) for name in ("encoder_mapping", "cross_mapping")}
    model = Translator(*two_way(), TransformerConfig(D, 1, 2, 24), decoder_layers=2, **learned)
    alphas = anymax.models.learned_alphas(model)
    assert list(alphas) == [
        "alpha/encoder/layer_0/head_0",
        "alpha/encoder/layer_0/head_1",
        *(f"alpha/cross/layer_{i}/head_{j}" for i in range(2) for j in range(2)),
    ]
    assert alphas["alpha/cross/layer_1/head_0"] == model.decoder.blocks[1].cross_attention.mapping.alpha[0].item()
    assert alphas["alpha/encoder/layer_0/head_1"] == model.encoder.blocks[0].attention.mapping.alpha[1].item()
    assert anymax.models.learned_alphas(build(mappings=False)) == {}


def test_what_is_tied_is_one_group_in_the_order_it_runs() -> None:
    for layers, ends in (("three-way", 1), ("two-way", 2), ("adaptive", 2), ("sparse", 3), ("characters, mixture", 2)):
        model = build(layers)
        source, target, output = model.source_input, model.target_input, model.output
        encoder, decoder = ([[block] for block in stack.blocks] for stack in (model.encoder, model.decoder))
        wanted = {
            "three-way": [[source, output], *encoder, *decoder],
            "characters, mixture": [[source], *encoder, *decoder, [output]],
            "sparse": [[source], *encoder, [target], *decoder, [output]],
        }.get(layers, [[source], *encoder, [target, output], *decoder])
        groups = anymax.models.fsdp_groups(model)
        assert groups == wanted and len(groups) == ends + 5
        held = [{id(p) for module in group for p in module.parameters()} for group in groups]
        assert sum(map(len, held)) == len(set.union(*held))


def test_smoothing_and_dropout_are_off_while_a_model_is_evaluated() -> None:
    model = Translator(FixedInput(V, D), FixedInput(V, D), FullOutput(V, D, label_smoothing=0.1), config(dropout=0.2))
    source, mask, ids, target = batch()
    with evaluating(model):
        loss = model(source, mask, ids, target, "sum")
        hidden = model.hidden(ids, model.encode(source, mask), mask)
    torch.testing.assert_close(loss, -model.output.log_prob(hidden, target).sum())
    assert model.training and model.output.label_smoothing == 0.1
    assert not torch.equal(model(source, mask, ids, target), model(source, mask, ids, target))


def test_dropout_acts_on_what_enters_both_stacks_and_in_training_alone() -> None:
    # At a rate of 1 nothing is random, and residual sums have nothing left.
    model, (source, mask, ids, _) = Translator(*two_way(), config(dropout=1.0)), batch()
    memory = torch.randn(3, 6, D)
    assert not model.encode(source, mask).any() and not model.hidden(ids, memory, mask).any()
    model.eval()
    assert model.encode(source, mask).any() and model.hidden(ids, memory, mask).any()


def test_a_saved_model_is_the_same_when_loaded_and_a_seed_makes_the_same_model() -> None:
    model, (source, mask, ids, target) = build(), batch()
    other = build()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(source, mask, ids, target), other(source, mask, ids, target))
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(build().state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*(state.values() for state in made), strict=True))


def test_a_compiled_model_gives_the_same_loss_and_gradients() -> None:
    model, (source, mask, ids, target) = build(**VARIANTS["pre-norm"]), batch()
    loss = model(source, mask, ids, target)
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(source, mask, ids, target)
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(torch.autograd.grad(compiled, list(model.parameters())), wanted)


def test_autocast_is_near_and_keeps_the_vectors_between_blocks_in_float32() -> None:
    model, (source, mask, ids, target) = build(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        memory = model.encode(source, mask)
        hidden, loss = model.hidden(ids, memory, mask), model(source, mask, ids, target)
    assert memory.dtype == hidden.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(source, mask, ids, target), rtol=0.05, atol=0.05)


def test_a_model_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="output must have the model_dim of the config, 16, got 8"):
        Translator(FixedInput(V, D), FixedInput(V, D), FullOutput(V, 8), config())
    with pytest.raises(TypeError, match=r"cross_mapping must be a function that makes one .* got the Module Entmax"):
        Translator(*two_way(), config(), cross_mapping=anymax.Entmax(1.5))
    with pytest.raises(ValueError, match="max_positions must be at least 1, got 0"):
        Translator(*two_way(), config(), max_positions=0)
    narrow = Translator(FixedInput(V, 8), FixedInput(V, D), FullOutput(V, D), config())
    with pytest.raises(ValueError, match="input must give vectors of the config's model_dim, 16, got 8"):
        narrow.encode(words(1, 2))
    model, (source, mask, ids, target) = build(), batch()
    with pytest.raises(ValueError, match=r"source must be \(batch, positions\) with at least one .* got \(3, 0\)"):
        model(source[:, :0], None, ids, target)
    with pytest.raises(ValueError, match=r"source_mask must have the shape of source, \(3, 6\), got \(3, 5\)"):
        model(source, mask[:, :5], ids, target)
    with pytest.raises(TypeError, match="mask must be a boolean tensor, true where a word of the source stands"):
        model(source, mask.long(), ids, target)
    with pytest.raises(ValueError, match=r"ids must be \(batch,\), one word for every row, got shape \(3, 5\)"):
        model.next(ids, model.start((source, mask), max_length=1))


def test_a_sentence_longer_than_the_positions_is_refused() -> None:
    model = Translator(*two_way(), config(), max_positions=6)
    source, mask, ids, target = batch()
    assert model(source, mask, ids, target).isfinite() and "max_positions=6" in repr(model)
    message = "must have at most the model's max_positions, 6, got a sentence of 7; leave longer ones out"
    with pytest.raises(ValueError, match=f"source {message}"):
        model(words(3, 7), None, ids, target)
    with pytest.raises(ValueError, match=f"ids {message}"):
        model(source, mask, words(3, 7), words(3, 7))
    with pytest.raises(ValueError, match="max_length must be at most the model's max_positions, 6, got 7"):
        model.start((source, mask), max_length=7)
    state = model.start((source, mask), max_length=1)
    model.next(ids[:, 0], state)
    with pytest.raises(ValueError, match="got 1 more after 1 in one of max_length 1"):
        model.next(ids[:, 1], state)


def test_cross_entropy_is_torchs_for_the_words_that_follow() -> None:
    model, (source, mask, ids, target) = build(), batch()
    hidden = model.hidden(ids, model.encode(source, mask), mask)
    scores = hidden @ model.output.table.T + model.output.bias
    torch.testing.assert_close(
        model(source, mask, ids, target), F.cross_entropy(scores.flatten(0, 1), target.flatten())
    )
