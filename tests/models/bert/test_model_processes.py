"""A BERT on two processes, wrapped by DistributedDataParallel and sharded by FSDP2, trains as on one.

The file is also the program of each process: `python test_model_processes.py RANK PORT FOLDER`.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.attention import LearnedEntmaxConfig
from anymax.distributed.ranks import leave
from anymax.distributed.sharding import whole
from anymax.models import Bert, BertConfig, fsdp_groups, learned_alphas

V, STEPS = 23, 3
LENGTHS = torch.tensor([6, 6, 4, 1])
Result = tuple[list[dict[str, Tensor]], dict[str, float], Tensor]


def build() -> Bert:
    torch.manual_seed(0)
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    return BertConfig(16, 2, 2, 12, max_positions=8, **rates, initial_std=0.3, mapping=LearnedEntmaxConfig()).build(V)


def batch(step: int, rows: slice) -> tuple[Tensor, ...]:
    """Rows of different lengths in which some words are hidden; the last rank has none of those in its last step."""
    generator = torch.Generator().manual_seed(step)
    ids, segments = torch.randint(V, (4, 6), generator=generator), torch.randint(2, (4, 6), generator=generator)
    mask = torch.arange(6) < LENGTHS[:, None]
    is_hidden = (torch.rand(4, 6, generator=generator) < 0.5) & mask
    if step == STEPS - 1:
        is_hidden[2:] = False
    return ids[rows], mask[rows], segments[rows], ids.masked_fill(~is_hidden, -100)[rows]


def train(model: nn.Module, bare: Bert, rows: slice, num_ranks: int) -> Result:
    """The gradients of a few steps, summed over ranks; then the alphas, and what the model tells of a row."""
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.01 * num_ranks), []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(*batch(step, rows), "sum").backward()
        gradients.append({name: num_ranks * whole(p.grad) for name, p in bare.named_parameters()})
        optimizer.step()
    ids, mask, segments, _ = batch(STEPS, slice(None))
    with torch.no_grad():
        hidden = bare.encode(ids, mask, segments)
        told = bare.prediction_head.topk(hidden, 2).log_probs
        return gradients, learned_alphas(bare), bare.prediction_head.log_prob(hidden, ids) + told.sum(-1)


def shard(model: Bert) -> Bert:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh("cpu", (2,))
    for group in [*fsdp_groups(model), model]:
        fully_shard(group, mesh=mesh)
    for module, method in model.forward_methods():
        register_fsdp_forward_method(module, method)
    return model


def run_rank(rank: int, port: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    rows = slice(0, 2) if rank == 0 else slice(2, None)
    results: dict[str, Result] = {}
    bare, sharded = build(), shard(build())
    results["ddp"] = train(nn.parallel.DistributedDataParallel(bare), bare, rows, 2)
    results["fsdp"] = train(sharded, sharded, rows, 2)
    torch.save(results, folder / f"{rank}.pt")
    leave()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(rank), port, str(tmp_path)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        model = build()
        expected = train(model, model, slice(None), 1)
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        assert results.keys() == {"ddp", "fsdp"}
        for result in results.values():
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
