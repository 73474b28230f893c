"""What a verb shows while it works: live on a terminal, plain lines elsewhere; both on standard error."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from anymax.cli.console import Console
from anymax.display.printable import printable
from anymax.training.reporting import LOSS_PER_WORD
from anymax.training.task_config import short

if TYPE_CHECKING:
    from anymax.training.reporting import EvaluationRecord, Start, TrainRecord

# Seconds between two lines where there is no terminal to draw on.
SECONDS_BETWEEN_LINES = 10.0


def say(text: str) -> None:
    """Print text to standard output as it is written, in its order with what is printed on standard error."""
    print(printable(text), flush=True)


class Announcer:
    """Shows what is being done: `announce("encoding: 10 lines")`, however often.

    Where there is no terminal, what stands before the colon is said once, and again after a while if it changed.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("", spinner=self._console.spinner) if self._console.is_terminal else None
        self._text = ""
        self._said = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Take it off the terminal."""
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(text))
            self._status.start()
            return
        now, is_new = time.monotonic(), _kind(text) != _kind(self._text)
        if is_new or (text != self._text and now - self._said >= SECONDS_BETWEEN_LINES):
            self._text, self._said = text, now
            self._console.print(text, soft_wrap=True)


def _kind(text: str) -> str:
    return text.partition(":")[0]


class Counted(ProgressColumn):
    """How many of how many, with commas."""

    def render(self, task: Task) -> Text:
        return Text(f"{int(task.completed):,}/{int(task.total or 0):,}")


class Terminal:
    """Shows a training: a live bar with loss, perplexity, speed, learning rate and time left; a line per evaluation.

    Args:
        is_likelihood: whether the exponential of the loss is a perplexity.
    """

    def __init__(self, *, is_likelihood: bool) -> None:
        self._is_likelihood = is_likelihood
        self._console = Console(stderr=True)
        self.announce = Announcer()
        self._bar: Progress | None = None
        self._start: Start | None = None
        self._said = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.announce.close()
        if self._bar is not None:
            self._bar.stop()

    def started(self, start: "Start") -> None:
        self.announce.close()
        self._start = start
        on = f"{start.world_size} x {start.device}" if start.world_size > 1 else start.device
        since = f", from step {start.step:,}" if start.step else ""
        self._line(
            f"Training {start.num_parameters:,} parameters for {start.total_steps:,} steps on {on}, "
            f"in {start.folder}{since}"
        )
        if self._console.is_terminal:
            columns = (BarColumn(20), Counted(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=start.total_steps, completed=start.step)
            self._bar.start()

    def advanced(self, step: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def stepped(self, record: "TrainRecord") -> None:
        assert self._start is not None
        described = self._describe(record, self._start.item)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=described)
            return
        now, total = time.monotonic(), self._start.total_steps
        if record.step == total or now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            left = (total - record.step) * record.seconds / record.step
            self._line(f"step {record.step:,}/{total:,}  {described}  {clock(left)} left")

    def evaluated(self, record: "EvaluationRecord") -> None:
        values = "  ".join(f"{name} {short(value)}" for name, value in record.metrics.items())
        best = "  (best so far)" if record.is_best else ""
        self._line(f"step {record.step:,}  {record.split}: {values}{best}")

    def saved(self, path: Path) -> None:
        """Nothing to say: checkpoints come often."""

    def message(self, text: str) -> None:
        self._line(text)

    def _describe(self, record: "TrainRecord", item: str) -> str:
        # In the unit of evaluations, which is the word.
        value, unit = record.loss, ""
        if LOSS_PER_WORD in record.log:
            value, unit = record.log[LOSS_PER_WORD], " per word"
        loss = f"loss {value:.3f}{unit}"
        if self._is_likelihood:
            loss += f"  perplexity {math.exp(min(value, 100)):,.1f}{unit}"
        return f"{loss}  {record.items_per_second:,.0f} {item}s/s  lr {record.lr:.2g}"

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
