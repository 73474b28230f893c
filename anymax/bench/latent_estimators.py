"""Estimators that only the benchmark needs: one that counts, and the baseline that sums over a batch's union."""

import torch
from torch import Tensor

from anymax.latent import Choice, Estimator, Latent, LossGiven
from anymax.latent.estimate import RowEstimate


class CountedRows(Estimator):
    """Another estimator, with a count of the rows that reach the loss."""

    def __init__(self, inner: Estimator) -> None:
        super().__init__()
        self.inner = inner
        self.rows = 0

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        def counted(choice: Tensor, example: Tensor) -> Tensor:
            self.rows += len(example)
            return loss_given(choice, example)

        return self.inner.estimate_rows(latent, counted, context)


class UnionOfSupports(Estimator):
    """The same sum as a sparse marginal's, one value after another, each for the whole batch.

    Every value that any example supports is evaluated for all of them, as the code of Correia et al. 2020 does.
    """

    def estimate_rows(self, latent: Latent, loss_given: LossGiven, context: Tensor | None) -> RowEstimate:
        assert isinstance(latent, Choice)
        probs_RN = latent.probs.reshape(-1, latent.size)
        example_R = torch.arange(latent.num_rows, device=probs_RN.device)
        union = (probs_RN > 0).any(0).nonzero().squeeze(1)
        expected_R = probs_RN.new_zeros(latent.num_rows)
        for value in union:
            losses_R = loss_given(latent.one_hot(value.expand(latent.num_rows)), example_R)
            expected_R = expected_R + probs_RN[:, value] * losses_R
        return RowEstimate(expected_R, torch.full_like(example_R, len(union)))
