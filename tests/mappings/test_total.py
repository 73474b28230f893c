"""What mappings declare of their sums, which the contract suite holds them to."""

import functools

import anymax
from anymax import mappings
from anymax.mappings import total_of
from anymax.mappings.total import Total


def test_a_function_a_module_and_a_partial_declare_what_they_sum_to() -> None:
    cases: dict[Total, list[object]] = {
        "one": [anymax.softmax, anymax.sparsemax, anymax.Entmax(1.5), lambda scores, mask=None: scores],
        "at most one": [anymax.softpick, mappings.Softpick(), functools.partial(anymax.softpick, eps=1e-6)],
        "weights": [
            anymax.sigmoid,
            anymax.rectified,
            mappings.Sigmoid(),
            mappings.Rectified(2),
            functools.partial(functools.partial(anymax.rectified, dim=-1), power=2),
        ],
    }
    for total, members in cases.items():
        assert [total_of(member) for member in members] == [total] * len(members)
