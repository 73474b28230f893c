"""The entmax package as a peer, each of its functions at the best setting it has for the scores at hand.

Its exact functions sort, or look among the `k` largest first; the fastest k is its best. Its bisection takes `n_iter`
steps; the fewest that reach float32's accuracy are its best. Shapes: R rows, N entries.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anymax.bench.harness.timing import Budget, Run, time_interleaved

TOLERANCE = 1e-6
DEFAULT_STEPS = 50
KS: tuple[int | None, ...] = (None, 32, 128, 512)


@dataclass(frozen=True)
class Sweep:
    """The settings that were tried for one function, in order, with what was found, and the one chosen."""

    function: str
    found: str
    tried: dict[str, float]
    chosen: str


def is_installed() -> bool:
    return importlib.util.find_spec("entmax") is not None


def name() -> str:
    return f"entmax {importlib.metadata.version('entmax')}"


def module() -> Any:
    return importlib.import_module("entmax")


def fastest_k(
    function: str, scores_RN: Tensor, timed: Callable[[Callable[[], Tensor]], Run], budget: Budget
) -> tuple[Sweep, Callable[[], Tensor]]:
    """The `k` at which `sparsemax` or `entmax15` is fastest on these scores, and the mapping with it.

    Args:
        timed: turns a mapping into the call that is timed, as with its backward pass.
    """
    mapping = getattr(module(), function)
    settings: dict[str, Callable[[], Tensor]] = {}
    for k in KS:
        if k is None or k <= scores_RN.shape[-1]:
            settings[f"k={k}"] = _with_k(mapping, scores_RN, k)
    runs = {setting: timed(call) for setting, call in settings.items()}
    timings = time_interleaved(runs, baseline="k=None", budget=budget)
    tried = {setting: timing.milliseconds.median for setting, timing in timings.items()}
    chosen = min(tried, key=tried.__getitem__)
    return Sweep(function, "milliseconds", tried, chosen), settings[chosen]


def fewest_steps(label: str, scores_RN: Tensor, alpha: float | Tensor, *, most_entries: int) -> tuple[Sweep, int]:
    """The fewest steps at which `entmax_bisect` is within TOLERANCE of itself in float64, in every entry.

    Args:
        most_entries: only as many rows are looked at as have this many entries, at least one.
    """
    bisect = module().entmax_bisect
    rows = slice(max(1, most_entries // scores_RN.shape[-1]))
    scores = scores_RN.detach()[rows]
    alpha_rows = alpha.detach()[rows] if isinstance(alpha, Tensor) else alpha
    exact_alpha = alpha_rows.double() if isinstance(alpha_rows, Tensor) else alpha_rows
    exact = bisect(scores.double(), exact_alpha, n_iter=DEFAULT_STEPS)
    tried: dict[str, float] = {}

    def reaches(steps: int) -> bool:
        error = (bisect(scores, alpha_rows, n_iter=steps).double() - exact).abs().max().item()
        tried[f"n_iter={steps}"] = error
        return bool(error <= TOLERANCE)

    steps = _first(reaches, range(1, DEFAULT_STEPS + 1))
    ordered = dict(sorted(tried.items(), key=lambda item: int(item[0].partition("=")[2])))
    return Sweep(label, "largest error", ordered, f"n_iter={steps}"), steps


def bisection(scores_RN: Tensor, alpha: float | Tensor, steps: int) -> Callable[[], Tensor]:
    """`entmax_bisect` with a number of steps, to be called."""
    mapping = module().entmax_bisect
    return lambda: mapping(scores_RN, alpha, dim=-1, n_iter=steps)


def _with_k(mapping: Callable[..., Tensor], scores_RN: Tensor, k: int | None) -> Callable[[], Tensor]:
    return lambda: mapping(scores_RN, dim=-1, k=k)


def _first(holds: Callable[[int], bool], choices: Sequence[int]) -> int:
    """The first choice that holds, where those after it hold too; the last if none does."""
    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        if holds(choices[middle]):
            high = middle
        else:
            low = middle + 1
    return choices[min(low, len(choices) - 1)]
