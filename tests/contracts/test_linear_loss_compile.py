"""Linear losses under torch.compile, and as torch operators."""

import pytest
import torch
from torch import Tensor

from tests.contracts.linear_losses import COMPILED, MEMBERS, WHOLE, Tensors, V, assert_same, targets

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_whole_for_any_number_of_targets(name: str) -> None:
    member = MEMBERS[name]
    torch._dynamo.reset()

    def loss(tensors: Tensors, target: Tensor) -> Tensor:
        return 3 * member.fused(tensors, target)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for num_targets in (4, 7, 1):
        tensors, target = member.make(num_targets), targets(num_targets, ignored=(0,))
        assert_same(compiled(tensors, target), loss(tensors, target), tensors)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tensors, target), loss(tensors, target))


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_loss_takes_no_class_that_is_not_there(name: str) -> None:
    member = MEMBERS[name]
    torch._dynamo.reset()
    compiled = torch.compile(member.fused, fullgraph=True, backend="aot_eager")
    for wrong in (V, -1):
        with pytest.raises(ValueError, match=f"target must be a class from 0 to {V - 1}, .* got {wrong}"):
            compiled(member.make(3), torch.tensor([0, wrong, 1]))


@pytest.mark.parametrize("name", WHOLE)
def test_the_operator_keeps_torchs_rules(name: str) -> None:
    member, operators = MEMBERS[name], getattr(torch.ops.anymax, MEMBERS[name].name)
    for transpose in (False, True):
        tensors = [tensor.detach() for tensor in member.make(5).values()]
        if transpose:
            tensors = [t.T.contiguous().T if t.dim() == 2 else t for t in tensors]
        num_pieces = 2 if "pieces" in name else 1
        if num_pieces == 2 or "bias" not in member.shapes((5,)):
            tensors.insert(2, None)
        extras = tensors[3 * num_pieces :]
        if member.name == "linear_entmax_loss":
            extras = [extras[0].reshape(-1) if extras else torch.tensor([1.5], dtype=torch.float64)]
        tensors = tensors[: 3 * num_pieces] + extras
        wanted = [tensor is not None for tensor in tensors]
        coefficient = torch.tensor(1.0, dtype=torch.float64)
        arguments = (tensors, targets(5), coefficient, num_pieces, "mean", -100, 0.0, 10**6, wanted)
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
        torch.library.opcheck(operators.default, arguments, test_utils=checks)
