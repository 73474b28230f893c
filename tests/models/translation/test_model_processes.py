"""A tied translator on two processes, wrapped by DistributedDataParallel and sharded by FSDP2, trains as on one.

The file is also the program of each process: `python test_model_processes.py RANK PORT FOLDER`.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.distributed.ranks import leave
from anymax.distributed.sharding import whole
from anymax.models import TransformerConfig, Translator, fsdp_groups, learned_alphas
from anymax.vocabulary import FixedInput, FullOutput, tie_

V, D, STEPS = 23, 8, 3
LENGTHS = torch.tensor([6, 6, 4, 1])
TIES = ("three-way", "two-way", "none")
Result = tuple[list[dict[str, Tensor]], dict[str, float], Tensor]


def build(tie: str) -> Translator:
    torch.manual_seed(0)
    from anymax import LearnedEntmax

    target_input, output = FixedInput(V, D), FullOutput(V, D, bias=True)
    if tie != "none":
        tie_(target_input, output)
    source_input = target_input if tie == "three-way" else FixedInput(V, D)
    config = TransformerConfig(D, 1, 2, 12, final_norm=True)
    return Translator(
        source_input, target_input, output, config, cross_mapping=lambda: LearnedEntmax(shape=(2, 1, 1), clamp=1.01)
    )


def batch(step: int, rows: slice) -> tuple[Tensor, ...]:
    source, ids, target = torch.randint(V, (3, 4, 6), generator=torch.Generator().manual_seed(step))
    mask = torch.arange(6) < LENGTHS[:, None]
    return source[rows], mask[rows], ids[rows], target.masked_fill(~mask, -100)[rows]


def train(model: nn.Module, bare: Translator, rows: slice, num_ranks: int) -> Result:
    """The gradients of a few steps, summed over ranks; then the alphas, and what decoding computes of a word."""
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.01 * num_ranks), []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(*batch(step, rows), "sum").backward()
        gradients.append({name: num_ranks * whole(p.grad) for name, p in bare.named_parameters()})
        optimizer.step()
    source, mask, ids, _ = batch(STEPS, slice(None))
    with torch.no_grad():
        hidden, _ = bare.next(ids[:, 0], bare.start((source, mask), max_length=2))
        return gradients, learned_alphas(bare), bare.output.log_probs(hidden)


def shard(model: Translator) -> Translator:
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
    for tie in TIES:
        bare, sharded = build(tie), shard(build(tie))
        results[f"ddp {tie}"] = train(nn.parallel.DistributedDataParallel(bare), bare, rows, 2)
        results[f"fsdp {tie}"] = train(sharded, sharded, rows, 2)
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
        expected = {}
        for tie in TIES:
            model = build(tie)
            expected[tie] = train(model, model, slice(None), 1)
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        assert len(results) == 2 * len(TIES)
        for kind, result in results.items():
            torch.testing.assert_close(result, expected[kind.partition(" ")[2]], rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
