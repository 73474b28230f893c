"""A translator on two processes, copied by DistributedDataParallel or sharded by FSDP2, learns as on one.

The file is also the program of each process: `python test_translation_processes.py FOLDER`.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from anymax.recipes import find
from anymax.training import Constant, NesterovConfig, RunConfig, open_run, train
from tests.training.tasks.processes import assert_close, train_on_two

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
    train_on_two(Path(__file__), tmp_path, lambda: train(config(), tmp_path / "alone"))
    translations = open_run(tmp_path / "alone").task.translate_split("test").translations
    for parallel in ("ddp", "fsdp"):
        assert_close(tmp_path / parallel, tmp_path / "alone")
        assert open_run(tmp_path / parallel).task.translate_split("test").translations == translations


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in ("ddp", "fsdp"):
        train(config(kind), Path(sys.argv[1]) / kind)
