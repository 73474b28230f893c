"""Every mapping compiles without a graph break and gives the same numbers and gradients."""

import pytest
import torch

from tests.contracts.test_mapping import MEMBERS, Member


@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if not member.is_random])
def test_compiles_whole_and_agrees_with_eager(name: str) -> None:
    member: Member = MEMBERS[name]
    torch._dynamo.reset()
    compiled = torch.compile(member.call, fullgraph=True, backend="aot_eager")
    scores, weights = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
    for call in (compiled, member.call):
        (gradient,) = torch.autograd.grad((call(scores) * weights).sum(), scores)
        expected = (call(scores).detach(), gradient)
        if call is compiled:
            got = expected
    torch.testing.assert_close(got, expected)
