"""CharacterInput: a word's vector comes from its own bytes and from nothing else."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.vocabulary import CharacterInput

WORDS = ["</s>", "<unk>", "<pad>", "a", "the", "naïve", "日本語", "", "extraordinarily", "cat", "act", "aaaa"]


def make(words: list[str] = WORDS, **options: object) -> CharacterInput:
    sizes = {"char_dim": 5, "filters": ((1, 4), (2, 6), (7, 3)), "num_highways": 2}
    specials = {"end_index": 0, "unknown_index": 1, "padding_index": 2}
    return CharacterInput(words, 9, **{**sizes, **specials, **options}).double()


def by_convolution(layer: CharacterInput, word: str) -> Tensor:
    """One word's vector by torch's convolution over its bytes alone, with zeros beyond its end."""
    symbols = torch.tensor([byte + 1 for byte in word.encode()[: layer.max_bytes]] or [0])
    letters = F.embedding(symbols, layer.symbols, padding_idx=0).T
    features = []
    for weight, bias in zip(layer.filters, layer.biases, strict=True):
        padded = F.pad(letters, (0, weight.shape[1] - 1))
        features.append(F.conv1d(padded[None], weight.permute(2, 0, 1), bias)[0].amax(1))
    return through_highways(layer, torch.cat(features).clamp(min=0))


def through_highways(layer: CharacterInput, x: Tensor) -> Tensor:
    for highway in layer.highways:
        proposed, gate = highway(x).split(len(x))
        x = torch.sigmoid(gate) * x + (1 - torch.sigmoid(gate)) * proposed.clamp(min=0)
    return layer.projection(x)


def test_equals_a_convolution_over_each_word_by_itself() -> None:
    layer = make()
    ids = torch.tensor([[3, 8, 4, 7], [11, 5, 6, 4], [9, 10, 9, 3]])
    expected = torch.stack([by_convolution(layer, WORDS[i]) for i in ids.flatten().tolist()]).view(3, 4, 9)
    ours = layer(ids)
    torch.testing.assert_close(ours, expected)
    weights, parameters = torch.randn_like(ours), [p for p in layer.parameters() if p is not layer.specials]
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
    )


def by_padded_convolution(layer: CharacterInput, word: str) -> Tensor:
    """One word's vector as fairseq's embedder has it: bytes padded to the most, the maximum over all positions."""
    chars = [byte + 1 for byte in word.encode()][: layer.max_bytes]
    padded = torch.tensor([chars + [0] * (layer.max_bytes - len(chars))])
    embedded = F.embedding(padded, layer.symbols, padding_idx=0).transpose(1, 2)
    pooled = [
        F.relu(F.conv1d(embedded, weight.permute(2, 0, 1), bias).max(-1).values)
        for weight, bias in zip(layer.filters, layer.biases, strict=True)
    ]
    return through_highways(layer, torch.cat(pooled, -1)[0])


def test_padded_windows_are_those_of_a_convolution_over_words_of_one_length() -> None:
    # From words that are cut, with the widest filter as wide as they are, to words with room for padding alone.
    for max_bytes in (7, 8, 15, 50):
        layer = make(max_bytes=max_bytes, windows="padded")
        ids = torch.tensor([[3, 8, 4, 7], [11, 5, 6, 4], [9, 10, 9, 3]])
        expected = torch.stack([by_padded_convolution(layer, WORDS[i]) for i in ids.flatten().tolist()]).view(3, 4, 9)
        ours = layer(ids)
        torch.testing.assert_close(ours, expected)
        weights = torch.randn_like(ours)
        parameters = [p for p in layer.parameters() if p is not layer.specials]
        torch.testing.assert_close(
            torch.autograd.grad((ours * weights).sum(), parameters),
            torch.autograd.grad((expected * weights).sum(), parameters),
        )
        torch.testing.assert_close(layer.spell(["unseen"])[0], by_padded_convolution(layer, "unseen"))
        word = make(max_bytes=max_bytes)
        word.load_state_dict(layer.state_dict())
        assert not torch.allclose(word(ids), ours)


def test_a_vector_does_not_depend_on_the_other_words() -> None:
    layer = make()
    alone = layer(torch.tensor([3]))[0]
    for others in ([4], [8], [8, 9, 7], list(range(12))):
        torch.testing.assert_close(layer(torch.tensor([3, *others]))[0], alone, rtol=0, atol=1e-14)
    longer = make([*WORDS, "x" * 49])
    longer.load_state_dict(layer.state_dict() | {name: getattr(longer, name) for name in ("spellings", "lengths")})
    torch.testing.assert_close(longer(torch.tensor([3, 12]))[0], alone, rtol=0, atol=1e-14)


def test_each_distinct_word_is_computed_once() -> None:
    layer = make()
    rows = []
    layer.projection.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    layer(torch.tensor([[4, 5, 4, 4], [5, 4, 9, 9]]))
    assert rows == [3]


def test_published_parameter_counts() -> None:
    for num_highways, count in ((1, 20_458_880), (2, 36_324_224)):
        with torch.device("meta"):
            layer = CharacterInput(["</s>", "<unk>"], 1024, end_index=0, unknown_index=1, num_highways=num_highways)
        assert sum(parameter.numel() for parameter in layer.parameters()) == count


def test_end_and_unknown_have_vectors_of_their_own() -> None:
    layer = make()
    torch.testing.assert_close(layer(torch.tensor([1, 4, 0]))[[2, 0]], layer.specials)
    layer(torch.tensor([0, 3, 0])).sum().backward()
    assert layer.specials.grad.tolist() == [[2.0] * 9, [0.0] * 9]


def test_any_word_can_be_spelled() -> None:
    layer = make()
    spelled = layer.spell(["cat", "unseen", "日本語", "</s>"])
    torch.testing.assert_close(spelled[[0, 2]], layer(torch.tensor([9, 6])))
    torch.testing.assert_close(spelled[[1, 3]], torch.stack([by_convolution(layer, w) for w in ("unseen", "</s>")]))
    assert layer.spell([]).shape == (0, 9)


def test_further_words_have_the_vectors_of_their_spelling_and_are_no_part_of_the_state() -> None:
    for windows in ("word", "padded"):
        layer = make(windows=windows)
        state = layer.state_dict()
        further = ["unseen", "x" * 49, "dog", ""]
        layer.extend(further)
        ids = torch.tensor([[15, 12, 9, 1], [13, 0, 12, 14]])
        known = layer(torch.tensor([9, 1, 0]))
        expected = torch.cat([layer.spell(further), known])[torch.tensor([[3, 0, 4, 5], [1, 6, 0, 2]])]
        torch.testing.assert_close(layer(ids), expected)
        assert not torch.allclose(layer(ids)[0, 1], layer(ids)[1, 3])
        parameters = [p for p in layer.parameters() if p is not layer.specials]
        torch.testing.assert_close(
            torch.autograd.grad((layer(ids) * expected.detach()).sum(), parameters),
            torch.autograd.grad((expected * expected.detach()).sum(), parameters),
        )
        assert layer.state_dict().keys() == state.keys()
        # Those of another text take their place.
        layer.extend(["dog"])
        torch.testing.assert_close(layer(torch.tensor([12])), expected[1, 3:])
        with pytest.raises(ValueError, match="ids must be from 0 to 12, as the vocabulary has 13 words"):
            layer(ids)
        layer.extend([])
        assert torch.equal(layer(torch.tensor([9, 1, 0])), known)


def test_long_words_are_cut() -> None:
    layer = make(max_bytes=4)
    assert layer.spellings.shape == (len(WORDS), 4)
    extra, extract, exit_ = layer.spell(["extra", "extract", "exit"])
    torch.testing.assert_close(extra, extract)
    assert not torch.allclose(extra, exit_)
    # Cut within a letter of three bytes.
    torch.testing.assert_close(layer(torch.tensor([6]))[0], by_convolution(layer, "日本語"))


def test_the_order_of_letters_matters() -> None:
    cat, act = make()(torch.tensor([9, 10]))
    assert not torch.allclose(cat, act)


def test_what_lies_beyond_a_word_is_never_learned() -> None:
    layer = make()
    layer(torch.arange(12)).sum().backward()
    assert (layer.symbols.grad[0] == 0).all() and (layer.symbols[0] == 0).all()
    assert (layer.symbols.grad[1 + ord("a")] != 0).any()


def test_highways_carry_at_the_start() -> None:
    for highway in make().highways:
        assert highway.bias.tolist() == [0.0] * 13 + [1.0] * 13
    assert len(make(num_highways=0).highways) == 0


def test_a_layer_made_without_memory_is_whole_once_its_state_is_loaded() -> None:
    layer = make()
    with torch.device("meta"):
        empty = make()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(torch.arange(12)), layer(torch.arange(12)))


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must differ, got \\(0, 0, 2\\)"):
        make(unknown_index=0)
    with pytest.raises(ValueError, match="end_index must be a word of the vocabulary, from 0 to 11, got 12"):
        make(end_index=12)
    for filters in ((), ((0, 4),), ((2, 0),)):
        with pytest.raises(ValueError, match="filters must be pairs"):
            make(filters=filters)
    with pytest.raises(ValueError, match="num_highways must be at least 0"):
        make(num_highways=-1)
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        make(max_bytes=0)
    with pytest.raises(ValueError, match=r"windows must be one of \('word', 'padded'\), got 'all'"):
        make(windows="all")
    with pytest.raises(ValueError, match=r"max_bytes must be at least 7, .* with windows='padded', got 6; raise it"):
        make(windows="padded", max_bytes=6)
    with pytest.raises(TypeError, match="got the one string 'cat'; put it into a list"):
        make().spell("cat")


def test_shows_its_sizes() -> None:
    assert "vocabulary_size=12, model_dim=9, char_dim=5, filters=((1, 4), (2, 6), (7, 3))" in repr(make())
    assert "windows='padded'" in repr(make(windows="padded"))
