"""Games of images: some candidates, one of which is the target, drawn anew for every batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import Epochs, generator_of
from anymax.distributed.ranks import share


class Games(NamedTuple):
    """The rows of the candidates of each game (B, K), and which of them is the target (B,)."""

    candidates: Tensor
    target: Tensor


class GameBatches(Epochs[Games]):
    """Batches of games drawn from a table of images.

    Args:
        labels: what each image shows, (N,).
        num_candidates: images of a game.
        batch_size: games of a batch, over all ranks; a rank's share may be empty.
        num_batches: how many batches are called an epoch.
        distinct: "labels" has each image of a game show something else; "images" only has them differ.
        seed: decides all games.
    """

    def __init__(
        self,
        labels: Tensor,
        num_candidates: int,
        batch_size: int,
        *,
        num_batches: int,
        distinct: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_counts(num_candidates=num_candidates, batch_size=batch_size, num_batches=num_batches)
        self.draw = draws_games(labels, num_candidates, distinct)
        self.num_images = len(labels)
        self.num_candidates = num_candidates
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.distinct = distinct
        self.seed = seed

    def length(self, epoch: int) -> int:
        return self.num_batches

    def _batch(self, position: int) -> Games:
        number = self.epoch * self.num_batches + position
        games = self.draw(self.batch_size, generator_of(self.seed, number, "games"))
        first, end = share(self.batch_size, self.rank, self.world_size)
        return Games(games.candidates[first:end], games.target[first:end])

    def _made_of(self) -> dict[str, Any]:
        sizes = {"num_images": self.num_images, "num_candidates": self.num_candidates, "batch_size": self.batch_size}
        return {**sizes, "num_batches": self.num_batches, "distinct": self.distinct, "seed": self.seed}


def draws_games(labels: Tensor, num_candidates: int, distinct: str) -> Callable[[int, torch.Generator], Games]:
    """A function that draws a number of games with a generator."""
    if distinct not in ("labels", "images"):
        raise ValueError(f'distinct must be "labels" or "images", got {distinct!r}')
    by_label = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    enough = len(by_label) if distinct == "labels" else len(labels)
    if num_candidates > enough:
        raise ValueError(
            f"num_candidates must be at most the {enough} different {distinct} that there are, got {num_candidates}"
        )

    def of_labels(number: int, generator: torch.Generator) -> Tensor:
        chosen = _different(number, num_candidates, len(by_label), generator)
        sizes = torch.tensor([len(rows) for rows in by_label])
        starts = sizes.cumsum(0) - sizes
        within = (torch.rand(chosen.shape, generator=generator, dtype=torch.float64) * sizes[chosen]).long()
        return torch.cat(by_label)[starts[chosen] + within]

    def of_images(number: int, generator: torch.Generator) -> Tensor:
        return _different(number, num_candidates, len(labels), generator)

    def draw(number: int, generator: torch.Generator) -> Games:
        candidates = (of_labels if distinct == "labels" else of_images)(number, generator)
        return Games(candidates, torch.randint(num_candidates, (number,), generator=generator))

    return draw


def _different(number: int, each: int, below: int, generator: torch.Generator) -> Tensor:
    """Rows (number, each) of different numbers below a bound, all equally likely in every order."""
    if below < each**2:
        return torch.rand(number, below, generator=generator).topk(each).indices
    # Among many, two numbers of a row are seldom the same; such a row is drawn again.
    rows = torch.randint(below, (number, each), generator=generator)
    while True:
        ordered = rows.sort(1).values
        again = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if not bool(again.any()):
            return rows
        rows[again] = torch.randint(below, (int(again.sum()), each), generator=generator)
