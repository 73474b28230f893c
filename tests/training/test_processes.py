"""Several processes train as one, a checkpoint serves any number of them, and a kill at any moment does no harm."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anymax.data import ContiguousBatches
from anymax.training import (
    AtEpoch,
    AveragedSGDConfig,
    Constant,
    NesterovConfig,
    Ranks,
    RunConfig,
    as_plain,
    read_metrics,
    resume,
    train,
)
from anymax.training.checkpoint.checkpoints import Checkpoints
from tests.training.test_resume import assert_same
from tests.training.toys import StoppingAt, Toy, toy_config

ROOT = Path(__file__).parents[2]
SGD = {"optimizer": NesterovConfig(0.3, momentum=0.9), "schedule": Constant(), "log_every": 1}
# Five rows are three for one rank and two for the other, and 31 blocks leave a batch of one row, none for the second.
BLOCKS = toy_config(Toy(dropout=0.0, batch_size=5, num_tokens=151), accumulate=2, **SGD)
ROWS = toy_config(Toy(dropout=0.0, batch_size=5, carries=True), **SGD)
# Averages, evaluated between steps that do not save them; batches of drawn lengths, a penalty, a parameter's own rate.
AVERAGED = replace(
    ROWS,
    task=replace(ROWS.task, num_tokens=63, random_lengths=True, penalty=0.01, bias_rate=0.5),
    optimizer=AveragedSGDConfig(1.0, begin=AtEpoch(1)),
    evaluate_every=1,
    checkpoint_every=4,
)
KILLS = 25
KILLED = toy_config(steps=40, checkpoint_every=1, log_every=1, evaluate_every=4)


def job(folder: Path, config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    return {"folder": str(folder), "config": as_plain(config), "resume": resume}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(plan: Path) -> subprocess.Popen[str]:
    # Else gloo looks the machine's name up, and waits where nobody answers.
    loopback = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.program", str(plan)],
        cwd=ROOT,
        env={**os.environ, **loopback},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, so that its children can be ended with it.
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process, of two, and of one and two in turn."""
    folder = tmp_path_factory.mktemp("processes")
    fsdp_blocks, fsdp_rows, fsdp_averaged = (replace(each, parallel="fsdp") for each in (BLOCKS, ROWS, AVERAGED))
    for name, config in (("blocks", BLOCKS), ("rows", ROWS)):
        train(config, folder / f"one-then-{name}", reporter=StoppingAt(3))
        shutil.copytree(folder / f"one-then-{name}", folder / f"one-then-{name}-fsdp")
    alone = [job(folder / name, BLOCKS) for name in ("blocks-ddp", "second", "third")]
    jobs = [
        job(folder / "blocks-fsdp", fsdp_blocks),
        job(folder / "rows-ddp", ROWS),
        job(folder / "rows-fsdp", fsdp_rows),
        job(folder / "one-then-blocks", BLOCKS, resume=True),
        job(folder / "one-then-blocks-fsdp", fsdp_blocks, resume=True),
        job(folder / "one-then-rows", ROWS, resume=True),
        job(folder / "one-then-rows-fsdp", fsdp_rows, resume=True),
        job(folder / "averaged-ddp", AVERAGED),
        job(folder / "averaged-fsdp", fsdp_averaged),
        job(folder / "stopped-averaged", replace(fsdp_averaged, steps=6)),
        job(folder / "stopped-averaged", fsdp_averaged, resume=True),
    ]
    plan = {
        "alone": alone,
        "jobs": jobs,
        "lost": job(folder / "lost", replace(BLOCKS, steps=40)),
        "killed": job(folder / "killed", KILLED),
        "kills": KILLS,
        "ports": [free_port(), free_port()],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    process = start(folder / "plan.json")
    try:
        train(BLOCKS, folder / "blocks")
        train(ROWS, folder / "rows")
        train(AVERAGED, folder / "averaged")
        train(KILLED, folder / "unharmed")
        printed, problems = process.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, problems
    # A quick machine may come to the end before the last of the kills.
    assert 3 <= int(printed) <= KILLS
    return folder


def progress(folder: Path) -> dict[str, Any]:
    return Checkpoints(folder / "checkpoints").load(7).state["progress"]


def assert_close(one: Path, other: Path) -> None:
    """The same steps, up to the order in which numbers are added."""
    left, right = (Checkpoints(folder / "checkpoints").load(7) for folder in (one, other))
    assert left.tensors.keys() == right.tensors.keys()
    for name in left.tensors:
        torch.testing.assert_close(left.tensors[name], right.tensors[name], rtol=1e-3, atol=1e-5)
    assert left.state["data"] == right.state["data"]
    for ours, theirs in zip(read_metrics(one), read_metrics(other), strict=True):
        assert (ours["kind"], ours["step"], ours.get("items")) == (theirs["kind"], theirs["step"], theirs.get("items"))
        losses = [record.get("metrics", record)["loss"] for record in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("batches", ["blocks", "rows"])
def test_two_processes_train_as_one(folder: Path, batches: str, parallel: str):
    assert_close(folder / f"{batches}-{parallel}", folder / batches)
    assert json.loads((folder / f"{batches}-{parallel}" / "summary.json").read_text())["world_size"] == 2


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_average_as_one(folder: Path, parallel: str):
    assert_close(folder / f"averaged-{parallel}", folder / "averaged")
    (held,) = {
        state["averaging_since"] for state in map(progress, (folder / "averaged", folder / f"averaged-{parallel}"))
    }
    assert 0 < held < 5


def test_two_processes_resume_averages_to_the_bit(folder: Path):
    left, right = (Checkpoints(folder / name / "checkpoints").load(7) for name in ("stopped-averaged", "averaged-fsdp"))
    for file in ("model", "optimizer"):
        ours, theirs = left.tensors[file], right.tensors[file]
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("parallel", ["", "-fsdp"])
@pytest.mark.parametrize("batches", ["blocks", "rows"])
def test_a_run_of_one_process_resumes_in_two(folder: Path, batches: str, parallel: str):
    assert_close(folder / f"one-then-{batches}{parallel}", folder / batches)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(("batches", "config"), [("blocks", BLOCKS), ("rows", ROWS)])
def test_a_run_of_two_processes_resumes_in_one(
    folder: Path, tmp_path: Path, batches: str, config: RunConfig, parallel: str
):
    shutil.copytree(folder / f"{batches}-{parallel}", tmp_path / "run")
    resume(tmp_path / "run", config=config, step=6)
    assert_close(tmp_path / "run", folder / batches)


def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(folder: Path):
    assert_same(folder / "killed", folder / "unharmed")
    left = {path.name for path in (folder / "killed" / "checkpoints").iterdir()}
    assert left == {path.name for path in (folder / "unharmed" / "checkpoints").iterdir()}


def test_two_processes_train_several_runs_one_after_the_other(folder: Path):
    for name in ("second", "third"):
        assert_close(folder / name, folder / "blocks")


def test_a_run_that_lost_a_process_can_be_resumed(folder: Path, tmp_path: Path):
    # That the other process noticed is asserted where it did.
    shutil.copytree(folder / "lost", tmp_path / "lost")
    assert resume(tmp_path / "lost", config=replace(BLOCKS, steps=7)).step == 7
    assert_close(tmp_path / "lost", folder / "blocks")


def test_rows_are_shared_out_as_batches_are():
    tokens = torch.arange(1, 100)
    whole = next(iter(ContiguousBatches(tokens, 7, 4, eos=0))).ids
    for rank in range(3):
        share = next(iter(ContiguousBatches(tokens, 7, 4, eos=0, rank=rank, world_size=3))).ids
        assert torch.equal(Ranks(rank, 3).share_rows(whole), share)


def test_one_rank_is_alone():
    ranks = Ranks()
    assert ranks.is_first and ranks.sum([1, 2.5]) == [1.0, 2.5]
    rows = torch.ones(2, 3)
    assert ranks.gather_rows(rows) is rows
    with ranks.first_alone():
        pass
    with pytest.raises(ZeroDivisionError):
        ranks.on_first(lambda: 1 / 0)
