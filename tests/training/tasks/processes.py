"""Two processes that a test file is the program of, and what their runs must have in common with that of one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anymax.training import read_metrics
from anymax.training.checkpoint.checkpoints import Checkpoints

ROOT = Path(__file__).parents[3]


def train_on_two(program: Path, folder: Path, alone: Callable[[], object]) -> None:
    """Run a file with a folder on two processes, and something else on this one while they work.

    Args:
        program: a test file, which trains when it is run.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    # Else gloo looks the machine's name up, and waits where nobody answers.
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "ANYMAX_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", program, str(folder)],
            cwd=ROOT,
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        alone()
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)


def assert_close(run: Path, alone: Path) -> None:
    """The weights and records of a run are those of another but for rounding."""
    expected_weights = Checkpoints(alone / "checkpoints").load("last").tensors["model"]
    weights = Checkpoints(run / "checkpoints").load("last").tensors["model"]
    assert weights.keys() == expected_weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected_weights[name], rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(read_metrics(run), read_metrics(alone), strict=True):
        assert all(ours.get(name) == theirs.get(name) for name in ("kind", "step", "items"))
        metrics, expected = (record.get("metrics", {"loss": record.get("loss")}) for record in (ours, theirs))
        assert metrics == pytest.approx(expected, rel=1e-3)
