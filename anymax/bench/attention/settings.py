"""What the attention benchmark measures, on which device, and for how long."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from anymax.bench.harness import peers
from anymax.bench.harness.timing import Budget
from anymax.models import TransformerConfig

Device = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16", "float16"]
CASE_BUDGET = Budget(seconds=12.0, rounds=20)
SWEEP_BUDGET = Budget(seconds=4.0, rounds=5, least=2)
STEP_BUDGET = Budget(seconds=30.0, rounds=10)
# The sizes of Vaswani et al.'s base model, of which two of six layers on each side are enough for a ratio.
BODY = TransformerConfig(
    512, num_layers=2, num_heads=8, ffn_dim=2048, dropout=0.1, attention_dropout=0.1, norm_first=False
)


class Shape(NamedTuple):
    """Of one call of attention; as many keys as queries."""

    batch: int
    heads: int
    length: int

    def __str__(self) -> str:
        return "x".join(map(str, self))


class Batch(NamedTuple):
    """Of a step: pairs of sentences, the tokens of each, and the words they are drawn from."""

    rows: int
    length: int
    words: int


SHAPES = (Shape(1, 8, 2048), Shape(4, 8, 512))
TRANSLATION = Shape(16, 8, 128)
BATCH = Batch(8, 128, 10_000)


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        shapes: compared with torch's attention as they are, with dropout and causal; the last with the package too.
        translation: compared with eager attention, with dropout.
        width: numbers of a head.
        densities: wanted shares of the probabilities that are not zero, rising; the first also of the sparse heads
            among dense ones, the second of the whole steps.
        dense: the wanted share in a dense head.
        dropout: the rate at which probabilities are dropped.
        alphas: the first and the last head's where alpha is learned, the others' evenly between them.
        body: of each side of the model whose whole steps are timed.
        batch: of these steps.
        peers: also time the entmax package, if it is installed.
        checked_entries: of the scores on which the peer's number of bisection steps is chosen.
        device: where everything runs.
        precision: of queries, keys and values; of whole steps, that of autocast.
        threads: torch's number of threads; None leaves it as it is.
        budget: of one comparison of attention.
        sweep_budget: of one choice of the peer's `k`.
        step_budget: of the comparison of whole steps.
        part_steps: how many steps are timed part by part; the medians are shown.
    """

    shapes: tuple[Shape, ...] = SHAPES
    translation: Shape = TRANSLATION
    width: int = 64
    densities: tuple[float, float, float] = (0.02, 0.1, 0.5)
    dense: float = 0.999
    dropout: float = 0.1
    alphas: tuple[float, float] = (1.25, 1.75)
    body: TransformerConfig = BODY
    batch: Batch = BATCH
    peers: bool = True
    checked_entries: int = 1 << 20
    device: Device = "cpu"
    precision: Precision = "float32"
    threads: int | None = None
    budget: Budget = CASE_BUDGET
    sweep_budget: Budget = SWEEP_BUDGET
    step_budget: Budget = STEP_BUDGET
    part_steps: int = 2

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")
        for name, choices in (("device", Device), ("precision", Precision)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, got {getattr(self, name)!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device must be 'cpu' where torch finds no GPU, got 'cuda'; `anymax doctor` lists what it finds"
            )

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype

    @property
    def with_peers(self) -> bool:
        return self.peers and peers.is_installed()

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        of_shape = 3 + len(self.densities) + 1
        of_peers = len(self.densities) + 1 if self.with_peers else 0
        return len(self.shapes) * of_shape + 1 + of_peers + 1


def quick(
    *, device: Device = "cpu", precision: Precision = "float32", threads: int | None = None, peers: bool = True
) -> Settings:
    """Half a minute in all: a quarter of the lengths and heads or rows, few rounds."""
    return Settings(
        shapes=(Shape(1, 2, 512), Shape(1, 8, 128)),
        translation=Shape(8, 4, 64),
        body=TransformerConfig(
            128, num_layers=1, num_heads=4, ffn_dim=512, dropout=0.1, attention_dropout=0.1, norm_first=False
        ),
        batch=Batch(4, 64, 2000),
        peers=peers,
        checked_entries=1 << 16,
        device=device,
        precision=precision,
        threads=threads,
        budget=Budget(seconds=0.7, rounds=20, least=2),
        sweep_budget=Budget(seconds=0.2, rounds=3, least=2),
        step_budget=Budget(seconds=2.0, rounds=8, least=2),
        part_steps=2,
    )
