"""The entmax package in attention: its functions between two matrix products, each at its best setting, against ours.

Shapes: B batch, H heads, N positions, R rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from anymax.bench.attention.problem import ALPHA, Problem, Probs, alphas_per_head, make
from anymax.bench.attention.settings import Settings, Shape
from anymax.bench.harness import peers
from anymax.bench.harness.comparison import Comparison, compare, fastest
from anymax.bench.harness.peers import Sweep

OURS = "entmax_attention"
JOB = "The entmax package as eager attention"


def jobs(settings: Settings) -> Iterator[tuple[str, Callable[[], Comparison]]]:
    """The last shape, which is the fastest, at every density, and with learned alphas at the middle one."""
    shape = settings.shapes[-1]
    for wanted in settings.densities:
        yield f"{JOB}, {100 * wanted:g} %", partial(_fixed, shape, wanted, settings)
    yield f"{JOB}, alpha learned", partial(_learned, shape, settings.densities[1], settings)


def _fixed(shape: Shape, wanted: float, settings: Settings) -> Comparison:
    problem = make(shape, [wanted], settings)
    of_k, sorting = _at_best_k(problem, settings)
    of_steps, num_steps = _fewest_steps(problem, ALPHA, settings)
    contestants = [
        problem.contestant(OURS, problem.ours),
        problem.contestant(f"{peers.name()}, entmax15", partial(problem.eager, sorting), setting=of_k.chosen),
        problem.contestant(
            f"{peers.name()}, entmax_bisect",
            partial(problem.eager, _bisecting(ALPHA, num_steps)),
            setting=of_steps.chosen,
        ),
    ]
    compared = compare(JOB, contestants, settings.budget, (of_k, of_steps), device=settings.device)
    return replace(compared, case=f"{shape}, {100 * wanted:g} %")


def _learned(shape: Shape, wanted: float, settings: Settings) -> Comparison:
    problem = make(shape, [wanted], settings, alphas=alphas_per_head(settings, shape.heads))
    alpha_H = problem.alpha_H.clone().requires_grad_()
    of_steps, num_steps = _fewest_steps(problem, alpha_H, settings)

    def theirs() -> Tensor:
        alpha_BHN1 = alpha_H[:, None, None].expand(*shape, 1)
        return problem.eager(_bisecting(alpha_BHN1, num_steps))

    contestants = [
        problem.contestant(OURS, partial(problem.ours, alpha_H), alpha_H),
        problem.contestant(f"{peers.name()}, entmax_bisect", theirs, alpha_H, setting=of_steps.chosen),
    ]
    compared = compare(
        f"{JOB}, an alpha per head, learned", contestants, settings.budget, (of_steps,), device=settings.device
    )
    return replace(compared, case=f"{shape}, {100 * wanted:g} %")


def _at_best_k(problem: Problem, settings: Settings) -> tuple[Sweep, Probs]:
    """`entmax15` that looks among the k largest scores first, at the k at which whole attention is fastest."""
    num_keys = problem.key_BHNE.shape[2]
    entmax15 = peers.module().entmax15
    tried = {f"k={k}": _in_float32(partial(entmax15, dim=-1, k=k)) for k in peers.KS if k is None or k <= num_keys}
    runs = {setting: problem.run(partial(problem.eager, probs)) for setting, probs in tried.items()}
    sweep = fastest("entmax15", runs, settings.sweep_budget)
    return sweep, tried[sweep.chosen]


def _fewest_steps(problem: Problem, alpha: float | Tensor, settings: Settings) -> tuple[Sweep, int]:
    """Of `entmax_bisect`, on rows of every head in turn."""
    scores_RN = problem.scores().detach().float().transpose(1, 2).flatten(0, 2)
    if isinstance(alpha, Tensor):
        alpha = alpha.detach().repeat(len(scores_RN) // len(alpha))[:, None]
    return peers.fewest_steps("entmax_bisect", scores_RN, alpha, most_entries=settings.checked_entries)


def _bisecting(alpha: float | Tensor, num_steps: int) -> Probs:
    return _in_float32(partial(peers.module().entmax_bisect, alpha=alpha, dim=-1, n_iter=num_steps))


def _in_float32(probs: Probs) -> Probs:
    """The package has no other care for half precision."""
    return lambda scores: probs(scores.float()).to(scores.dtype)
