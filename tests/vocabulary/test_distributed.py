"""Stock DistributedDataParallel around adaptive layers: two processes, and bands that get no word.

The file is also the program of each process: `python test_distributed.py RANK FOLDER`.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from anymax.distributed.ranks import leave
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, tie_

BANDS = Bands.from_sizes((6, 7, 8), dim=16, factor=2)
# The words of each step, per rank: all bands, a tail on one rank only, a tail on none.
WORDS_OF_STEPS = [((0, 21), (0, 21)), ((0, 21), (0, 6)), ((0, 13), (0, 13)), ((0, 6), (13, 21)), ((0, 21), (0, 21))]


class Model(nn.Module):
    """Adaptive layers, tied, with a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.input = AdaptiveInput(BANDS, 16)
        self.body = nn.Linear(16, 16)
        self.output = AdaptiveOutput(BANDS, 16)
        tie_(self.input, self.output, projections=True)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        return self.output(torch.tanh(self.body(self.input(ids))), target)


def words(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    ids, target = torch.randint(*WORDS_OF_STEPS[step][rank], (2, 4, 5), generator=generator)
    return ids, target


def run_rank(rank: int, folder: Path) -> None:
    """Train for a few steps and leave the gradients of each, and the parameters at the end."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for step in range(len(WORDS_OF_STEPS)):
        optimizer.zero_grad()
        model(*words(step, rank)).backward()
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer.step()
    torch.save({"gradients": gradients, "parameters": list(model.parameters())}, folder / f"{rank}.pt")
    leave()


def run_joined() -> list[list[Tensor]]:
    """The gradients of one process that sees both ranks' words."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for step in range(len(WORDS_OF_STEPS)):
        optimizer.zero_grad()
        ids, target = (torch.cat(parts) for parts in zip(words(step, 0), words(step, 1), strict=True))
        model(ids, target).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return gradients


def test_two_processes_train_as_one_though_a_band_gets_no_word(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        expected = run_joined()
        outputs = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for gradients in (rank["gradients"] for rank in ranks):
        torch.testing.assert_close(gradients, expected)
    assert all(one.equal(other) for one, other in zip(*(rank["parameters"] for rank in ranks), strict=True))


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), Path(sys.argv[2]))
