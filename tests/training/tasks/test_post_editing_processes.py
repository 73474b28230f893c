"""A post-editor on two processes, copied by DistributedDataParallel or sharded by FSDP2, learns as on one.

The file is also the program of each process: `python test_post_editing_processes.py FOLDER`.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from anymax.recipes import find
from anymax.training import BertAdamConfig, Constant, RunConfig, open_run, train
from tests.training.tasks.processes import assert_close, train_on_two

STEPS = 8


def config(parallel: str = "ddp") -> RunConfig:
    """All that can be tied is, and the weights are averaged; no dropout, whose masks depend on the rank."""
    run = find("ape_small.feed_forward_tied")().toy()
    encoder = replace(run.task.model.encoder, dropout=0.0, attention_dropout=0.0)
    task = replace(run.task, model=replace(run.task.model, encoder=encoder))
    sizes = {"steps": STEPS, "evaluate_every": STEPS // 2, "checkpoint_every": STEPS, "log_every": 1}
    # With so large an eps that gradients which are nothing but rounding make no steps.
    plain = {"optimizer": BertAdamConfig(3e-3, eps=1e-2, clip=0.2), "schedule": Constant()}
    return replace(run, task=task, threads=1, parallel=parallel, **sizes, **plain)


def test_two_processes_train_and_correct_as_one(tmp_path: Path):
    train_on_two(Path(__file__), tmp_path, lambda: train(config(), tmp_path / "alone"))
    for parallel in ("ddp", "fsdp"):
        run = tmp_path / parallel
        assert_close(run, tmp_path / "alone")
        model = open_run(run).task.model
        block, theirs = model.decoder.blocks[0], model.encoder.encoder.blocks[0]
        assert block.cross_attention.key.weight is theirs.attention.key.weight
        assert block.feed_forward.inner.weight is theirs.feed_forward.inner.weight


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in ("ddp", "fsdp"):
        train(config(kind), Path(sys.argv[1]) / kind)
