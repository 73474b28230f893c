"""Every structure of a small polytope written out, and what can be said about scores by looking at all of them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from anymax.structured import Bits, Budget, Matching, Polytope, Sequence

# How often a solver may begin anew.
STARTS = 50


@dataclass(frozen=True)
class Small:
    """A polytope with the shape of its scores and all of its structures, as an oracle for one example."""

    polytope: Polytope
    event: tuple[int, ...]

    @property
    def structures(self) -> Tensor:
        return torch.stack(list(_structures(self.polytope, self.event)))

    def linear(self, scores: Tensor) -> Tensor:
        """The score of every structure, for one example in float64."""
        structures = self.structures
        total = (structures * scores).flatten(1).sum(1)
        if isinstance(self.polytope, Sequence):
            total = total + torch.stack([path_score(s, self.polytope.transitions) for s in structures])
        return total

    def squared(self) -> Tensor:
        """What the square is taken of, for every structure: where a bit is symmetric, both of its values."""
        structures = self.structures.flatten(1)
        if isinstance(self.polytope, Bits | Budget) and self.polytope.symmetric:
            return torch.cat([structures, 1 - structures], 1)
        return structures

    def sparsemap(self, scores: Tensor) -> Tensor:
        """The marginals by a quadratic programme over the probabilities of all structures.

        The solver often ends a little early, so it begins anew until the duality gap says that it has not.
        """
        linear, squared = self.linear(scores).numpy(), self.squared().numpy()
        n = len(linear)
        for start in [np.full(n, 1 / n), *np.random.default_rng(0).dirichlet(np.ones(n), size=STARTS)]:
            result = minimize(
                lambda p: np.square(p @ squared).sum() / 2 - p @ linear,
                start,
                jac=lambda p: squared @ (p @ squared) - linear,
                bounds=[(0, 1)] * n,
                constraints=[{"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like}],
                method="SLSQP",
                options={"ftol": 1e-15, "maxiter": 500},
            )
            probs = torch.from_numpy(result.x / result.x.sum())
            if self.duality_gap(scores, probs, self.structures) < 1e-9:
                return torch.einsum("s,s...->...", probs, self.structures)
        raise AssertionError(
            f"the solver came near from none of {STARTS + 1} starts; the last one said {result.message}"
        )

    def duality_gap(self, scores: Tensor, probs: Tensor, structures: Tensor) -> Tensor:
        """How much the objective could still rise, at most, from a distribution over some of the structures."""
        index = (self.structures[None] == structures[:, None]).flatten(2).all(2).to(torch.uint8).argmax(1)
        all_probs = probs.new_zeros(len(self.structures)).index_add(0, index, probs)
        slope = self.linear(scores) - self.squared() @ (all_probs @ self.squared())
        return slope.max() - slope @ all_probs


def path_score(structure: Tensor, transitions: Tensor) -> Tensor:
    """The transitions' part of the score of one path."""
    tags = [int(row.argmax()) for row in structure if row.any()]
    steps = transitions.expand(len(structure) - 1, *transitions.shape[-2:])
    return sum((steps[i, a, b] for i, (a, b) in enumerate(itertools.pairwise(tags))), torch.zeros(()).double())


def _structures(polytope: Polytope, event: tuple[int, ...]) -> Iterator[Tensor]:
    if isinstance(polytope, Sequence):
        length = event[0] if polytope.lengths is None else int(polytope.lengths)
        for tags in itertools.product(range(event[1]), repeat=length):
            structure = torch.zeros(event, dtype=torch.float64)
            structure[range(length), tags] = 1
            yield structure
    elif isinstance(polytope, Matching):
        for order in itertools.permutations(range(event[0])):
            yield torch.eye(event[0], dtype=torch.float64)[list(order)]
    else:
        most = polytope.k if isinstance(polytope, Budget) else event[0]
        for bits in itertools.product([0.0, 1.0], repeat=event[0]):
            if sum(bits) <= most:
                yield torch.tensor(bits, dtype=torch.float64)


TRANSITIONS = torch.tensor([[0.6, -0.4, 0.1], [-0.8, 0.3, 0.9], [0.2, 0.5, -0.7]], dtype=torch.float64)
BY_STEP = torch.stack([TRANSITIONS, -TRANSITIONS, TRANSITIONS.T])
SMALL = {
    "bits": Small(Bits(), (5,)),
    "plain bits": Small(Bits(symmetric=False), (5,)),
    "one bit": Small(Bits(), (1,)),
    "budget": Small(Budget(2), (5,)),
    "plain budget": Small(Budget(2, symmetric=False), (5,)),
    "budget of none": Small(Budget(0), (4,)),
    "budget of one": Small(Budget(1), (4,)),
    "budget of all": Small(Budget(4), (4,)),
    "sequence": Small(Sequence(TRANSITIONS), (4, 3)),
    "sequence by step": Small(Sequence(BY_STEP), (4, 3)),
    "short sequence": Small(Sequence(BY_STEP, torch.tensor(3)), (4, 3)),
    "sequence of one": Small(Sequence(TRANSITIONS, torch.tensor(1)), (3, 3)),
    "matching": Small(Matching(), (3, 3)),
}
WAYS = [(name, way) for name, small in SMALL.items() for way in small.polytope.decompositions]
