"""The plain output layer: against torch's own cross-entropy, with transforms and label smoothing."""

import math

import pytest
import torch
import torch.nn.functional as F

import anymax
from anymax.vocabulary import FullOutput


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dim", [None, 3])
def test_is_cross_entropy_of_a_linear_layer(dim: int | None, bias: bool) -> None:
    layer = FullOutput(11, 6, dim=dim, bias=bias)
    hidden, target = torch.randn(4, 5, 6), torch.randint(11, (4, 5))
    vectors = hidden if dim is None else hidden @ layer.projection
    scores = F.linear(vectors, layer.table, layer.bias)
    torch.testing.assert_close(layer(hidden, target), F.cross_entropy(scores.reshape(-1, 11), target.reshape(-1)))
    torch.testing.assert_close(layer.log_probs(hidden), scores.log_softmax(-1))


def test_sig_gives_sig_softmax() -> None:
    layer = FullOutput(11, 6, transform=anymax.Sig())
    hidden = torch.randn(5, 6)
    torch.testing.assert_close(layer.log_probs(hidden).exp(), anymax.sigsoftmax(hidden @ layer.table.T))


def test_a_fresh_plif_changes_nothing_and_learns() -> None:
    layer = FullOutput(11, 6, transform=anymax.PLIF(pieces=1000))
    plain = FullOutput(11, 6)
    plain.table = layer.table
    hidden, target = torch.randn(30, 6), torch.randint(11, (30,))
    loss = layer(hidden, target)
    torch.testing.assert_close(loss, plain(hidden, target))
    loss.backward()
    weight = layer.transform.weight
    assert (weight.grad != 0).any()
    with torch.no_grad():
        weight -= weight.grad
    assert layer(hidden, target) < loss


def test_the_transform_of_its_scores_gives_its_log_probabilities() -> None:
    layer = FullOutput(13, 6, dim=4, bias=True, transform=anymax.Sig())
    hidden = torch.randn(2, 3, 6)
    torch.testing.assert_close(anymax.Sig()(layer.scores(hidden)).log_softmax(-1), layer.log_probs(hidden))


def test_a_transform_lifts_the_rank_of_the_log_probabilities() -> None:
    contexts = torch.randn(60, 4, dtype=torch.float64)
    plain = FullOutput(40, 4).double()
    bent = FullOutput(40, 4, transform=anymax.Sig()).double()
    assert torch.linalg.matrix_rank(plain.log_probs(contexts)) == 5
    assert torch.linalg.matrix_rank(bent.log_probs(contexts)) > 20


def test_label_smoothing_enters_the_loss_and_no_probability() -> None:
    plain = FullOutput(11, 6)
    layer = FullOutput(11, 6, label_smoothing=0.2)
    layer.table = plain.table
    hidden, target = torch.randn(8, 6), torch.tensor([0, 1, 2, 3, -100, 5, 10, 0])
    expected = F.cross_entropy(hidden @ plain.table.T, target, label_smoothing=0.2)
    torch.testing.assert_close(layer(hidden, target), expected)
    torch.testing.assert_close(layer.log_prob(hidden, target), plain.log_prob(hidden, target))
    torch.testing.assert_close(layer.log_probs(hidden), plain.log_probs(hidden))


def test_starts_with_scores_of_the_size_of_the_hidden_vectors() -> None:
    layer = FullOutput(2000, 256, dim=64, bias=True)
    assert abs(layer.table.std().item() - 64**-0.5) < 0.01
    assert layer.projection.abs().max() <= math.sqrt(6 / (256 + 64))
    assert (layer.bias == 0).all()


def test_is_built_without_memory_on_the_meta_device() -> None:
    with torch.device("meta"):
        layer = FullOutput(10**6, 1024, dim=512, bias=True)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 10**6 * 512 + 1024 * 512 + 10**6
    assert all(parameter.is_meta for parameter in layer.parameters())


def test_a_mean_over_many_bfloat16_tokens_keeps_its_precision() -> None:
    layer = FullOutput(50, 8).bfloat16()
    hidden, target = torch.randn(3000, 8).bfloat16(), torch.randint(50, (3000,))
    torch.testing.assert_close(layer(hidden, target), layer(hidden, target, "none").double().mean().float())


def test_wrong_sizes_are_refused() -> None:
    for arguments in ({"vocabulary_size": 0, "model_dim": 4}, {"vocabulary_size": 4, "model_dim": 0}):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            FullOutput(**arguments)
    with pytest.raises(ValueError, match="dim must be at least 1"):
        FullOutput(4, 4, dim=0)
    with pytest.raises(TypeError, match=r"vocabulary_size must be an integer, got 4\.0"):
        FullOutput(4.0, 4)
