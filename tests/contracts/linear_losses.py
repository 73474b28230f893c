"""The linear losses, each with the same loss of all scores, for the suite of their contract."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import anymax
from anymax.kernels import matmul
from anymax.losses.linear_cross_entropy import linear_cross_entropy
from anymax.losses.linear_entmax_loss import linear_entmax_loss
from anymax.losses.linear_mixture_loss import linear_mixture_loss

V, D, K = 150, 6, 3
REDUCTIONS = ["mean", "sum", "none"]
Tensors = dict[str, nn.Parameter]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Member:
    """A linear loss as a function of its tensors, and one loss per target by way of all scores.

    The first two tensors are a hidden state and its weight.
    """

    fused: Callable[..., Tensor]
    eager: Callable[[Tensors, Tensor, float], Tensor]
    shapes: Callable[[tuple[int, ...]], Shapes]
    name: str
    rows_per_target: int = 1
    has_smoothing: bool = True
    has_transform: bool = False

    def make(self, *leading: int, dtype: torch.dtype = torch.float64) -> Tensors:
        scale = {"weight": 3.0, "first_weight": 3.0, "alpha": 0.1, "slopes": 0.3}
        tensors = {
            key: nn.Parameter(torch.randn(shape, dtype=torch.float64) * scale.get(key, 1.0))
            for key, shape in self.shapes(leading).items()
        }
        if "alpha" in tensors:
            tensors["alpha"].data += 1.5
        return changed(tensors, lambda tensor: tensor.to(dtype))

    def budget(self, num_targets: int, dtype: torch.dtype) -> int:
        """What the scores of so many targets take."""
        # Where half precision is not widened as it is read, it takes the scores in both.
        both = 2 if dtype.itemsize == 2 and not matmul.widens_half(torch.empty(0)) else 0
        return num_targets * self.rows_per_target * V * (max(4, dtype.itemsize) + both)


def plif(tensors: Tensors) -> nn.Module:
    module = anymax.PLIF(40, 9.0)
    module.weight = tensors["slopes"]
    return module


def scores_of(t: Tensors) -> Tensor:
    return functional.linear(t["hidden"], t["weight"], t.get("bias"))


def cross_entropies(scores: Tensor, target: Tensor, smoothing: float) -> Tensor:
    n = scores.shape[-1]
    losses = functional.cross_entropy(
        scores.reshape(-1, n), target.reshape(-1), reduction="none", label_smoothing=smoothing
    )
    return losses.reshape(target.shape)


def mixture_losses(scores: Tensor, prior: Tensor, target: Tensor) -> Tensor:
    log_probs = (prior.log_softmax(-1)[..., None] + scores.log_softmax(-1)).logsumexp(-2)
    return -log_probs.gather(-1, target[..., None])[..., 0]


def entmax_losses(scores: Tensor, target: Tensor, alpha: float | Tensor, smoothing: float) -> Tensor:
    return anymax.entmax_loss(scores, target, alpha, reduction="none", label_smoothing=smoothing)


def plain_shapes(leading: tuple[int, ...]) -> Shapes:
    return {"hidden": (*leading, D), "weight": (V, D), "bias": (V,)}


def entmax(alpha: float, *, has_bias: bool) -> Member:
    return Member(
        lambda t, target, **options: linear_entmax_loss(
            t["hidden"], t["weight"], target, alpha, t.get("bias"), **options
        ),
        lambda t, target, smoothing: entmax_losses(scores_of(t), target, alpha, smoothing),
        plain_shapes if has_bias else lambda leading: {"hidden": (*leading, D), "weight": (V, D)},
        "linear_entmax_loss",
    )


def learned_entmax(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Member:
    return Member(
        lambda t, target, **options: linear_entmax_loss(
            t["hidden"], t["weight"], target, t["alpha"], t["bias"], **options
        ),
        lambda t, target, smoothing: entmax_losses(scores_of(t), target, t["alpha"], smoothing),
        lambda leading: plain_shapes(leading) | {"alpha": shape(leading)},
        "linear_entmax_loss",
    )


def mixture(*, has_plif: bool) -> Member:
    def transform(t: Tensors) -> nn.Module | None:
        return plif(t) if has_plif else None

    def shapes(leading: tuple[int, ...]) -> Shapes:
        own: Shapes = {"hidden": (*leading, K, D), "weight": (V, D), "bias": (V,), "prior": (*leading, K)}
        return own | {"slopes": (40,)} if has_plif else own

    return Member(
        lambda t, target, **options: linear_mixture_loss(
            t["hidden"], t["prior"], t["weight"], target, t["bias"], transform=transform(t), **options
        ),
        lambda t, target, _: mixture_losses((transform(t) or nn.Identity())(scores_of(t)), t["prior"], target),
        shapes,
        "linear_mixture_loss",
        rows_per_target=K,
        has_smoothing=False,
        has_transform=has_plif,
    )


def pieces_shapes(leading: tuple[int, ...]) -> Shapes:
    return {
        "first_hidden": (*leading, D),
        "first_weight": (V - 20, D),
        "second_hidden": (*leading, 4),
        "second_weight": (20, 4),
        "second_bias": (20,),
    }


def eager_pieces(t: Tensors, target: Tensor, smoothing: float) -> Tensor:
    first = functional.linear(t["first_hidden"], t["first_weight"])
    second = functional.linear(t["second_hidden"], t["second_weight"], t["second_bias"])
    return cross_entropies(torch.cat([first, second], -1), target, smoothing)


MEMBERS = {
    "cross-entropy": Member(
        lambda t, target, **options: linear_cross_entropy(t["hidden"], t["weight"], target, t["bias"], **options),
        lambda t, target, smoothing: cross_entropies(scores_of(t), target, smoothing),
        plain_shapes,
        "linear_cross_entropy",
    ),
    "cross-entropy-plif": Member(
        lambda t, target, **options: linear_cross_entropy(
            t["hidden"], t["weight"], target, t["bias"], transform=plif(t), **options
        ),
        lambda t, target, smoothing: cross_entropies(plif(t)(scores_of(t)), target, smoothing),
        lambda leading: plain_shapes(leading) | {"slopes": (40,)},
        "linear_cross_entropy",
        has_transform=True,
    ),
    "cross-entropy-pieces": Member(
        lambda t, target, **options: linear_cross_entropy(
            [t["first_hidden"], t["second_hidden"]],
            [t["first_weight"], t["second_weight"]],
            target,
            [None, t["second_bias"]],
            **options,
        ),
        eager_pieces,
        pieces_shapes,
        "linear_cross_entropy",
    ),
    "entmax-0.6": entmax(0.6, has_bias=True),
    "entmax-1": entmax(1.0, has_bias=True),
    "entmax-1.5": entmax(1.5, has_bias=True),
    "entmax-2": entmax(2.0, has_bias=False),
    "entmax-learned": learned_entmax(lambda leading: ()),
    "entmax-per-row": learned_entmax(lambda leading: (*leading, 1)),
    "mixture": mixture(has_plif=False),
    "mixture-plif": mixture(has_plif=True),
}
WHOLE = [name for name, member in MEMBERS.items() if not member.has_transform]
# Compiling takes its time: one of each kind.
COMPILED = ["cross-entropy-pieces", "entmax-1.5", "entmax-per-row", "mixture"]


def changed(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    return {key: nn.Parameter(change(tensor.detach())) for key, tensor in tensors.items()}


def targets(*leading: int, ignored: Iterable[int] = ()) -> Tensor:
    target = torch.randint(V, leading)
    for place in ignored:
        target.view(-1)[place] = -100
    return target


def reduced(
    member: Member, tensors: Tensors, target: Tensor, reduction: str = "mean", smoothing: float = 0.0
) -> Tensor:
    """The loss by way of all scores."""
    counted = target != -100
    losses = member.eager(tensors, torch.where(counted, target, 0), smoothing)
    losses = torch.where(counted, losses, 0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / counted.sum().clamp(min=1)


def smoothing_option(member: Member, smoothing: float) -> dict[str, float]:
    return {"label_smoothing": smoothing} if member.has_smoothing else {}


def assert_same(got: Tensor, wanted: Tensor, tensors: dict[str, Tensor], *, tolerance: float = 1e-9) -> None:
    """Two losses and, for one gradient that comes from above, their gradients by all tensors."""
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    above = torch.randn_like(wanted)
    sources = list(tensors.values())
    for name, ours, theirs in zip(
        tensors, torch.autograd.grad(got, sources, above), torch.autograd.grad(wanted, sources, above), strict=True
    ):
        size = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance * size, msg=lambda text, name=name: f"{name}: {text}"
        )


def peak_bytes(function: Callable[[], object]) -> int:
    """The most memory alive at once of what the function allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    alive = most = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most
