"""How large a block of scores is by default."""

import pytest
import torch

from anymax.losses.blocks import Piece, default_budget

MIB = 2**20


@pytest.mark.parametrize(
    ("num_classes", "dim", "mebibytes"),
    [
        (256, 5, 4),
        (250_000, 12, 250_000 * 12 * 4 / MIB),
        (2_000_000, 2, 2_000_000 * 2 * 4 / MIB),
        (1_000, 64, 16),
        (100_000, 100, 100_000 * 100 * 4 / MIB),
        (100_000, 256, 64),
        (100_000, 1024, 100_000 * 1024 / MIB),
    ],
)
def test_a_block_takes_what_the_weight_does_within_bounds(num_classes: int, dim: int, mebibytes: float) -> None:
    weight = torch.empty(num_classes, dim, device="meta")
    assert default_budget([Piece(torch.empty(1, dim, device="meta"), weight, None)], 1) == int(mebibytes * MIB)
