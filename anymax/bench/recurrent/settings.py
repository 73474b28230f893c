"""What the recurrent benchmark measures: recipes of AWD-LSTMs, and how many steps of them."""

from dataclasses import dataclass, field, replace

from anymax.bench.harness.timing import Budget
from anymax.data.batches.contiguous import draw_lengths
from anymax.models import AWDLSTMConfig
from anymax.recipes import merity, yang
from anymax.training.config import RunConfig
from anymax.training.tasks.language_modeling.config import Contiguous, LanguageModelingConfig
from anymax.vocabulary import MixtureOutputConfig

JOB_BUDGET = Budget(seconds=40.0, rounds=15, least=3)


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        words: of the vocabulary.
        network: a recipe of an AWD-LSTM with one table for input and output, and batches of drawn lengths.
        mixture: the same with a mixture of softmaxes.
        mixture_block: words of a row in its steps.
        drawn: how many steps of drawn lengths are timed.
        together: so many of them make one ratio.
        threads: torch's number of threads; None leaves it as it is.
        budget: of one comparison of steps.
        part_steps: how many steps are timed part by part; the medians are shown.
    """

    words: int = 10_000
    network: RunConfig = field(default_factory=merity.ptb)
    mixture: RunConfig = field(default_factory=yang.ptb)
    mixture_block: int = 35
    drawn: int = 20
    together: int = 4
    threads: int | None = None
    budget: Budget = JOB_BUDGET
    part_steps: int = 5

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")
        if self.drawn < 2 * self.together:
            raise ValueError(f"drawn must be at least 2 * together, {2 * self.together}, got {self.drawn}")

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return 4

    @property
    def lengths(self) -> list[int]:
        """Drawn as in a training."""
        batching = _batching(self.network)
        assert batching.random_lengths is not None
        return draw_lengths(batching.random_lengths, batching.block, self.drawn, self.network.seed, epoch=0).tolist()


def quick(threads: int | None = None) -> Settings:
    """Half a minute in all: a quarter of the width, half the rows and half their words, few rounds."""
    return Settings(
        words=2000,
        network=_smaller(merity.ptb()),
        mixture=_smaller(yang.ptb()),
        mixture_block=20,
        drawn=12,
        threads=threads,
        budget=Budget(seconds=4.0, rounds=10, least=2),
        part_steps=3,
    )


def shape_of(config: RunConfig) -> tuple[int, int]:
    """Rows of a batch and words of a row."""
    batching = _batching(config)
    return batching.batch_size, batching.block


def body_of(config: RunConfig) -> AWDLSTMConfig:
    body = LanguageModelingConfig.of(config.task).model.body
    assert isinstance(body, AWDLSTMConfig)
    return body


def widths_of(config: RunConfig) -> str:
    body = body_of(config)
    return " / ".join(map(str, (body.input_dim, *body.widths)))


def _batching(config: RunConfig) -> Contiguous:
    batching = LanguageModelingConfig.of(config.task).batching
    assert isinstance(batching, Contiguous)
    return batching


def _smaller(config: RunConfig) -> RunConfig:
    """A recipe at the sizes of `quick`."""
    task, body, batching = LanguageModelingConfig.of(config.task), body_of(config), _batching(config)
    model = task.model
    dims = {name: getattr(body, name) // 4 for name in ("input_dim", "hidden_dim", "output_dim")}
    output = model.output
    if isinstance(output, MixtureOutputConfig):
        output = replace(output, num_experts=5, dim=dims["input_dim"])
    batching = replace(batching, batch_size=batching.batch_size // 2, block=batching.block // 2)
    model = replace(model, body=replace(body, **dims), output=output)
    return replace(config, task=replace(task, model=model, batching=batching))
