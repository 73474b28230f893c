"""Training steps of the signalling game with every estimator, behind a sender that has learned to be nearly sure.

Two estimators are the benchmark's own: one that counts rows, and the baseline that sums over the union of supports.

Shapes: B games, K candidates of a game, F numbers of an image.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.timing import time_interleaved
from anymax.bench.latent.settings import Settings
from anymax.latent import (
    Choice,
    DenseMarginal,
    Estimator,
    Gumbel,
    Latent,
    LossGiven,
    ScoreFunction,
    SparseMarginal,
    SumAndSample,
)
from anymax.latent.estimator import RowEstimate
from anymax.mappings import softmax, sparsemax
from anymax.models.images.signalling_game import SignallingGame


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


NUM_BATCHES = 4


NUM_KINDS = 64


# How long an image is as a vector, and how far one is from the others of its kind.
IMAGE_NORM, NOISE = 3.0, 0.1


SENDER_LR = 5e-3


# How many messages an image has in the mean once the sender is trained.
WANTED_SUPPORT = 3.0


SINGLE = "ScoreFunction"


SPARSE = "SparseMarginal"


UNION = "union of supports"


ESTIMATORS: dict[str, tuple[Callable[[], Estimator], Callable[[Tensor], Tensor]]] = {
    SINGLE: (ScoreFunction, softmax),
    'ScoreFunction("sample")': (lambda: ScoreFunction("sample"), softmax),
    "Gumbel": (Gumbel, softmax),
    "SumAndSample": (SumAndSample, softmax),
    SPARSE: (SparseMarginal, sparsemax),
    UNION: (UnionOfSupports, sparsemax),
    "DenseMarginal": (DenseMarginal, softmax),
}


class Games(NamedTuple):
    """The candidates of each game (B, K, F), and which of them is the target (B,)."""

    candidates: Tensor
    target: Tensor


class GameTrainee:
    """Called, it takes a step with one estimator, forward, backward and Adam, and returns the loss.

    The learning rate is zero, so that the sender stays as it is however many steps are timed.
    """

    def __init__(self, game: SignallingGame, estimator: Estimator, mapping: Callable[[Tensor], Tensor]) -> None:
        self.game = copy.deepcopy(game)
        self.estimator = CountedRows(estimator)
        self.game.estimator, self.game.mapping = self.estimator, mapping
        self.optimizer = torch.optim.Adam(self.game.parameters(), lr=0.0, fused=True)
        self.num_games = 0

    def step(self, games: Games) -> float:
        loss = self.game(*games).losses.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_games += len(games.target)
        return loss.item()

    @property
    def rows(self) -> float:
        """How many rows reached the receiver for each game so far."""
        return self.estimator.rows / self.num_games


def compare_estimators(job: str, settings: Settings) -> Comparison:
    """One sample is the baseline."""
    draw = draws_games(settings)
    game = trained_game(settings, draw)
    batches = [draw() for _ in range(NUM_BATCHES)]
    trainees = {name: GameTrainee(game, make(), mapping) for name, (make, mapping) in ESTIMATORS.items()}
    for trainee in trainees.values():
        for games in batches:
            trainee.step(games)
    rows = {name: trainee.rows for name, trainee in trainees.items()}
    runs = {name: _in_turn(trainee, batches) for name, trainee in trainees.items()}
    timings = time_interleaved(runs, baseline=SINGLE, budget=settings.budget)
    return Comparison(job, tuple(Entry(name, timings[name], rows=rows[name]) for name in runs), rows="rows per game")


def draws_games(settings: Settings) -> Callable[[], Games]:
    """A function that draws a batch of games about images of some kinds, which differ within a game."""
    generator = torch.Generator().manual_seed(0)
    shape = (settings.games, settings.candidates)
    num_kinds = max(NUM_KINDS, settings.candidates)
    kinds = torch.randn(num_kinds, settings.image_size, generator=generator)

    def draw() -> Games:
        kind = torch.rand(settings.games, num_kinds, generator=generator).topk(settings.candidates).indices
        images = kinds[kind] + NOISE * torch.randn(*shape, settings.image_size, generator=generator)
        images *= IMAGE_NORM / images.norm(dim=-1, keepdim=True)
        return Games(images, torch.randint(settings.candidates, (settings.games,), generator=generator))

    return draw


def trained_game(settings: Settings, draw: Callable[[], Games]) -> SignallingGame:
    """A game that was played for a while, its scores then scaled so that an image has `WANTED_SUPPORT` messages."""
    torch.manual_seed(0)
    game = SignallingGame(
        settings.image_size,
        SparseMarginal(),
        mapping=sparsemax,
        num_messages=settings.messages,
        dim=settings.dim,
        num_units=settings.units,
    )
    optimizer = torch.optim.Adam(game.parameters(), SENDER_LR, fused=True)
    for _ in range(settings.sender_steps):
        optimizer.zero_grad()
        game(*draw()).losses.mean().backward()
        optimizer.step()
    images = torch.cat([draw().candidates.flatten(0, 1) for _ in range(2)])
    with torch.no_grad():
        game.sender.score.weight *= sharpness(game.sender(images), WANTED_SUPPORT)
    return game


def sharpness(scores: Tensor, support: float) -> float:
    """The factor of the scores at which sparsemax leaves `support` entries above zero, in the mean."""
    low, high = 1e-6, 1e6
    for _ in range(50):
        middle = (low * high) ** 0.5
        is_wide = float((sparsemax(scores * middle) > 0).sum(-1).double().mean()) > support
        low, high = (middle, high) if is_wide else (low, middle)
    return high


def _in_turn(trainee: GameTrainee, batches: Sequence[Games]) -> Callable[[], float]:
    """Steps that take one batch after another."""
    taken = 0

    def step() -> float:
        nonlocal taken
        taken += 1
        return trainee.step(batches[taken % len(batches)])

    return step
