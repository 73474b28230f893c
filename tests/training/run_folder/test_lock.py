"""Two processes never write to one run folder, and a folder that goes away ends a run with an error."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from anymax.training import read_metrics, resume, train
from anymax.training.run_folder.folder import CONFIG
from anymax.training.run_folder.lock import LOCK, BusyError, FolderLock, lock_next
from tests.training.toys import StoppingAt, Toy, patient, toy_config


class Meanwhile(StoppingAt):
    """Does something after a step."""

    def __init__(self, work, step: int = 3) -> None:
        super().__init__()
        self.work, self.at = work, step

    def advanced(self, step: int, loss: float) -> None:
        if step == self.at:
            self.work()


def test_a_second_lock_is_refused_with_the_process_that_holds_the_first(tmp_path: Path):
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(BusyError, match=rf"process {os.getpid()} is writing to {tmp_path / 'run'}; wait until it ends"):
        FolderLock(tmp_path / "run")
    lock.release()
    assert not (tmp_path / "run").exists()
    FolderLock(tmp_path / "run").release()


def test_a_killed_process_leaves_no_lock(tmp_path: Path):
    child = os.fork()
    if child == 0:
        held = FolderLock(tmp_path / "run")
        signal.pause()
        held.release()
        os._exit(1)
    patient(lambda: (tmp_path / "run" / LOCK).exists() and (tmp_path / "run" / LOCK).read_text() != "")
    with pytest.raises(BusyError, match=f"process {child} "):
        FolderLock(tmp_path / "run")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    FolderLock(tmp_path / "run").release()


def test_training_and_resuming_beside_a_live_run_are_refused_and_harm_nothing(tmp_path: Path):
    config, refused = toy_config(), []

    def interfere() -> None:
        for start in (lambda: train(config, tmp_path / "run"), lambda: resume(tmp_path / "run", config=config)):
            with pytest.raises(ValueError) as error:
                start()
            refused.append(str(error.value))

    train(config, tmp_path / "run", reporter=Meanwhile(interfere))
    train(config, tmp_path / "alone")
    assert "holds a run" in refused[0] and f"process {os.getpid()} is writing" in refused[1]
    losses = [[record.get("loss") for record in read_metrics(tmp_path / name)] for name in ("run", "alone")]
    assert losses[0] == losses[1]
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_default_folder_takes_the_next_number_where_it_is_taken_or_in_use(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    lock, number = lock_next(tmp_path / "run")
    assert number == 2
    outcome = train(toy_config(steps=3), tmp_path / "run", number=True)
    assert outcome.folder == tmp_path / "run-3" and (tmp_path / "run-3" / CONFIG).exists()
    lock.release()
    lock, number = lock_next(tmp_path / "run")
    assert number == 2
    lock.release()


def test_two_processes_that_start_together_take_two_folders(tmp_path: Path):
    go, children = tmp_path / "go", []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            while not go.exists():
                pass
            lock, number = lock_next(tmp_path / "run")
            (lock.folder / "mine").touch()
            lock.release()
            os._exit(number)
        children.append(child)
    go.touch()
    numbers = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(numbers) == list(range(1, 9))


@pytest.mark.parametrize("config", [toy_config(steps=20), toy_config(steps=4, checkpoint_every=100)])
def test_a_folder_removed_under_a_run_ends_it_with_an_error(tmp_path: Path, config):
    gone = Meanwhile(lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(FileNotFoundError, match="run was removed or replaced while a run was writing to it"):
        train(config, tmp_path / "run", reporter=gone)
    assert not (tmp_path / "run").exists()


def test_a_run_never_writes_into_another_that_took_its_folder(tmp_path: Path):
    def replace() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        train(toy_config(Toy(name="b"), steps=3), tmp_path / "run")

    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        train(toy_config(steps=20), tmp_path / "run", reporter=Meanwhile(replace))
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == [2, 3, 3]


def test_a_start_that_fails_leaves_no_folder(tmp_path: Path):
    with pytest.raises(ValueError, match="start"):
        train(toy_config(start=tmp_path / "none"), tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(ValueError, match=rf"folder must be writable, but {blocked / 'run'} is not"):
        train(toy_config(), blocked / "run")
