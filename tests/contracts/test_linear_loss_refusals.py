"""What every linear loss refuses."""

import pytest
import torch

from tests.contracts.linear_losses import MEMBERS, D, Member, V, targets

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=list(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return MEMBERS[request.param]


def test_wrong_targets_are_refused(member: Member) -> None:
    tensors = member.make(3)
    for wrong in (V, -1):
        with pytest.raises(
            ValueError, match=rf"target must be a class from 0 to 149, or ignore_index \(-100\), got {wrong}"
        ):
            member.fused(tensors, torch.tensor([0, wrong, 1]))
    with pytest.raises(ValueError, match=r"target .*\(4,.* got \(3,"):
        member.fused(tensors, targets(4))
    with pytest.raises(TypeError, match=rf"target must be .* got torch.float32; {member.name} takes no distributions"):
        member.fused(tensors, torch.rand(3, V))
    with pytest.raises(TypeError, match=r"target must be .* got list"):
        member.fused(tensors, [0, 1, 2])
    with pytest.raises(ValueError, match=r"target must be on the device of (hidden|experts), cpu, got meta"):
        member.fused(tensors, targets(3).to("meta"))


def test_wrong_options_are_refused(member: Member) -> None:
    tensors, target = member.make(3), targets(3)
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, got 'average'"):
        member.fused(tensors, target, reduction="average")
    if member.has_smoothing:
        for smoothing in (-0.1, 1.5, torch.nan):
            with pytest.raises(ValueError, match=f"label_smoothing must be between 0 and 1, got {smoothing}"):
                member.fused(tensors, target, label_smoothing=smoothing)
    least = member.budget(1, torch.float64)
    for budget in (least - 1, 0, -5):
        with pytest.raises(ValueError, match=f"one target, {least} bytes, got {budget}"):
            member.fused(tensors, target, memory_budget=budget)
    with pytest.raises(TypeError, match=r"memory_budget must be .* got float"):
        member.fused(tensors, target, memory_budget=1e9)


def test_tensors_that_do_not_fit_are_refused(member: Member) -> None:
    tensors, target = member.make(3), targets(3)
    hidden, weight = list(tensors)[:2]
    for width in (D - 1, D + 1):
        with pytest.raises(ValueError, match=rf"must end in the dimension of linear_weight, 6, got shape .*{width}\)"):
            member.fused(tensors | {hidden: torch.randn(*tensors[hidden].shape[:-1], width).double()}, target)
    with pytest.raises(ValueError, match=r"linear_weight must be \(classes, dimension\) .* got \(6,\)"):
        member.fused(tensors | {weight: torch.randn(D).double()}, target)
    with pytest.raises(ValueError, match=r"linear_weight must be .* at least one class, got \(0, 6\)"):
        member.fused(tensors | {weight: torch.randn(0, D).double()}, target)
    with pytest.raises(TypeError, match=r"must have one dtype, got torch\.float32, torch\.float64"):
        member.fused(tensors | {hidden: tensors[hidden].float()}, target)
    with pytest.raises(TypeError, match=r"linear_weight must be a floating-point tensor, got torch\.int64"):
        member.fused(tensors | {weight: tensors[weight].long()}, target)
    with pytest.raises(ValueError, match=r"linear_weight must be on the device of (hidden|experts), cpu, got meta"):
        member.fused(tensors | {weight: tensors[weight].to("meta")}, target)
    bias = next((key for key in tensors if key.endswith("bias")), None)
    if bias is not None:
        n = tensors[bias].shape[0]
        with pytest.raises(
            ValueError, match=rf"linear_bias must have one entry per class, {n}, got shape \({n + 1},\)"
        ):
            member.fused(tensors | {bias: torch.randn(n + 1).double()}, target)
        with pytest.raises(TypeError, match=r"linear_bias must be a .*tensor, got str"):
            member.fused(tensors | {bias: "none"}, target)
