"""The signalling game as a task: images, games drawn of them, and how often the receiver finds the right one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.data.batches.batches import generator_of
from anymax.data.images.games import GameBatches, Games, draws_games
from anymax.data.images.images import Images
from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.latent import Choice
from anymax.latent.marginal import sum_by_example
from anymax.mappings import softmax, sparsemax
from anymax.models.images.signalling_game import GameLosses, SignallingGame
from anymax.training.latent_view import Gallery, LatentView, count_by_class, count_sizes
from anymax.training.task import Step
from anymax.training.tasks.image_task import COLUMNS, EVALUATION_SEED, ImageTask, Means, parts
from anymax.training.tasks.signalling.config import SignallingConfig

# Games that every evaluation plays.
NUM_GAMES: dict[Split, int] = {"train": 1024, "valid": 1024, "test": 9984}
MEASURED_AT_ONCE = 64


class SignallingTask(ImageTask):
    """Learn a language in which one image is found among others."""

    item = "game"

    def __init__(self, config: SignallingConfig, ranks: Ranks, *, seed: int) -> None:
        super().__init__(config.images, ranks, seed=seed)
        self.config = config
        train = self.images["train"]
        self._middle = train.numbers(torch.arange(len(train))).mean(0) if config.centred else None
        # Made before anything is trained: a split with too few images is refused here.
        self.draws = {
            split: draws_games(images.labels, config.num_candidates, config.distinct)
            for split, images in self.images.items()
        }
        self.model: SignallingGame = self.make_model()

    def make_model(self) -> SignallingGame:
        config, size = self.config, self.images["train"].size
        return SignallingGame(
            size,
            config.estimator.build(size),
            pick=None if config.pick is None else config.pick.build(size),
            mapping={"softmax": softmax, "sparsemax": sparsemax}[config.mapping],
            num_messages=config.num_messages,
            dim=config.dim,
            num_units=config.num_units,
            scale=config.scale,
            entropy=config.entropy,
        )

    def batches(self, split: Split) -> GameBatches:
        config, ranks = self.config, self.ranks
        return GameBatches(
            self.images[split].labels,
            config.num_candidates,
            config.batch_size,
            num_batches=config.num_batches,
            distinct=config.distinct,
            seed=self.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def seen(self, split: Split, rows: Tensor) -> Tensor:
        """Some of the images as sender and receiver see them, float32 (..., F)."""
        numbers = self.images[split].numbers(rows)
        return numbers if self._middle is None else F.normalize(numbers - self._middle, dim=-1)

    def step(self, model: nn.Module, batch: Games, carry: None) -> Step:
        device = self.ranks.device
        found: GameLosses = model(self.seen("train", batch.candidates).to(device), batch.target.to(device))
        calls = float(found.calls.double().mean()) if len(batch.target) else 0.0
        return Step(found.losses.sum(), len(batch.target), log={"calls": calls})

    @torch.no_grad()
    def latent_view(self) -> LatentView:
        images, config = self.images["test"], self.config
        messages, sizes = self._messages()
        return LatentView(
            "messages",
            None if images.side is None else _senders(messages, images),
            count_by_class(images.labels, messages, config.num_messages),
            count_sizes(sizes) if config.mapping == "sparsemax" else {},
        )

    def _messages(self) -> tuple[Tensor, Tensor]:
        """For every image of the test split the likeliest message, and how many have a probability."""
        messages, sizes = [], []
        for rows in parts(len(self.images["test"]), 500):
            latent = Choice(self.model.sender(self.seen("test", rows).to(self.ranks.device)), self.model.mapping)
            messages.append(latent.scores.argmax(-1).cpu())
            sizes.append((latent.probs > 0).sum(-1).cpu())
        return torch.cat(messages), torch.cat(sizes)

    def measure(self, model: nn.Module, split: Split) -> dict[str, float]:
        """How the game is won.

        `success` is that of the likeliest message and the likeliest candidate, `expected_success` that of messages as
        they are drawn. `messages` have a probability for an image, `used` are the likeliest for some image of all that
        were played, `calls` are those of the run's estimator for a game.
        """
        assert isinstance(model, SignallingGame)
        means = Means()
        games = self.draws[split](NUM_GAMES[split], generator_of(EVALUATION_SEED, 0, split))
        used = set[int]()
        for rows in parts(len(games.target), MEASURED_AT_ONCE):
            candidates, target = self.seen(split, games.candidates[rows]), games.target[rows]
            estimate, latent = model.play(candidates, target)
            likeliest = latent.scores.argmax(-1)
            used.update(likeliest.tolist())
            support = latent.support()
            is_right = model.receiver(support.values, support.example, candidates).argmax(-1) == target[support.example]
            is_mode = support.values.argmax(-1) == likeliest[support.example]
            means.add(
                {
                    "loss": estimate.loss,
                    "success": sum_by_example((is_mode & is_right).float(), support.example, len(rows)),
                    "expected_success": sum_by_example(support.probs * is_right, support.example, len(rows)),
                    "messages": (latent.probs > 0).sum(-1),
                    "calls": estimate.calls,
                }
            )
        return {**means.means(), "used": float(len(used))}


def _senders(messages: Tensor, images: Images) -> Gallery:
    """Some of the images that the most frequent messages stand for."""
    frequent = messages.bincount().topk(min(8, int(messages.unique().numel()))).indices
    made, rows = [], []
    for message in frequent.tolist():
        found = (messages == message).nonzero().squeeze(1)[:COLUMNS]
        blank = torch.zeros(COLUMNS - len(found), images.size)
        made.append(torch.cat([images.numbers(found), blank]))
        rows.append(f"message {message}")
    return Gallery("Images of the most frequent messages", torch.stack(made), rows)
