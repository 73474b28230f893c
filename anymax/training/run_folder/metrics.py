"""Records on disk: a line of JSON each in metrics.jsonl, and TensorBoard's files where they are wanted."""

import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anymax.files import DamagedError, check_file, replacing
from anymax.training.reporting import EvaluationRecord, TrainRecord

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS = "metrics.jsonl"


class Metrics:
    """Writes the records of a run, from `step` on; records of later steps, from before the run resumed, are dropped.

    Args:
        folder: the run's.
        step: how many steps were taken before.
        tensorboard: whether to write TensorBoard's files too, to the folder of that name.
    """

    def __init__(self, folder: Path, *, step: int, tensorboard: bool) -> None:
        file = folder / METRICS
        _drop_after(file, step)
        self._file = open(file, "a")  # noqa: SIM115
        self._board = _open_board(folder / "tensorboard", step) if tensorboard else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def train(self, record: TrainRecord) -> None:
        """Write a record of steps."""
        self._write("train", asdict(record))
        of_training = {"loss": record.loss, "lr": record.lr, "gradient_norm": record.gradient_norm, **record.log}
        self._plot(record.step, {**{f"train/{name}": value for name, value in of_training.items()}, **record.watch})

    def evaluation(self, record: EvaluationRecord) -> None:
        """Write a record of an evaluation."""
        self._write("evaluation", asdict(record))
        self._plot(record.step, {f"{record.split}/{name}": value for name, value in record.metrics.items()})

    def sync(self) -> None:
        """Have all lines on the disk."""
        os.fsync(self._file.fileno())

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **record}) + "\n")
        self._file.flush()

    def _plot(self, step: int, values: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that was cut off is skipped.

    Args:
        folder: of the run.

    Example:
        >>> from pathlib import Path
        >>> from anymax import recipes
        >>> from anymax.training import read_metrics, train
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run")
        >>> records = read_metrics(Path("run"))
        >>> [record["step"] for record in records if record["kind"] == "evaluation"]
        [3, 6]
    """
    return list(_records(folder / METRICS))


def check_tensorboard() -> None:
    """Refuse before training where TensorBoard's files cannot be written."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "tensorboard must be False where the package is missing, got True; pip install 'anymax[tensorboard]'"
        )


def _records(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists() and not file.is_symlink():
        return
    check_file(file, "the records of a run")
    # A line without its end was cut off by whatever ended the process.
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not _is_record(record):
            raise DamagedError(f"{file} is damaged: line {number} is no record; remove the line")
        yield record


def _is_record(record: Any) -> bool:
    """Whether a line, which may come from anybody, has what readers of records rely on."""
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return False
    numbers = [record.get("loss")]
    if record.get("kind") == "evaluation":
        metrics = record.get("metrics")
        numbers = list(metrics.values()) if isinstance(metrics, dict) else [None]
    return record.get("kind") in ("train", "evaluation") and all(type(number) in (int, float) for number in numbers)


def _drop_after(file: Path, step: int) -> None:
    kept = [json.dumps(record) + "\n" for record in _records(file) if record["step"] <= step]
    with replacing(file) as rewritten:
        rewritten.write("".join(kept).encode())


def _open_board(folder: Path, step: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
