"""One model on several ranks: stock DistributedDataParallel or FSDP2, nothing of our own.

Both leave the mean over ranks of each rank's gradients. FSDP2 is slow to import, so only those who asked for it do.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anymax.distributed.ranks import Ranks


class Shardable(Protocol):
    """A task, as far as it matters here."""

    @property
    def model(self) -> nn.Module: ...

    def groups(self) -> list[list[nn.Module]]:
        """Modules that FSDP2 shards together."""
        ...

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides `forward` that read parameters."""
        ...


def wrap(task: Shardable, ranks: Ranks, kind: str, *, compile: bool) -> nn.Module:
    """The model of a task as its `step` calls it. The bare model is moved to the device and, for "fsdp", sharded.

    Args:
        kind: "ddp" or "fsdp"; ignored for a single rank.
        compile: let torch compile the model, in place, so that names of parameters stay.
    """
    model = task.model.to(ranks.device)
    shared = ranks.world_size > 1
    if shared and kind == "fsdp":
        _shard(task, ranks)
    if compile:
        model.compile()
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if shared and kind == "ddp" else model


def accumulating(model: nn.Module, *, is_last: bool) -> AbstractContextManager[object]:
    """Around forward and backward of a batch: gradients stay on their rank until the last batch of a step."""
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(is_last)
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be divided among the ranks, whole; all ranks must call it together."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.full_tensor()
    return tensor


def drop_gathered(model: nn.Module) -> None:
    """Have FSDP2 gather parameters anew in the next forward, as what ranks hold of them was changed in place."""
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor that may be divided among the ranks."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.to_local()
    return tensor


def divided_as(model: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, which every rank has, divided among the ranks as another of its shape is."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(model, DTensor):
            # With no source every rank cuts its part out of what it has.
            tensor = tensor.to(model.device)
            return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)
    return tensor


def _shard(task: Shardable, ranks: Ranks) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    for group in task.groups():
        fully_shard(group, mesh=mesh)
    fully_shard(task.model, mesh=mesh)
    for module, method in task.forward_methods():
        register_fsdp_forward_method(module, method)
