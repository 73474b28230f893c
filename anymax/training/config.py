"""The configuration of a run: what is trained, how, for how long, and what is kept of it. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, get_args

from anymax.training.checks import check_counts, check_positive
from anymax.training.language_modeling_config import LanguageModeling
from anymax.training.optimizers import Adagrad, Adam, AdamW, Nesterov
from anymax.training.schedules import Constant, Cosine, CosineCycles, InverseSquareRoot

# A new task joins by one more member here: a config with `toy()` and `build(folder, ranks, *, seed, announce) -> Task`.
TaskConfig = LanguageModeling
Precision = Literal["float32", "bfloat16", "float16"]
Parallel = Literal["ddp", "fsdp"]
Device = Literal["auto", "cpu", "cuda"]

TOY_STEPS = 6


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    Args:
        task: what is learned from what.
        optimizer: how parameters follow their gradients.
        schedule: how the optimizer's rate changes over the run.
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
        evaluate_every: steps from evaluation to evaluation; None evaluates at the end only.
        checkpoint_every: steps from checkpoint to checkpoint.
        keep: how many of the last checkpoints stay; the best stays besides.
        tensorboard: whether records are written for TensorBoard too.
    """

    task: TaskConfig
    optimizer: Nesterov | Adagrad | Adam | AdamW
    schedule: Constant | Cosine | CosineCycles | InverseSquareRoot
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
    evaluate_every: int | None = None
    checkpoint_every: int = 500
    keep: int = 2
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"exactly one of steps and epochs must be given, got {self.steps} and {self.epochs}")
        check_counts(steps=self.steps, accumulate=self.accumulate, threads=self.threads, log_every=self.log_every)
        check_counts(evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every, keep=self.keep)
        check_positive(epochs=self.epochs, clip=self.clip)
        check_counts(0, seed=self.seed)
        for name, choices in (("precision", Precision), ("parallel", Parallel), ("device", Device)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, got {getattr(self, name)!r}")
        if (self.precision, self.parallel) == ("float16", "fsdp"):
            raise ValueError("precision must be 'float32' or 'bfloat16' with parallel 'fsdp', got 'float16'")
        if self.steps is not None:
            self.schedule.check_fits(self.steps)

    def total_steps(self, batches_per_epoch: int) -> int:
        """How many steps the run takes where an epoch has so many batches."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        steps_per_epoch = math.ceil(batches_per_epoch / self.accumulate)
        # A tenth of 30 is a little more than 3 in floating point.
        return max(1, math.ceil(self.epochs * steps_per_epoch - 1e-6))

    def toy(self) -> RunConfig:
        """The same recipe at a size for tests: little data, a small model, a handful of steps."""
        return replace(
            self,
            task=self.task.toy(),
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
        )
