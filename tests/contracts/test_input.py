"""What every input layer promises. A new one joins by one line in MEMBERS."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anymax.distributed.ranks import leave
from anymax.vocabulary import AdaptiveInput, Bands, CharacterInput, FixedInput
from anymax.vocabulary.character_input import Windows
from tests.each import each

SIZE, DIM, PADDING = 12, 8, 2
BANDS = Bands.from_sizes((5, 3, 4), dims=(8, 3, 2))
WORDS = ["</s>", "<unk>", "<pad>", "a", "bb", "of", "the", "words", "", "straße", "extraordinary", "z" * 60]


def character(padding_index: int | None, windows: Windows = "word") -> CharacterInput:
    return CharacterInput(
        WORDS,
        DIM,
        end_index=0,
        unknown_index=1,
        padding_index=padding_index,
        char_dim=4,
        # Padding may hide short words from a few filters.
        filters=((1, 4), (3, 5)) if windows == "word" else ((1, 16), (3, 16)),
        windows=windows,
    )


MEMBERS: dict[str, Callable[[int | None], nn.Module]] = {
    "fixed": lambda padding: FixedInput(SIZE, DIM, padding_index=padding),
    "fixed-narrow": lambda padding: FixedInput(SIZE, DIM, dim=3, padding_index=padding),
    "adaptive": lambda padding: AdaptiveInput(BANDS, DIM, padding_index=padding),
    "adaptive-one-band": lambda padding: AdaptiveInput(Bands.from_cutoffs((), SIZE, dim=4), DIM, padding_index=padding),
    "character": character,
    "character-padded": lambda padding: character(padding, "padded"),
}
SHAPES = [(), (5,), (2, 3), (2, 1, 4), (0,), (3, 0, 2)]


@pytest.fixture(params=list(MEMBERS))
def make(request: pytest.FixtureRequest) -> Callable[[int | None], nn.Module]:
    return MEMBERS[request.param]


@pytest.fixture
def layer(make: Callable[[int | None], nn.Module]) -> nn.Module:
    return make(PADDING)


@each("dtype", [torch.int64, torch.int32])
@each("shape", SHAPES)
def test_ids_of_any_shape_get_one_more_dimension(layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ids = torch.randint(SIZE, shape).to(dtype)
    vectors = layer(ids)
    assert vectors.shape == (*shape, DIM) and vectors.dtype == torch.float32
    one_by_one = [layer(word) for word in ids.flatten()]
    expected = torch.stack(one_by_one).view(*shape, DIM) if one_by_one else torch.empty(*shape, DIM)
    torch.testing.assert_close(vectors, expected)


def test_different_words_have_different_vectors(layer: nn.Module) -> None:
    vectors = layer(torch.arange(SIZE))
    distances = torch.cdist(vectors, vectors) + torch.eye(SIZE)
    assert distances.min() > 1e-4


@each("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_vectors_have_the_type_of_the_parameters(make: Callable[[int | None], nn.Module], dtype: torch.dtype) -> None:
    layer, ids = make(PADDING), torch.arange(SIZE)
    wide = layer(ids)
    vectors = layer.to(dtype)(ids)
    assert vectors.dtype == dtype
    torch.testing.assert_close(vectors.float(), wide, rtol=0.1, atol=0.05)
    vectors.sum().backward()
    assert all(parameter.grad.dtype == dtype for parameter in layer.parameters())


def test_autocast_changes_precision_alone(layer: nn.Module) -> None:
    ids = torch.arange(SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = layer(ids)
    torch.testing.assert_close(vectors.float(), layer(ids), rtol=0.1, atol=0.05)
    vectors.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


def test_padding_is_zero_and_gets_no_gradient(layer: nn.Module) -> None:
    ids = torch.tensor([[PADDING, 3, PADDING]])
    vectors = layer(ids)
    assert (vectors[0, ::2] == 0).all() and (vectors[0, 1] != 0).any()
    layer(torch.full((4,), PADDING)).sum().backward()
    assert all((parameter.grad == 0).all() for parameter in layer.parameters())


def test_padding_leaves_the_other_words_alone(make: Callable[[int | None], nn.Module]) -> None:
    padded, plain = make(PADDING), make(None)
    plain.load_state_dict(padded.state_dict())
    ids = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert torch.equal(padded(ids), plain(ids))


def test_every_parameter_gets_a_gradient_in_every_step(layer: nn.Module) -> None:
    for ids in ([3], [11], [0], [PADDING], []):
        layer.zero_grad()
        layer(torch.tensor(ids, dtype=torch.int64)).sum().backward()
        missing = [name for name, parameter in layer.named_parameters() if parameter.grad is None]
        assert missing == []


def test_a_batch_of_all_words_moves_every_parameter(layer: nn.Module) -> None:
    vectors = layer(torch.arange(SIZE))
    (vectors * torch.randn_like(vectors)).sum().backward()
    still = [name for name, parameter in layer.named_parameters() if not (parameter.grad != 0).any()]
    assert still == []


def test_stock_ddp_takes_steps_with_any_words(
    layer: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else gloo looks the machine's name up, and waits where nobody answers.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(layer)
        for ids in ([3], [11, 0], [PADDING]):
            parallel(torch.tensor(ids)).sum().backward()
    finally:
        leave()


def test_compiles_whole_and_agrees_with_eager(layer: nn.Module) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ids, parameters = torch.randint(SIZE, (3, 4)), list(layer.parameters())
    torch.testing.assert_close(compiled(ids), layer(ids))

    def gradients(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((call(ids) ** 2).sum(), parameters)

    torch.testing.assert_close(gradients(compiled), gradients(layer))


def test_can_be_made_without_memory(make: Callable[[int | None], nn.Module]) -> None:
    real = make(PADDING)
    with torch.device("meta"):
        empty = make(PADDING)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    assert {name: t.shape for name, t in empty.state_dict().items()} == {
        name: t.shape for name, t in real.state_dict().items()
    }


@each("wrong", [-1, SIZE, 10**9])
def test_a_word_outside_the_vocabulary_is_refused(layer: nn.Module, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"ids must be from 0 to 11, as the vocabulary has 12 words, got {wrong}"):
        layer(torch.tensor([[0, 3], [wrong, 1]]))


def test_ids_that_are_not_integers_are_refused(layer: nn.Module) -> None:
    for wrong in (torch.ones(3), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.uint8), [1, 2]):
        with pytest.raises(TypeError, match="ids must be an int64 or int32 tensor"):
            layer(wrong)


@each("wrong", [-1, SIZE])
def test_padding_outside_the_vocabulary_is_refused(make: Callable[[int | None], nn.Module], wrong: int) -> None:
    with pytest.raises(ValueError, match="padding_index must be a word of the vocabulary, from 0 to 11"):
        make(wrong)
