"""From the losses of a step's batches to one step of the optimizer, in any precision and on any number of ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from anymax.checks import check_not_negative
from anymax.distributed.ranks import Ranks
from anymax.distributed.sharding import drop_gathered, whole
from anymax.plain import shown
from anymax.training.config import Precision, RunConfig
from anymax.training.optim.averaged_sgd import AveragedSGD
from anymax.training.optim.exponential_average import ExponentialAverage
from anymax.training.progress import Progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# As torch clips: a norm of exactly the limit is scaled a little too.
CLIP_EPS = 1e-6


class Updater:
    """The optimizer of a model, and the gradients it is given.

    Args:
        model: as it is after it was wrapped or sharded.
        lr_factors: factors of the learning rate, for some parameters.
        undecayed: parameters that weight decay leaves alone.
    """

    def __init__(
        self,
        model: nn.Module,
        config: RunConfig,
        ranks: Ranks,
        lr_factors: Mapping[nn.Parameter, float] | None = None,
        undecayed: Set[nn.Parameter] = frozenset(),
    ) -> None:
        self.model = model
        self.config = config
        self.ranks = ranks
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("model must have a parameter to train, but none requires a gradient")
        self.optimizer = config.optimizer.build(_groups(self.parameters, lr_factors or {}, undecayed))
        # The same where it is one that averages, now or later.
        self.averaging = self.optimizer if isinstance(self.optimizer, AveragedSGD) else None
        # An average beside the optimizer.
        self.exponential = None if config.average is None else ExponentialAverage(config.average, self.parameters)
        # Small gradients of half precision would be lost without a scale; elsewhere it does nothing.
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=config.precision == "float16")

    def computing(self) -> AbstractContextManager[object]:
        """Around the forward of a batch: compute in the precision of the config."""
        dtype = DTYPES[self.config.precision]
        return torch.autocast(self.ranks.device.type, dtype, enabled=dtype != torch.float32)

    def backward(self, loss_sum: Tensor) -> None:
        """Add the gradients of a batch."""
        self.scaler.scale(loss_sum).backward()

    def finish(self, count: int) -> float:
        """Make the gradients those of the mean over all items of the step, clipped; their norm before is returned.

        Args:
            count: the items of the step over all batches and ranks.
        """
        self.scaler.unscale_(self.optimizer)
        gradients = [_gradient(parameter) for parameter in self.parameters]
        # Each rank has the mean over ranks of sums over its own items.
        share = self.ranks.world_size / count
        norm = share * float(whole(nn.utils.get_total_norm(gradients)))
        clip = self.config.clip
        scale = share if clip is None else share * min(1.0, clip / (norm + CLIP_EPS))
        for gradient in gradients:
            gradient.mul_(scale)
        return norm

    def step(self, lr: float, number: int) -> None:
        """Change the parameters. In float16, gradients that are not finite change only the scale.

        Args:
            number: of the step, from 1.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.exponential is not None:
            self.exponential.update(number)

    def forget(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()

    def begin_phase(self, progress: Progress, epochs: int) -> str | None:
        """Have the optimizer average from this step on, where it is time; what to report then.

        Args:
            epochs: how many epochs are finished.
        """
        trigger = self.config.optimizer.waits_for
        if not self.is_waiting(progress) or trigger is None or not trigger.is_due(progress.goals, epochs):
            return None
        assert self.averaging is not None
        self.averaging.begin()
        progress.averaging_since, progress.goals = progress.step, []
        return f"averaging begins after step {progress.step}"

    def is_waiting(self, progress: Progress) -> bool:
        """Whether averaging is still to begin."""
        return self.averaging is not None and progress.averaging_since is None

    def resume_phase(self, progress: Progress) -> None:
        """Bring the optimizer, whose state was loaded, into the phase that it was saved in."""
        if self.averaging is not None and progress.averaging_since is not None:
            self.averaging.begin()
            self.averaging.take_back()

    def log(self) -> dict[str, float]:
        """What records hold of the optimizer's phase."""
        return {} if self.averaging is None else {"averaging": float(self.is_averaging)}

    @property
    def is_averaging(self) -> bool:
        """Whether the optimizer holds averages of the parameters."""
        return self.averaging is not None and self.averaging.is_averaging

    def state_made(self, *, averaging: bool) -> dict[str, Tensor]:
        """What the optimizer makes for one parameter in its first step, by name, as a checkpoint has it.

        Args:
            averaging: whether that step is one of averaging.
        """
        parameter = nn.Parameter(torch.zeros(2, 3, dtype=self.parameters[0].dtype))
        parameter.grad = torch.zeros_like(parameter)
        optimizer = self.config.optimizer.build([parameter])
        if isinstance(optimizer, AveragedSGD) and averaging:
            optimizer.begin()
        optimizer.step()
        if isinstance(optimizer, AveragedSGD):
            optimizer.exchange()
        return {key: torch.as_tensor(value) for key, value in optimizer.state[parameter].items() if value is not None}

    def load_scaler(self, state: Any) -> None:
        """Give the scale of gradients the state it had; {} where the precision needed none."""
        if state == {}:
            return
        known = torch.amp.GradScaler("cpu").state_dict()
        is_known = isinstance(state, dict) and state.keys() == known.keys()
        if not is_known or not all(_fits(state[name], known[name]) for name in known):
            raise ValueError(f"scaler must be what GradScaler.state_dict gives, as {known}, got {shown(state)}")
        self.scaler.load_state_dict(state)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While the block runs, the model holds the averages of its parameters, if there are any."""
        drop_gathered(self.model)
        averages = self.averaging or self.exponential
        with nullcontext() if averages is None else averages.exchanged():
            try:
                yield
            finally:
                drop_gathered(self.model)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse what the device cannot compute in."""
    if precision == "float16" and device.type != "cuda":
        raise ValueError("precision must be 'float32' or 'bfloat16' on the CPU, got 'float16'")
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ValueError("precision must be 'float32' or 'float16' on this GPU, which has no bfloat16, got 'bfloat16'")


def _groups(
    parameters: Sequence[nn.Parameter], lr_factors: Mapping[nn.Parameter, float], undecayed: Set[nn.Parameter]
) -> list[dict[str, Any]]:
    """Parameters by the factor of their learning rate and whether they decay, as torch's optimizers take them."""
    trained = {id(parameter) for parameter in parameters}
    for parameter, factor in lr_factors.items():
        if id(parameter) not in trained:
            raise ValueError(
                f"lr_factors must be of parameters of the model that are trained, got one for another of shape "
                f"{tuple(parameter.shape)}; leave it out"
            )
        check_not_negative(lr_factor=factor)
    kinds = [(lr_factors.get(parameter, 1.0), parameter in undecayed) for parameter in parameters]
    return [
        {
            "params": [parameter for parameter, own in zip(parameters, kinds, strict=True) if own == kind],
            "factor": kind[0],
            **({"weight_decay": 0.0} if kind[1] else {}),
        }
        for kind in dict.fromkeys(kinds)
    ]


def _fits(value: Any, known: float) -> bool:
    """Whether a number is of the same type as a known one, finite, and above zero where that is."""
    return type(value) is type(known) and math.isfinite(value) and (value > 0 or value == known == 0)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zero where no batch used the parameter, as it is where other ranks do."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
