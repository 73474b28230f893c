"""What is lost to a limit of the rank: nothing where nothing must be, and else what numpy's decomposition says."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anymax.analysis.bottleneck.measure import Bottleneck, LosingWord, is_bound, rank_limit
from anymax.analysis.bottleneck.page import page
from anymax.analysis.bottleneck.words import lost_to_rank, nearest_of_rank
from anymax.evaluation import Choices, matrix_rank
from anymax.transforms import Sig
from anymax.vocabulary import AdaptiveOutput, Bands, FullOutput, MixtureOutput, OutputLayer, SparseOutput

C, W = 20, 30


def distributions(rank: int | None = None) -> Tensor:
    """At random; their log-probabilities have the given rank, or all there is."""
    scores = torch.randn(C, W, dtype=torch.float64)
    if rank is not None:
        scores = torch.randn(C, rank - 1, dtype=torch.float64) @ torch.randn(rank - 1, W, dtype=torch.float64)
    return scores.softmax(-1)


def weights() -> Tensor:
    return torch.rand(C, dtype=torch.float64).softmax(0)


@pytest.mark.parametrize(("rank", "limit"), [(4, 4), (4, 9), (None, C + 1), (None, 50), (1, 1)])
def test_nothing_is_lost_where_the_limit_holds_already(rank: int | None, limit: int) -> None:
    probs = distributions(rank)
    lost = lost_to_rank(probs, weights(), limit)
    assert lost.divergence == pytest.approx(0, abs=1e-9)
    assert lost.nats_W.abs().max() < 1e-9 and lost.lost_W.max() < 1e-9


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_the_nearest_log_probabilities_have_the_rank_and_the_least_distance(limit: int) -> None:
    log_probs, of_rows = distributions().log(), weights()
    nearest = nearest_of_rank(log_probs, of_rows, limit)
    assert np.linalg.matrix_rank(nearest.numpy(), tol=1e-9) == limit
    assert torch.allclose(nearest.exp().sum(1), torch.ones(C, dtype=torch.float64))
    # Up to a number for each row, which the distance of distributions does not see.
    of_words = (of_rows[:, None] * log_probs.exp()).sum(0)
    rows, words = of_rows.numpy()[:, None], of_words.numpy()

    def centred(matrix: np.ndarray) -> np.ndarray:
        return matrix - (matrix * words).sum(1, keepdims=True)

    distance = (rows * words * (centred(log_probs.numpy()) - centred(nearest.numpy())) ** 2).sum()
    values = np.linalg.svd(np.sqrt(rows * words) * centred(log_probs.numpy()), compute_uv=False)
    assert distance == pytest.approx((values[limit - 1 :] ** 2).sum())


def test_what_words_lose_sums_up_to_the_divergence() -> None:
    probs, of_rows = distributions(), weights()
    lost = lost_to_rank(probs, of_rows, 3)
    nearest = nearest_of_rank(probs.log(), of_rows, 3).exp()
    by_hand = sum(
        float(of_rows[c]) * float(probs[c, w]) * math.log(float(probs[c, w]) / float(nearest[c, w]))
        for c in range(C)
        for w in range(W)
    )
    assert lost.divergence == pytest.approx(by_hand) and by_hand > 0.01
    assert lost.probs_W.sum().item() == pytest.approx(1)
    assert ((lost.lost_W >= 0) & (lost.lost_W <= lost.probs_W)).all()
    moved = 0.5 * (of_rows[:, None] * (probs - nearest).abs()).sum()
    assert lost.lost_W.sum().item() == pytest.approx(moved.item())


def test_a_smaller_limit_costs_more() -> None:
    probs, of_rows = distributions(), weights()
    lost = [lost_to_rank(probs, of_rows, limit).divergence for limit in (1, 2, 5, 10, 20)]
    assert lost == sorted(lost, reverse=True)


def test_of_three_pairs_the_rarest_is_given_up_where_two_directions_are_left() -> None:
    probs = torch.ones(3, 8, dtype=torch.float64)
    probs[range(3), range(3)] = 20
    lost = lost_to_rank(probs / probs.sum(1, keepdim=True), torch.tensor([0.5, 0.4, 0.1]), 3)
    assert (lost.nats_W / lost.probs_W)[:3].tolist() == pytest.approx([0.0125, 0.0169, 1.0173], abs=1e-3)
    assert (lost.lost_W / lost.probs_W).argmax() == 2 and (lost.nats_W[3:] < 0).all()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1"):
        lost_to_rank(distributions(), weights(), 0)


@pytest.mark.parametrize(
    ("output", "limit", "bound"),
    [
        (FullOutput(40, 8), 9, True),
        (FullOutput(40, 8, dim=5, bias=True), 7, True),
        (FullOutput(40, 8, dim=30), 9, True),
        (MixtureOutput(40, 8, num_experts=2, dim=30), 32, False),
        (FullOutput(40, 8, transform=Sig()), 9, False),
        (AdaptiveOutput(Bands.from_cutoffs((10, 20), 40, dim=8, factor=2), 8), 11, True),
        (MixtureOutput(40, 8, num_experts=2), 10, False),
        (SparseOutput(40, 8), 9, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_limits_are_those_of_a_softmax_as_wide(output: OutputLayer, limit: int, bound: bool) -> None:
    assert (rank_limit(output), is_bound(output)) == (limit, bound)


def test_the_page_names_the_words_as_they_can_be_printed_and_has_a_picture(tmp_path: Path) -> None:
    probs = distributions(4)
    words = (LosingWord("a|\x1b[31m", 1234, 0.01, 0.00123, 0.4, 0.3, None),)
    measured = Bottleneck(
        split="test",
        output="FullOutput",
        limit=9,
        is_bound=True,
        rank=matrix_rank([probs.log()], num_contexts=C, num_words=W),
        choices=Choices(C, 0.2, 3.0, 0.0, 0.0, W, 1e-6, 12.0),
        num_previous=5,
        divergence=0.25,
        words=words,
    )
    shown = page(measured)
    text = shown.markdown()
    assert "test: rank 4 of 20 contexts x 30 words" in text and "This FullOutput can have rank 9 at most." in text
    assert r"| a\|\x1b[31m | 1,234 | 1.00% | 0.00123 | 0.400 | 30.0% |  |" in text
    assert "0.2500 nats per word" in text and shown.as_dict()["words"][0]["word"] == words[0].word
    pytest.importorskip("matplotlib")
    (file,) = shown.save_figures(tmp_path)
    assert file.read_bytes().startswith(b"\x89PNG")
