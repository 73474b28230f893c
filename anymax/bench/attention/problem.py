"""Problem: queries, keys and values whose attention has a given density, and the ways to compute it.

Shapes: B batch, H heads, N positions, E numbers per head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.attention import entmax_attention
from anymax.bench.attention.density import density, find_scales
from anymax.bench.attention.settings import Settings, Shape
from anymax.bench.harness.comparison import Contestant
from anymax.bench.harness.timing import Run

ALPHA = 1.5
# Scores to probabilities along the last dimension.
Probs = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """Args:
    query_BHNE: standard normal times a scale for each head, at which it has the wanted density.
    allowed_NN: true where a query may attend to a key, for ways that take a mask; None without causality.
    alpha_H: with which the density was found.
    density: the share of the probabilities that are not zero, measured over all heads.
    scales: the smallest and the largest, which are the deviations of the scores.
    """

    query_BHNE: Tensor
    key_BHNE: Tensor
    value_BHNE: Tensor
    upstream_BHNE: Tensor
    allowed_NN: Tensor | None
    alpha_H: Tensor
    dropout: float
    density: float
    scales: tuple[float, float]

    @property
    def setting(self) -> str:
        """Its density and its scales."""
        low, high = (f"{scale:.3g}" for scale in self.scales)
        return f"density {100 * self.density:#.3g} %, scale {low if low == high else f'{low}-{high}'}"

    def torchs(self) -> Tensor:
        """By `F.scaled_dot_product_attention`."""
        is_causal = self.allowed_NN is not None
        return F.scaled_dot_product_attention(*self._tensors, dropout_p=self.dropout, is_causal=is_causal)

    def ours(self, alpha: float | Tensor = ALPHA) -> Tensor:
        """By `entmax_attention`."""
        is_causal = self.allowed_NN is not None
        return entmax_attention(*self._tensors, alpha, dropout_p=self.dropout, is_causal=is_causal)

    def eager(self, probs: Probs) -> Tensor:
        """With all scores at once."""
        probs_BHNN = F.dropout(probs(self.scores()), self.dropout, training=True)
        return probs_BHNN @ self.value_BHNE

    def scores(self) -> Tensor:
        scores_BHNN = (self.query_BHNE / math.sqrt(self.query_BHNE.shape[-1])) @ self.key_BHNE.mT
        return scores_BHNN if self.allowed_NN is None else scores_BHNN.masked_fill(~self.allowed_NN, -torch.inf)

    def contestant(
        self, name: str, attention: Callable[[], Tensor], *more: Tensor, setting: str | None = None
    ) -> Contestant:
        """Forward and backward, with gradients for queries, keys, values and `more`.

        Args:
            setting: what was chosen for it; by default the density and the scale.
        """
        inputs = (*self._tensors, *more)
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        run = self.run(attention, *more)
        return Contestant(name, run, num_bytes, self.setting if setting is None else setting)

    def run(self, attention: Callable[[], Tensor], *more: Tensor) -> Run:
        """Forward and backward, to the end."""
        inputs = (*self._tensors, *more)

        def differentiated() -> object:
            gradients = torch.autograd.grad(attention(), inputs, self.upstream_BHNE)
            wait_for(self.query_BHNE.device.type)
            return gradients

        return differentiated

    @property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query_BHNE, self.key_BHNE, self.value_BHNE


def wait_for(device: str) -> None:
    """Until the device has computed all it was given; the CPU has."""
    if device == "cuda":
        torch.cuda.synchronize()


def alphas_per_head(settings: Settings, num_heads: int) -> list[float]:
    """Evenly from the first to the last."""
    return torch.linspace(*settings.alphas, num_heads).tolist()


def make(
    shape: Shape,
    densities: Sequence[float],
    settings: Settings,
    *,
    alphas: Sequence[float] | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Problem:
    """Standard-normal tensors, the queries scaled.

    Args:
        densities: one for all heads, or one for each.
        alphas: one for each head; by default 1.5.
    """
    alphas = [ALPHA] * shape.heads if alphas is None else alphas
    alpha_H = torch.tensor(alphas, device=settings.device)
    scale_H, measured = _scales(shape, tuple(densities), settings, tuple(alphas), is_causal)
    query, key, value, upstream = _draw(shape, settings)
    query = query * scale_H[:, None, None]
    query, key, value = (tensor.to(settings.dtype).requires_grad_() for tensor in (query, key, value))
    allowed_NN = _earlier(shape, settings) if is_causal else None
    scales = (scale_H.min().item(), scale_H.max().item())
    return Problem(query, key, value, upstream.to(settings.dtype), allowed_NN, alpha_H, dropout, measured, scales)


@lru_cache(maxsize=64)
def _scales(
    shape: Shape, densities: tuple[float, ...], settings: Settings, alphas: tuple[float, ...], is_causal: bool
) -> tuple[Tensor, float]:
    """Of each head, and the density they give; kept, since several comparisons have the same."""
    query, key, *_ = _draw(shape, settings)
    alpha_H = torch.tensor(alphas, device=settings.device)
    wanted_H = torch.tensor(densities * (shape.heads // len(densities)), device=settings.device)
    allowed_NN = _earlier(shape, settings) if is_causal else None
    scale_H = find_scales(query, key, alpha_H, wanted_H, allowed_NN)
    return scale_H, density(query * scale_H[:, None, None], key, alpha_H, allowed_NN).mean().item()


def _draw(shape: Shape, settings: Settings) -> list[Tensor]:
    """Queries, keys, values and what comes back."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, settings.width, generator=generator).to(settings.device) for _ in range(4)]


def _earlier(shape: Shape, settings: Settings) -> Tensor:
    """True for a query's own key and those before it."""
    return torch.ones(shape.length, shape.length, dtype=torch.bool, device=settings.device).tril()
