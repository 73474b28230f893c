"""The training loop: one for every task, from the first step or from a checkpoint, to the same numbers."""

from __future__ import annotations

import hashlib
import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.distributed.sharding import accumulating, wrap
from anymax.training.checkpoint.checkpoints import Checkpoint, Checkpoints
from anymax.training.checkpoint.saver import Place, Saver
from anymax.training.checkpoint.tensors import num_parameters
from anymax.training.config import RunConfig
from anymax.training.optim.updater import Updater
from anymax.training.progress import Evaluated, Progress, Totals
from anymax.training.reporting import EvaluationRecord, Outcome, Reporter, Silent, Start, TrainRecord
from anymax.training.run_folder.folder import CHECKPOINTS
from anymax.training.run_folder.lock import FolderLock
from anymax.training.run_folder.metrics import Metrics, read_metrics
from anymax.training.signals import StopSignals
from anymax.training.task import Task

SPLIT: Split = "valid"


class DivergedError(Exception):
    """Numbers of the run are infinite or undefined."""


class Loop:
    """A run in memory, which `go` trains to its end.

    Args:
        task: with the bare model.
        reporter: receives steps, evaluations and messages, on the first rank.
        lock: of the folder, on the first rank.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        task: Task,
        ranks: Ranks,
        reporter: Reporter,
        lock: FolderLock | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.task = task
        self.ranks = ranks
        self.lock = lock
        self.reporter = reporter if ranks.is_first else Silent()
        self.model = wrap(task, ranks, config.parallel, compile=config.compile)
        self.updater = Updater(task.model, config, ranks, task.lr_factors(), task.undecayed())
        self.saver = Saver(Checkpoints(folder / CHECKPOINTS, keep=config.keep, lock=lock), task, self.updater, ranks)
        self.batches = task.batches("train")
        self.total_steps = config.total_steps(self.batches.length)
        config.schedule.check_fits(self.total_steps)
        self.progress = Progress()
        self.carry: Any = None
        self.metrics: Metrics | None = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint instead of from the first step."""
        self.progress, self.carry = self.saver.restore(checkpoint, self.batches)

    def go(self) -> Outcome:
        """Take the steps that are left, with the records, evaluations and checkpoints that are due between them."""
        with StopSignals() as signals, self._recording():
            self._start()
            while not self._is_finished():
                place = Place(self.batches.state_dict(), self.task.carry_state(self.carry))
                try:
                    stop = self._step(signals)
                except DivergedError as error:
                    return self._give_up(str(error), place)
                except FloatingPointError as error:
                    # Of several ranks one alone may have seen it, and the others would wait for its gradients.
                    if self.ranks.world_size > 1:
                        raise
                    return self._give_up(str(error), place)
                if stop and not self._is_finished():
                    self.reporter.message(f"stopped and saved at step {self.progress.step} of {self.total_steps}")
                    return self._outcome("signal")
            if self.progress.evaluated is None or self.progress.evaluated.step != self.progress.step:
                self._evaluate()
                self.ranks.on_first(lambda: self.saver.settle(self.progress.best))
            if self.is_early:
                self.reporter.message(
                    f"finished after step {self.progress.step} of {self.total_steps}, stopped early by "
                    f"{self.config.stop}, as evaluations no longer get better; resume with another stop to continue"
                )
        return self._outcome(None)

    @property
    def is_early(self) -> bool:
        """Whether `stop` ends the run at the evaluation of this step; never before a phase that is still to come."""
        stop, progress = self.config.stop, self.progress
        is_evaluated = progress.evaluated is not None and progress.evaluated.step == progress.step
        if stop is None or not is_evaluated or progress.step >= self.total_steps or self.updater.is_waiting(progress):
            return False
        return stop.is_due(progress.goals, self.batches.epoch)

    def _is_finished(self) -> bool:
        return self.progress.step >= self.total_steps or self.is_early

    def _step(self, signals: StopSignals) -> bool:
        """One step and what is due after it; whether some rank was asked to stop."""
        began = time.perf_counter()
        message = self.updater.begin_phase(self.progress, self.batches.epoch)
        if message is not None:
            self.reporter.message(message)
        totals, factor, stop = self._accumulate(signals)
        lr, norm = self._update(totals, factor)
        totals.seconds = time.perf_counter() - began
        progress = self.progress
        progress.step += 1
        progress.items += totals.count
        progress.training_seconds += totals.seconds
        progress.seconds += totals.seconds
        progress.since_record.add(totals)
        self.reporter.advanced(progress.step, totals.loss)
        is_recorded = progress.step == self.total_steps or progress.step % self.config.log_every == 0
        if is_recorded:
            self._record(lr, norm)
        is_best = self._evaluate() if self._is_evaluation_due() else False
        is_over = self._is_finished()
        if is_over and not is_recorded:
            self._record(lr, norm)
        if is_over or is_best or stop or progress.step % self.config.checkpoint_every == 0:
            self._save()
        return stop

    def _is_evaluation_due(self) -> bool:
        step, every = self.progress.step, self.config.evaluate_every
        if every == "epoch":
            return step == self.total_steps or self.batches.position == 0
        return step == self.total_steps or (every is not None and step % every == 0)

    def _accumulate(self, signals: StopSignals) -> tuple[Totals, float, bool]:
        """Gradients of the batches of a step; sums, mean factor of the learning rate, and whether to stop."""
        if self.batches.position == 0:
            self.carry = self.task.new_carry()
        number = min(self.config.accumulate, len(self.batches) - self.batches.position)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        count, factor, log = 0, 0.0, dict[str, float]()
        for i, batch in enumerate(islice(iter(self.batches), number)):
            self._seed(self.progress.step, i, self.ranks.rank)
            with accumulating(self.model, is_last=i == number - 1):
                with self.updater.computing():
                    step = self.task.step(self.model, batch, self.carry)
                self.updater.backward(step.loss_sum)
            self.carry = step.carry
            loss_sum += step.loss_sum.detach().double() - step.penalty
            count += step.count
            factor += step.lr_factor
            log = {name: log.get(name, 0.0) + value for name, value in sorted(step.log.items())}
        asked = signals.received is not None
        together = self.ranks.sum([float(loss_sum), count, number, asked, factor, *log.values()])
        totals = Totals(together[0], int(together[1]), int(together[2]), log=dict(zip(log, together[5:], strict=True)))
        return totals, together[4] / totals.batches, together[3] > 0

    def _update(self, totals: Totals, factor: float) -> tuple[float, float]:
        """Change the parameters; the learning rate, and the gradient norm. Nothing changes in a step without items."""
        lr = self.config.optimizer.lr * self.config.schedule.factor(self.progress.step, self.total_steps) * factor
        if not math.isfinite(totals.loss_sum):
            raise DivergedError(f"the loss became {totals.loss_sum}")
        norm = 0.0
        if totals.count:
            norm = self.updater.finish(totals.count)
            if not math.isfinite(norm) and not self.updater.scaler.is_enabled():
                raise DivergedError(f"the norm of the gradients became {norm}")
            self.updater.step(lr, self.progress.step + 1)
        self.updater.forget()
        return lr, norm

    def _record(self, lr: float, norm: float) -> None:
        progress, since = self.progress, self.progress.since_record
        watch = self.task.watch()
        record = TrainRecord(
            step=progress.step,
            epoch=self.batches.epoch + self.batches.position / len(self.batches),
            loss=since.loss,
            lr=lr,
            gradient_norm=norm,
            items=progress.items,
            items_per_second=since.count / since.seconds,
            seconds=progress.seconds,
            log=self.task.logged(since) | self.updater.log(),
            watch=watch,
        )
        progress.since_record = Totals()
        if self.metrics is not None:
            self.metrics.train(record)
        self.reporter.stepped(record)

    def _evaluate(self) -> bool:
        """Measure the model; whether it is the best so far. Randomness of training is drawn anew for every batch."""
        with self._counting(), self.updater.averaged():
            self._seed(self.progress.step, "evaluate")
            self.task.model.eval()
            with torch.no_grad():
                metrics = self.task.evaluate(self.task.model, SPLIT)
            self.task.model.train()
        goal, progress = self.task.goal, self.progress
        if goal not in metrics:
            raise ValueError(f"goal must be a metric of evaluate, {', '.join(metrics)}, got {goal!r}")
        progress.evaluated = Evaluated(progress.step, metrics)
        sign = -1.0 if self.task.larger_is_better else 1.0
        limit = math.inf if progress.best is None else sign * progress.best.metrics[goal]
        # An undefined number is never the best. The first rank decides, should others differ in the last digit.
        first, reached = self.ranks.is_first, sign * metrics[goal]
        is_less, value = self.ranks.sum([first and reached < limit, reached if first else 0.0])
        is_best = bool(is_less)
        progress.goals.append(value)
        if is_best:
            progress.best = progress.evaluated
        record = EvaluationRecord(progress.step, SPLIT, metrics, is_best, progress.seconds)
        if self.metrics is not None:
            self.metrics.evaluation(record)
        self.reporter.evaluated(record)
        for line in self.task.examples():
            self.reporter.message(line)
        return is_best

    def _save(self) -> None:
        if not self.saver.is_finite():
            raise DivergedError("the weights became infinite or undefined")
        place = Place(self.batches.state_dict(), self.task.carry_state(self.carry))
        with self._counting():
            if self.metrics is not None:
                self.metrics.sync()
            path = self.saver.save(self.progress, place)
        self.reporter.saved(path)

    def _give_up(self, problem: str, place: Place) -> Outcome:
        """Put the weights from before a step that failed aside, and say from where to resume and how."""
        resume_from = self._last_sound_step() if self.ranks.is_first else None
        self.saver.save_diverged(self.progress, place, resume_from)
        start = "the first step, as no checkpoint was saved before" if resume_from is None else f"step {resume_from}"
        lr, clip = self.config.optimizer.lr, self.config.clip
        self.reporter.message(
            f"{problem} after step {self.progress.step}. Resume from {start}, with a lower learning rate (now {lr:g}) "
            f"or a smaller clip (now {clip}): anymax resume {shlex.quote(str(self.folder))} --optimizer.lr {lr / 4:g}"
        )
        return self._outcome("diverged")

    def _last_sound_step(self) -> int | None:
        """The last checkpoint before the step that failed at which the loss was no higher than when training began.

        Where there is none, the one that was evaluated best, or else the first that is left.
        """
        losses = [(record["step"], record["loss"]) for record in read_metrics(self.folder) if record["kind"] == "train"]
        saved = self.saver.checkpoints.steps()
        for step in reversed(saved):
            seen = [loss for recorded, loss in losses if recorded <= step]
            if step < self.progress.step and (not seen or seen[-1] <= seen[0]):
                return step
        best = self.progress.best
        return best.step if best is not None and best.step in saved else next(iter(saved), None)

    def _start(self) -> None:
        self.model.train()
        number = len(self.batches)
        if self.config.accumulate > number:
            self.reporter.message(f"an epoch has {number} batches, fewer than accumulate: a step takes {number}")
        self.reporter.started(
            Start(
                self.folder,
                self.progress.step,
                self.total_steps,
                num_parameters(self.task.model),
                self.task.item,
                str(self.ranks.device),
                self.ranks.world_size,
            )
        )

    def _outcome(self, stopped: Literal["signal", "diverged"] | None) -> Outcome:
        progress = self.progress
        return Outcome(
            self.folder,
            progress.step,
            self.total_steps,
            stopped,
            {} if progress.evaluated is None else progress.evaluated.metrics,
            None if progress.best is None else progress.best.step,
            self.is_early,
        )

    @contextmanager
    def _recording(self) -> Iterator[None]:
        if self.ranks.is_first:
            self.metrics = Metrics(self.folder, step=self.progress.step, tensorboard=self.config.tensorboard)
        with self.metrics or nullcontext():
            yield

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Time that the run takes besides its steps."""
        began = time.perf_counter()
        yield
        self.progress.seconds += time.perf_counter() - began

    def _seed(self, *parts: int | str) -> None:
        torch.manual_seed(seed_of(self.config.seed, *parts))


def seed_of(*parts: int | str) -> int:
    """A number for torch's generators that depends on all parts."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
