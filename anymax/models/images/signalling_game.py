"""A signalling game: a sender sees an image and sends one of many messages, a receiver picks the image by it.

Shapes: B games, K candidates of a game, P pairs of a game and a message, M messages, U different ones of them,
F numbers of an image, D of a vector, W pairs of the game that has most.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.latent import Choice, Estimate, Estimator
from anymax.mappings import softmax
from anymax.models.images.pointwise_network import sum_of_sigmoids


class GameLosses(NamedTuple):
    """The loss of every game (B,) and the calls of the receiver that it took (B,)."""

    losses: Tensor
    calls: Tensor


class Sender(nn.Module):
    """Scores of messages for an image.

    The image becomes a vector, each number of which passes the same learned function of one number, and a linear layer
    gives the scores. Lazaridou et al. 2017.

    Args:
        num_units: sigmoids in the learned function.
        scale: the divisor of the scores.
    """

    def __init__(self, image_size: int, num_messages: int, *, dim: int, num_units: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.embed = nn.Linear(image_size, dim, bias=False)
        self.spread = nn.Linear(1, num_units, bias=False)
        self.gather = nn.Linear(num_units, 1, bias=False)
        self.score = nn.Linear(dim, num_messages, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        learned = sum_of_sigmoids(self.embed(images), self.spread.weight.squeeze(1), self.gather.weight.squeeze(0))
        return self.score(learned.sigmoid()) / self.scale


class Receiver(nn.Module):
    """Scores of candidates for a message: products of the vectors of both."""

    def __init__(self, image_size: int, num_messages: int, *, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(image_size, dim, bias=False)
        self.messages = nn.Parameter(torch.empty(num_messages, dim).normal_())

    def forward(self, message_PM: Tensor, example_P: Tensor, candidates_BKF: Tensor) -> Tensor:
        """Scores (P, K) of the candidates of game `example` for messages, which may be relaxed."""
        if not message_PM.requires_grad and bool((message_PM.amax(-1) == 1).all()):
            # Rows of the table, where nothing is to be learned of the choice itself.
            # A one-hot row times the places is the place, found much faster than by a search.
            places_M = torch.arange(message_PM.shape[1], device=message_PM.device).float()
            distinct_U, which_P = (message_PM.float() @ places_M).long().unique(return_inverse=True)
            vectors_UD = F.embedding(distinct_U, self.messages)
        else:
            vectors_UD, which_P = message_PM @ self.messages, torch.arange(len(message_PM), device=example_P.device)
        # <vector, E image> is <E' vector, image>: few vectors go through E instead of all images.
        return _products(vectors_UD @ self.embed.weight, which_P, example_P, candidates_BKF)


class SignallingGame(nn.Module):
    """Two players who invent a language: a sender sees an image and sends a message, a receiver picks the image by it.

    Args:
        image_size: how many numbers an image has.
        estimator: how the gradient through the message is found; it may be given another one at any time.
        pick: where the receiver draws its pick and only success counts, how the gradient through the pick is found;
            None has it learn from the likelihood of the right candidate.
        mapping: the mapping from scores to probabilities of messages.
        num_messages: how many messages there are.
        dim: width of the vectors of images and messages.
        num_units: sigmoids in the sender's learned function.
        scale: the divisor of the sender's scores.
        entropy: how much the entropy of messages, and of picks that are drawn, is rewarded.

    As in Correia et al. 2020.

    Example:
        >>> from anymax.latent import SparseMarginal
        >>> from anymax.mappings import sparsemax
        >>> from anymax.models import SignallingGame
        >>> game = SignallingGame(6, SparseMarginal(), mapping=sparsemax, num_messages=16, dim=8)
        >>> candidates = torch.randn(3, 4, 6)  # three games, of four images each
        >>> losses, calls = game(candidates, target=torch.tensor([0, 2, 1]))
        >>> losses.shape, bool((calls <= 16).all())
        (torch.Size([3]), True)
    """

    def __init__(
        self,
        image_size: int,
        estimator: Estimator,
        *,
        pick: Estimator | None = None,
        mapping: Callable[[Tensor], Tensor] = softmax,
        num_messages: int = 256,
        dim: int = 256,
        num_units: int = 512,
        scale: float = 10.0,
        entropy: float = 0.1,
    ) -> None:
        super().__init__()
        self.sender = Sender(image_size, num_messages, dim=dim, num_units=num_units, scale=scale)
        self.receiver = Receiver(image_size, num_messages, dim=dim)
        self.estimator = estimator
        self.pick = pick
        self.mapping = mapping
        self.entropy = entropy

    def forward(self, candidates: Tensor, target: Tensor) -> GameLosses:
        """The losses of games.

        Args:
            candidates: the images of each game, (B, K, F).
            target: which of them the sender sees, (B,).
        """
        estimate, latent = self.play(candidates, target)
        return GameLosses(estimate.surrogate - self.entropy * latent.entropy(), estimate.calls)

    def play(self, candidates: Tensor, target: Tensor, estimator: Estimator | None = None) -> tuple[Estimate, Choice]:
        """The expected loss over messages by this or another estimator, and the distribution of the message."""
        seen = candidates[torch.arange(len(target), device=target.device), target]
        latent = Choice(self.sender(seen), self.mapping)
        return (estimator or self.estimator)(latent, self.listen(candidates, target), seen), latent

    def listen(self, candidates: Tensor, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of each pair of a message and a game."""

        def loss_given(message_PM: Tensor, example_P: Tensor) -> Tensor:
            scores_PK = self.receiver(message_PM, example_P, candidates)
            right_P = target[example_P]
            if self.pick is None:
                return F.cross_entropy(scores_PK, right_P, reduction="none")
            pick = Choice(scores_PK)
            success = self.pick(pick, lambda picked, pair: -picked.gather(1, right_P[pair, None]).squeeze(1))
            rewarded = self.entropy * pick.entropy()
            return success.surrogate - (rewarded - rewarded.detach())

        return loss_given


def _products(vectors_UF: Tensor, which_P: Tensor, example_P: Tensor, candidates_BKF: Tensor) -> Tensor:
    """The products (P, K) of pairs, a vector and the candidates of a game each, in one batched product."""
    num_games = len(candidates_BKF)
    if 2 * len(which_P) >= num_games * len(vectors_UF):
        # Most of all products are wanted, or there are no games.
        products_UBK = (vectors_UF @ candidates_BKF.flatten(0, 1).mT).unflatten(1, candidates_BKF.shape[:2])
        return products_UBK[which_P, example_P]
    counts_B = example_P.bincount(minlength=num_games)
    order_P = example_P.argsort(stable=True)
    # Which pair of its game each is.
    place_P = torch.empty_like(example_P)
    first_B = counts_B.cumsum(0) - counts_B
    place_P[order_P] = torch.arange(len(order_P), device=order_P.device) - first_B[example_P[order_P]]
    width = int(counts_B.max())
    cell_P = example_P * width + place_P
    # A game with fewer pairs than others has the first vector in their place, whose products are not used.
    which = which_P.new_zeros(num_games * width).index_copy(0, cell_P, which_P)
    vectors_BWF = F.embedding(which.view(num_games, width), vectors_UF)
    return (vectors_BWF @ candidates_BKF.mT).flatten(0, 1)[cell_P]
