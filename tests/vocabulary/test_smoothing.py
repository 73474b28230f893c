"""Label smoothing by name, against OpenNMT's written out word by word."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anymax
from anymax.plain import from_plain
from anymax.vocabulary import AdaptiveOutputConfig, FullOutputConfig, SparseOutputConfig

V, D, RATE = 7, 5, 0.1
TARGET = torch.tensor([3, 0, -100, 6])


def soft_target(word: int) -> Tensor:
    """OpenNMT's distribution over a vocabulary that holds a padding word, here its last, without that word."""
    with_padding = V + 1
    probs = [RATE / (with_padding - 2)] * with_padding
    probs[word], probs[V] = 1 - RATE, 0.0
    assert sum(probs) == pytest.approx(1)
    return torch.tensor(probs[:V])


def divergence(log_probs: Tensor) -> Tensor:
    """OpenNMT's loss: for every token the sum over words of q log(q / p)."""
    total = torch.zeros(())
    for row, word in zip(log_probs, TARGET.tolist(), strict=True):
        if word != -100:
            for share, log_prob in zip(soft_target(word).tolist(), row, strict=True):
                total = total + share * (math.log(share) - log_prob)
    return total


def test_opennmts_smoothing_is_its_divergence_up_to_a_constant() -> None:
    layer = FullOutputConfig(bias=True, label_smoothing=RATE, smoothing="opennmt").build(V, D)
    hidden = torch.randn(4, D, requires_grad=True)
    loss = layer(hidden, TARGET, "sum")
    wanted = divergence((hidden @ layer.table.T + layer.bias).log_softmax(-1))
    entropy = -(1 - RATE) * math.log(1 - RATE) - RATE * math.log(RATE / (V - 1))
    torch.testing.assert_close(loss, wanted + 3 * entropy)
    used = [hidden, layer.table, layer.bias]
    torch.testing.assert_close(torch.autograd.grad(loss, used), torch.autograd.grad(wanted, used))


def test_opennmts_smoothing_of_a_sparse_output_is_its_soft_target() -> None:
    layer = SparseOutputConfig(1.5, label_smoothing=RATE, smoothing="opennmt").build(V, D)
    hidden, counted = torch.randn(4, D), TARGET != -100
    targets = torch.stack([soft_target(word) for word in TARGET[counted].tolist()])
    wanted = anymax.entmax_loss(hidden[counted] @ layer.table.T, targets, 1.5, reduction="sum")
    torch.testing.assert_close(layer(hidden, TARGET, "sum"), wanted)


def test_torchs_smoothing_is_the_default_and_torchs_own() -> None:
    layer, hidden = FullOutputConfig(label_smoothing=RATE).build(V, D), torch.randn(4, D)
    wanted = F.cross_entropy(hidden @ layer.table.T, TARGET, label_smoothing=RATE)
    torch.testing.assert_close(layer(hidden, TARGET), wanted)
    assert FullOutputConfig(smoothing="opennmt").build(V, D).label_smoothing == 0


def test_what_cannot_be_smoothed_is_refused() -> None:
    for make in (FullOutputConfig, SparseOutputConfig):
        with pytest.raises(ValueError, match=r"smoothing must be one of \('torch', 'opennmt'\), got 'uniform'"):
            make(smoothing="uniform")
        with pytest.raises(ValueError, match=r"label_smoothing must be at most 0.8 for 5 words .* got 0.9; make it"):
            make(label_smoothing=0.9, smoothing="opennmt").build(5, D)
    with pytest.raises(ValueError, match="AdaptiveOutputConfig has no field 'smoothing'"):
        from_plain(AdaptiveOutputConfig, {"cutoffs": [3], "smoothing": "opennmt"})
