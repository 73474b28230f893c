"""An AWD-LSTM on two processes, wrapped by DistributedDataParallel and sharded by FSDP2, trains as on one.

The file is also the program of each process: `python test_awd_lstm_processes.py RANK PORT FOLDER`.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.distributed.ranks import leave
from anymax.models import AWDLSTM, AWDLSTMConfig, RecurrentState, fsdp_groups
from anymax.vocabulary import FixedInput, FullOutput, tie_

V, D, STEPS = 23, 8, 3
LENGTHS = torch.tensor([6, 6, 6, 4, 1])
# Rows of the first rank; the second has the rest.
CUT = 3


def build(**options: float) -> AWDLSTM:
    torch.manual_seed(0)
    input, output = FixedInput(V, D), FullOutput(V, D, bias=True)
    tie_(input, output)
    return AWDLSTM(input, output, AWDLSTMConfig(D, 12, 2, D, **options))


def still() -> AWDLSTM:
    """Masks differ from rank to rank, so that only a model without dropout can be compared."""
    rates = ("word_dropout", "input_dropout", "layer_dropout", "output_dropout", "weight_dropout")
    return build(**dict.fromkeys(rates, 0.0))


def batch(step: int, rows: slice) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids, target = torch.randint(V, (2, 5, 6), generator=generator)
    return ids[rows], target.masked_fill(torch.arange(6) >= LENGTHS[:, None], -100)[rows]


def train(model: nn.Module, rows: slice, num_ranks: int) -> list[dict[str, Tensor]]:
    """A few steps with the state carried on; the gradients of each step, summed over ranks."""
    optimizer, state, gradients = torch.optim.SGD(model.parameters(), lr=0.01 * num_ranks), RecurrentState(), []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(*batch(step, rows), "sum", state).backward()
        whole = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
        whole = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in whole.items()}
        gradients.append({name: num_ranks * grad for name, grad in whole.items()})
        optimizer.step()
    return gradients


def shard(model: AWDLSTM) -> AWDLSTM:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for group in fsdp_groups(model):
        fully_shard(group, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def run_rank(rank: int, port: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    rows = slice(0, CUT) if rank == 0 else slice(CUT, None)
    ddp = nn.parallel.DistributedDataParallel
    results = {
        "ddp": train(ddp(still()), rows, 2),
        "fsdp": train(shard(still()), rows, 2),
        "ddp dropped": train(ddp(build()), rows, 2),
        "fsdp dropped": train(shard(build()), rows, 2),
    }
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
        expected = train(still(), slice(None), 1)
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        for kind in ("ddp", "fsdp"):
            torch.testing.assert_close(results[kind], expected, rtol=1e-4, atol=1e-5)
            for gradients in results[f"{kind} dropped"]:
                assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients.values())


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
