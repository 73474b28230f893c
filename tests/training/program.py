"""Runs in processes of their own: `python -m tests.training.program PLAN`, with a plan as JSON.

Everything slow is imported once; then the process divides. Two children are the ranks of the "alone" jobs of the plan,
each with a process group of its own, two more do its "jobs" in one group, and of two others one dies amid a run, which
the other must notice. Meanwhile child after child does the "killed" job, each killed at a
moment drawn at random, but for the last, which comes to the end.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor

from anymax.distributed.ranks import PeerError, leave
from anymax.distributed.sharding import accumulating, whole, wrap
from anymax.training import AtEpoch, AveragedSGDConfig, Constant, RunConfig, joined, resume, run_config, train
from anymax.training.checkpoint.tensors import load_model, model_tensors
from anymax.training.optim.updater import Updater
from tests.training.toys import Toy, ToyTask


def do(job: dict[str, Any]) -> None:
    """Train or resume, in the folder and with the config of a job."""
    run = run_config(job["config"], tasks=[Toy])
    if job["resume"]:
        resume(job["folder"], config=run)
    else:
        train(run, job["folder"])


def do_as_under_torchrun(rank: int, jobs: list[dict[str, Any]]) -> None:
    """Jobs that make their own process groups, one after the other."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    for job in jobs:
        do(job)


def do_beside_a_dying_peer(rank: int, job: dict[str, Any], port: int) -> None:
    """A job whose second rank is killed in its third step; the first must say so by itself."""
    os.environ["MASTER_PORT"] = str(port)
    if rank == 1:
        take, calls = ToyTask.step, count(1)

        def step(*arguments: Any) -> Any:
            if next(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return take(*arguments)

        ToyTask.step = step
    with pytest.raises(PeerError, match="process 0 of 2 lost the connection to another one"):
        do_as_under_torchrun(rank, [job])


def do_as_rank(rank: int, jobs: list[dict[str, Any]], port: int) -> None:
    """Jobs that share a process group."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for job in jobs:
        do(job)
    check_log_probs_of_a_sharded_model()
    check_averages_come_and_go_in_a_sharded_model()
    for kind in ("ddp", "fsdp"):
        check_gradients_stay_until_the_last_batch(kind)
    # None leaves before all are done: the first holds what the others ask.
    dist.barrier()
    leave()


def check_log_probs_of_a_sharded_model() -> None:
    """Only forward gathers parameters by itself; an output layer's log-probabilities must too."""
    with joined("cpu") as ranks, torch.no_grad():
        torch.manual_seed(0)
        task = Toy().build(Path(), ranks, seed=1, announce=lambda *_: None)
        hidden, target = torch.randn(5, 8), torch.randint(13, (5,))
        expected = task.model.output.log_probs(hidden)
        model = wrap(task, ranks, "fsdp", compile=False).eval()
        model(target[None], target[None], torch.zeros(1, 8))
        log_probs, log_prob = model.output.log_probs(hidden), model.output.log_prob(hidden, target)
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(log_prob, expected.gather(1, target[:, None])[:, 0])


def check_averages_come_and_go_in_a_sharded_model() -> None:
    """What a forward gathered of the averages is not what the next one reads."""
    with joined("cpu") as ranks:
        task, other = (Toy(dropout=0.0).build(Path(), ranks, seed=1, announce=lambda *_: None) for _ in range(2))
        model, alone = wrap(task, ranks, "fsdp", compile=False), other.model
        run = RunConfig(Toy(), AveragedSGDConfig(0.5, begin=AtEpoch(0)), Constant(), steps=2)
        updater = Updater(task.model, run, ranks)
        updater.averaging.begin()
        words, state = torch.tensor([[1, 2, 3]]), torch.zeros(1, 8)

        def checked_loss() -> float:
            """Of the model, which must be that of a whole one with its parameters."""
            with torch.no_grad():
                loss = model(words, words, state)[0]
                tensors = {name: whole(tensor).clone() for name, tensor in model_tensors(task.model).items()}
                load_model(alone, tensors, Path())
                torch.testing.assert_close(loss, alone(words, words, state)[0])
                model(words, words, state)
            return float(loss)

        for number in (1, 2):
            model(words, words, state)[0].backward()
            updater.finish(6)
            updater.step(0.5, number)
            updater.forget()
        before = checked_loss()
        with updater.averaged():
            averaged = checked_loss()
        assert checked_loss() == before != averaged


def check_gradients_stay_until_the_last_batch(kind: str) -> None:
    """Ranks talk once a step; before, one that is given nothing has no gradient, however large the others' are."""
    with joined("cpu") as ranks:
        task = Toy().build(Path(), ranks, seed=1, announce=lambda *_: None)
        model = wrap(task, ranks, kind, compile=False)
        target = torch.tensor([[1, 2, 3]]) if ranks.is_first else torch.tensor([[-100] * 3])
        sizes = []
        for is_last in (False, True):
            with accumulating(model, is_last=is_last):
                model(torch.tensor([[1, 2, 3]]), target, torch.zeros(1, 8))[0].backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            sizes.append(sum(float(whole(gradient).abs().sum()) for gradient in gradients))
    if kind == "fsdp":
        assert sizes[0] == 0 and sizes[1] > 0
    else:
        assert (sizes[0] > 0) == ranks.is_first and sizes[1] > 0


def in_child(work: Callable[[], None]) -> int:
    """The id of a process that does something and exits with 0."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def do_while_killed(job: dict[str, Any], kills: int) -> int:
    """How many children were killed before one came to the end."""
    killed = 0
    while True:
        job["resume"] = Path(job["folder"], "config.json").exists()
        child = in_child(lambda: do(job))
        if killed < kills:
            time.sleep(random.uniform(0.0, 0.15))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "a child that was not killed failed"
            return killed
        killed += 1


if __name__ == "__main__":
    random.seed(0)
    torch.set_num_threads(1)
    plan = json.loads(Path(sys.argv[1]).read_text())
    alone, shared, lost = plan["alone"], plan["jobs"], plan["lost"]
    ranks = [in_child(lambda rank=rank: do_as_under_torchrun(rank, alone)) for rank in (0, 1)]
    ranks += [in_child(lambda rank=rank: do_as_rank(rank, shared, plan["ports"][0])) for rank in (0, 1)]
    left, dying = (in_child(lambda rank=rank: do_beside_a_dying_peer(rank, lost, plan["ports"][1])) for rank in (0, 1))
    killed = do_while_killed(plan["killed"], plan["kills"])
    assert not any(os.waitpid(rank, 0)[1] for rank in (*ranks, left)), "a rank failed"
    assert os.WTERMSIG(os.waitpid(dying, 0)[1]) == signal.SIGKILL
    print(killed)
