"""A running mean of losses, to be used as a baseline."""

import torch
from torch import Tensor, nn


class RunningMean(nn.Module):
    """The mean over all updates of the mean loss at each; zero before the first. It belongs to the state."""

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def value(self) -> Tensor:
        """The mean as it is now: a copy, which later updates leave as backward needs it."""
        return self.mean.clone()

    @torch.no_grad()
    def update(self, losses: Tensor) -> None:
        """Take in the mean of some losses; none change nothing."""
        if losses.numel() == 0:
            return
        self.count += 1
        self.mean += (losses.mean() - self.mean) / self.count
