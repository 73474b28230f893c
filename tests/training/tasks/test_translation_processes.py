"""A translator on two processes, copied by DistributedDataParallel or sharded by FSDP2, learns as on one.

The file is also the program of each process: `python test_translation_processes.py FOLDER`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax.recipes import find
from anymax.training import Constant, NesterovConfig, RunConfig, open_run, read_metrics, train
from anymax.training.checkpoint.checkpoints import Checkpoints

STEPS = 12


def config(parallel: str = "ddp") -> RunConfig:
    """Three-way tied, alphas learned, subwords, label smoothing and no dropout, whose masks depend on the rank."""
    run = find("multi30k.learned_entmax")().toy()
    body = replace(run.task.model.body, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    task = replace(run.task, model=replace(run.task.model, body=body), decoded=None, goal="bleu")
    sizes = {"steps": STEPS, "evaluate_every": STEPS // 2, "checkpoint_every": STEPS, "log_every": 1}
    # Adam makes much of gradients that are nothing but rounding.
    plain = {"optimizer": NesterovConfig(0.3, momentum=0.9), "schedule": Constant()}
    return replace(run, task=task, epochs=None, threads=1, parallel=parallel, **sizes, **plain)


def test_two_processes_train_and_translate_as_one(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    # Else gloo looks the machine's name up, and waits where nobody answers.
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "ANYMAX_CACHE": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(tmp_path)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        train(config(), tmp_path / "alone")
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    alone = Checkpoints(tmp_path / "alone" / "checkpoints").load("last").tensors["model"]
    translations = open_run(tmp_path / "alone").task.translate_split("test").translations
    for parallel in ("ddp", "fsdp"):
        run = tmp_path / parallel
        weights = Checkpoints(run / "checkpoints").load("last").tensors["model"]
        assert weights.keys() == alone.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, alone[name], rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(read_metrics(run), read_metrics(tmp_path / "alone"), strict=True):
            assert all(ours.get(name) == theirs.get(name) for name in ("kind", "step", "items"))
            metrics, expected = (record.get("metrics", {"loss": record.get("loss")}) for record in (ours, theirs))
            assert metrics == pytest.approx(expected, rel=1e-3)
        assert open_run(run).task.translate_split("test").translations == translations


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in ("ddp", "fsdp"):
        train(config(kind), Path(sys.argv[1]) / kind)
