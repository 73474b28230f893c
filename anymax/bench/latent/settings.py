"""What the benchmark of discrete latents measures, and for how long."""

from dataclasses import dataclass

from anymax.bench.harness.timing import Budget

GAME_BUDGET = Budget(seconds=60.0, rounds=100)
SLOW_BUDGET = Budget(seconds=60.0, rounds=5)


@dataclass(frozen=True)
class Settings:
    """Sizes and budgets.

    Args:
        games: of a batch; `candidates` images of `image_size` numbers each.
        messages: of the sender, whose vectors have `dim` numbers and whose learned function has `units` sigmoids.
        sender_steps: how long the sender is trained before anything is timed.
        images: of a batch of the costly decoder, each with one of `codes` codes.
        decoder_width: of its hidden layer; each of `image_size` pixels has `pixel_size` numbers.
        structures: examples of a batch of bit-vectors or sequences.
        bits: of a bit-vector.
        sequence: how many positions a sequence has, and how many tags there are.
        top: how many of the best bit-vectors are looked for.
        threads: torch's number of threads; None leaves it as it is.
        budget: of the comparison of estimators.
        slow_budget: of a comparison with something that takes seconds.
    """

    games: int = 64
    candidates: int = 16
    image_size: int = 784
    messages: int = 256
    dim: int = 256
    units: int = 512
    sender_steps: int = 300
    images: int = 16
    codes: int = 256
    decoder_width: int = 128
    pixel_size: int = 5
    structures: int = 64
    bits: int = 128
    sequence: tuple[int, int] = (30, 8)
    top: int = 10
    threads: int | None = None
    budget: Budget = GAME_BUDGET
    slow_budget: Budget = SLOW_BUDGET

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return 5


def quick(threads: int | None = None) -> Settings:
    """Half a minute in all: the estimators' steps at full size, smaller batches of the rest, few rounds."""
    return Settings(
        sender_steps=150,
        images=2,
        codes=64,
        structures=8,
        bits=32,
        sequence=(10, 5),
        threads=threads,
        budget=Budget(seconds=6.0, rounds=20),
        slow_budget=Budget(seconds=2.0, rounds=5, least=2),
    )
