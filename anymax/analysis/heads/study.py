"""The heads of a trained run, measured on examples of one of its splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anymax.analysis.heads.alphas import Alphas, learned
from anymax.analysis.heads.examples import Named, name_heads
from anymax.analysis.heads.measure import Measured, measure
from anymax.analysis.heads.roles import Role, usual_roles
from anymax.checks import check_counts
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.training.observed import Observed
from anymax.training.task import Task


@dataclass(frozen=True, eq=False)
class Heads:
    """What the heads of a run do.

    Args:
        split, limit, seed: the examples: of this split, at most so many, drawn by this seed.
        roles: those that were looked for.
        alphas: what heads learned; None where none learns an alpha.
        named: for each role and kind of attention the head that plays it best.
    """

    split: Split
    limit: int
    seed: int
    roles: tuple[Role, ...]
    measured: Measured
    alphas: Alphas | None
    named: tuple[Named, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "split": self.split,
            "limit": self.limit,
            "seed": self.seed,
            "roles": {role.name: role.meaning for role in self.roles},
            **self.measured.as_dict(),
            "alphas": None if self.alphas is None else self.alphas.as_dict(),
            "named": [each.as_dict() for each in self.named],
        }


def takes(task: Task) -> str | None:
    """Why there are no heads to look at; None where there are."""
    return task.why_unobserved()


def study_heads(
    task: Task,
    run: Path,
    split: Split,
    *,
    limit: int = 200,
    seed: int = 1,
    roles: Sequence[Role] | None = None,
    most: int = 3,
    announce: Announce,
) -> Heads:
    """Measure the heads of a task, in two passes over the same examples: the second looks for sentences to draw.

    Args:
        run: the folder with the records of training, which have the path of alphas.
        limit, seed: how many examples, and which.
        roles: by default `usual_roles()`.
        most: sentences to draw for each head with a role.
    """
    check_counts(limit=limit)
    check_counts(least=0, most=most)
    why = takes(task)
    if why is not None:
        raise ValueError(f"{run} must be a run whose model has heads of attention, but {why}")
    roles = usual_roles() if roles is None else tuple(roles)

    def observed(what: str) -> Iterator[Observed]:
        done = 0
        for batch in task.observe(split, limit=limit, seed=seed):
            yield batch
            done += len(next(iter(batch.queries.values()), ()))
            announce(f"{what} in {split}: {done:,} of at most {limit:,} examples")

    measured = measure(observed("measuring heads"), roles)
    alphas = learned(task.model, task.watch(), run)
    now = {} if alphas is None else alphas.now
    named = name_heads(measured, roles, now, observed("looking for sentences"), most=most)
    return Heads(split, limit, seed, tuple(roles), measured, alphas, tuple(named))
