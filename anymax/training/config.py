"""The configuration of a run: what is trained, how, for how long, and what is kept of it. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from anymax.checks import check_counts, check_positive, given
from anymax.plain import from_plain, shown
from anymax.training.optim.averages import ExponentialAverageConfig
from anymax.training.optim.optimizers import (
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    AveragedSGDConfig,
    BertAdamConfig,
    NesterovConfig,
    SGDConfig,
)
from anymax.training.optim.schedules import Constant, Cosine, CosineCycles, InverseSquareRoot, Linear, NonMonotone
from anymax.training.task_config import TaskConfig
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.dirichlet.config import DirichletConfig
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig
from anymax.training.tasks.masked_language_modeling.config import MaskedLanguageModelingConfig
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.semi_supervised.config import SemiSupervisedConfig
from anymax.training.tasks.signalling.config import SignallingConfig
from anymax.training.tasks.translation.config import TranslationConfig

# The tasks that a config.json may name; a task of a user's own file joins when the file is given by name.
TASKS: tuple[type[TaskConfig], ...] = (
    LanguageModelingConfig,
    DirichletConfig,
    SemiSupervisedConfig,
    SignallingConfig,
    BitVectorsConfig,
    TranslationConfig,
    MaskedLanguageModelingConfig,
    PostEditingConfig,
)
Precision = Literal["float32", "bfloat16", "float16"]
Parallel = Literal["ddp", "fsdp"]
Device = Literal["auto", "cpu", "cuda"]

TOY_STEPS = 6
# The steps of every epoch are counted before the first.
MOST_EPOCHS = 100_000


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    Args:
        task: what is learned from what.
        optimizer: how parameters follow their gradients.
        schedule: how the optimizer's learning rate changes over the run.
        steps: how many steps to train; either this or `epochs`.
        epochs: how often to go over the data; part of an epoch is a part of its steps.
        accumulate: batches per step. A step never reaches over the end of an epoch, so its last one may have fewer.
        clip: the largest norm of the gradients; larger ones are scaled down to it.
        seed: decides all randomness.
        precision: what the model computes in; parameters and evaluation stay in float32.
        compile: whether torch compiles the model.
        parallel: what several processes do: "ddp" copies the model to each, "fsdp" shares it among them.
        device: where to compute; "auto" takes a GPU where there is one.
        threads: threads of each process on the CPU; by default torch's own choice.
        log_every: steps from record to record.
        evaluate_every: steps from evaluation to evaluation, or "epoch" to evaluate whenever an epoch ends; None
            evaluates at the end only.
        checkpoint_every: steps from checkpoint to checkpoint.
        average: an average of the parameters over steps, which is evaluated and saved in their place; by default none.
        keep: how many of the last checkpoints stay; the best stays besides.
        tensorboard: whether records are written for TensorBoard too.
        start: the folder of a run whose best weights this one begins with; its task must be the same.
        stop: early stopping: ends the run before its last step, by the results of evaluations. Where the optimizer
            averages, only evaluations since averaging began count.

    Example:
        >>> from dataclasses import replace
        >>> from anymax import recipes
        >>> config = recipes.find("sotu.adaptive_tied")()
        >>> own = replace(config, epochs=1.0, seed=2, evaluate_every="epoch")
        >>> own.epochs, own.task == config.task, own.toy().steps
        (1.0, True, 6)
    """

    task: TaskConfig
    optimizer: (
        NesterovConfig | AdagradConfig | AdamConfig | AdamWConfig | BertAdamConfig | SGDConfig | AveragedSGDConfig
    )
    schedule: Constant | Cosine | CosineCycles | InverseSquareRoot | Linear
    _: KW_ONLY
    steps: int | None = None
    epochs: float | None = None
    accumulate: int = 1
    clip: float | None = None
    seed: int = 1
    precision: Precision = "float32"
    compile: bool = False
    parallel: Parallel = "ddp"
    device: Device = "auto"
    threads: int | None = None
    log_every: int = 20
    evaluate_every: int | Literal["epoch"] | None = None
    checkpoint_every: int = 500
    average: ExponentialAverageConfig | None = None
    keep: int = 2
    tensorboard: bool = False
    start: Path | None = None
    stop: NonMonotone | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"exactly one of steps and epochs must be given, got {self.steps} and {self.epochs}")
        check_counts(
            accumulate=self.accumulate, log_every=self.log_every, **given(steps=self.steps, threads=self.threads)
        )
        check_counts(checkpoint_every=self.checkpoint_every, keep=self.keep)
        self._check_evaluations()
        check_positive(**given(epochs=self.epochs, clip=self.clip))
        if self.epochs is not None and self.epochs > MOST_EPOCHS:
            raise ValueError(f"epochs must be at most {MOST_EPOCHS:,}, got {self.epochs:,.0f}; give steps instead")
        check_counts(0, seed=self.seed)
        for name, choices in (("precision", Precision), ("parallel", Parallel), ("device", Device)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, got {getattr(self, name)!r}")
        if self.average is not None and self.optimizer.waits_for is not None:
            raise ValueError(
                f"average must be None with {type(self.optimizer).__name__}, which averages by itself, got "
                f"{self.average}"
            )
        if (self.precision, self.parallel) == ("float16", "fsdp"):
            raise ValueError("precision must be 'float32' or 'bfloat16' with parallel 'fsdp', got 'float16'")
        if self.steps is not None:
            self.schedule.check_fits(self.steps)

    def total_steps(self, num_batches: Callable[[int], int]) -> int:
        """How many steps the run takes.

        Args:
            num_batches: how many batches an epoch has, by its number from 0.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        whole = math.floor(self.epochs)
        steps = [math.ceil(num_batches(epoch) / self.accumulate) for epoch in range(whole + 1)]
        # A tenth of 30 is a little more than 3 in floating point.
        return max(1, sum(steps[:whole]) + math.ceil((self.epochs - whole) * steps[whole] - 1e-6))

    def toy(self) -> RunConfig:
        """The same recipe at a size for tests: little data, a small model, a handful of steps."""
        return replace(
            self,
            task=self.task.toy(),
            optimizer=self.optimizer.toy(),
            schedule=self.schedule.toy(),
            steps=TOY_STEPS,
            epochs=None,
            accumulate=min(self.accumulate, 2),
            precision="float32",
            compile=False,
            threads=None,
            log_every=1,
            evaluate_every=3,
            checkpoint_every=2,
            start=None,
        )

    def _check_evaluations(self) -> None:
        """Refuse an interval that is none, and what waits for evaluations that never come."""
        every = self.evaluate_every
        if isinstance(every, str):
            if every != "epoch":
                raise ValueError(f"evaluate_every must be a number of steps, 'epoch' or None, got {every!r}")
        else:
            check_counts(**given(evaluate_every=every))
        for name, trigger in (("stop", self.stop), ("optimizer.begin", self.optimizer.waits_for)):
            if trigger is not None and trigger.needs_evaluations and every is None:
                raise ValueError(
                    f"evaluate_every must be given for {name} {trigger}, which waits for evaluations, got None; "
                    'evaluate_every="epoch" evaluates once an epoch'
                )


def run_config(values: Any, tasks: Collection[type[TaskConfig]] = ()) -> RunConfig:
    """The config that `as_plain` gave these values for.

    Args:
        values: what `as_plain` gave, as a run's config.json holds.
        tasks: further tasks that it may name.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import as_plain, run_config
        >>> config = recipes.find("sotu.adaptive_tied")()
        >>> run_config(as_plain(config)) == config
        True
    """
    known = (*TASKS, *tasks)
    names = [each.__name__ for each in known]
    task = values.get("task") if isinstance(values, dict) else None
    kind = task.get("kind") if isinstance(task, dict) else None
    if isinstance(kind, str) and kind not in names:
        raise ValueError(
            f"task.kind must be one of {', '.join(names)}, got {shown(kind)}; if it is your own task, name its "
            "file with --from FILE.py"
        )
    return from_plain(RunConfig, values, kinds={TaskConfig: known})
