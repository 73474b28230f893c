"""Entmax and PLIF against torch.softmax and the entmax package: forward and backward, a small call, half precision.

Shapes: R rows, N entries, K pieces of PLIF.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anymax.bench.harness import machine, peers
from anymax.bench.harness.comparison import Comparison, Contestant, Entry, compare
from anymax.bench.harness.report import MICROSECONDS, Report
from anymax.bench.harness.timing import Budget, Run, time_interleaved
from anymax.kernels import library
from anymax.mappings import entmax
from anymax.transforms import plif

SHAPES = ((8192, 64), (4096, 512), (256, 32768), (64, 262144))
SMALL_SHAPE = (8, 64)
PLIF_SHAPE = (64, 32768)
PLIF_PIECES = 100_000
PLIF_BOUND = 20.0
ALPHAS = (1.0, 2.0, 1.5, 1.33)
ROW_ALPHAS = (1.05, 2.0)
BASELINE = "torch.softmax"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASE_BUDGET = Budget(seconds=30.0)
SWEEP_BUDGET = Budget(seconds=5.0, rounds=7)

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        scales: standard deviations of the normal scores; the smaller, the wider the support.
        threads: torch's number of threads; None leaves it as it is.
        peers: also time the entmax package, if it is installed.
        peer_defaults: also time the peer's bisection at its default number of steps.
        budget: of one case.
        sweep_budget: of one choice of the peer's `k`.
        checked_entries: of the scores on which the peer's number of bisection steps is chosen.
        plif_shape: of the scores that PLIF maps.
    """

    shapes: tuple[tuple[int, int], ...] = SHAPES
    scales: tuple[float, ...] = (1.0,)
    threads: int | None = None
    peers: bool = True
    peer_defaults: bool = True
    budget: Budget = CASE_BUDGET
    sweep_budget: Budget = SWEEP_BUDGET
    checked_entries: int = 1 << 20
    plif_shape: tuple[int, int] = PLIF_SHAPE

    def __post_init__(self) -> None:
        if not self.scales or not all(0 < scale < math.inf for scale in self.scales):
            raise ValueError(f"scales must be positive numbers, at least one, got {self.scales}; try 0.2 1 4")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return len(self.shapes) * (len(self.scales) + 1) + 2


def quick(scales: tuple[float, ...] = (1.0,), threads: int | None = None, peers: bool = True) -> Settings:
    """Half a minute in all: fewer rows where they are long, few rounds, no defaults of the peer.

    Far fewer rows where the native kernels are missing: the reference takes its time.
    """
    most_entries, least_rows = (1 << 20, 8) if library.why_missing() is None else (1 << 15, 1)

    def shrunk(rows: int, n: int) -> tuple[int, int]:
        return min(rows, max(least_rows, most_entries // n)), n

    return Settings(
        shapes=tuple(shrunk(*shape) for shape in SHAPES),
        plif_shape=shrunk(*PLIF_SHAPE),
        scales=scales,
        threads=threads,
        peers=peers,
        peer_defaults=False,
        budget=Budget(seconds=1.5, rounds=40, least=2),
        sweep_budget=Budget(seconds=0.2, rounds=3, least=2),
        checked_entries=1 << 16,
    )


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every case; `announce` is called with each step as it begins."""
    with_peers = settings.peers and peers.is_installed()
    notes = tuple(_notes(settings, with_peers))
    with machine.threads(settings.threads):
        comparisons = []
        for scale in settings.scales:
            for rows, n in settings.shapes:
                announce(f"{rows}x{n}, scores of scale {scale:g}")
                comparisons.append(_compare(rows, n, scale, settings, with_peers))
        announce(f"PLIF on {_shape_name(*settings.plif_shape)}")
        comparisons.append(_compare_plif(*settings.plif_shape, settings.budget))
        announce(f"one call on {_shape_name(*SMALL_SHAPE)}")
        comparisons.append(_compare_calls(with_peers, settings.budget))
        for rows, n in settings.shapes:
            announce(f"{_shape_name(rows, n)} in half precision")
            comparisons.append(_compare_precisions(rows, n, settings))
        return Report("mappings", machine.describe(), tuple(comparisons), notes)


def _notes(settings: Settings, with_peers: bool) -> Iterator[str]:
    yield "each number is the median of per-round ratios to torch.softmax, forward and backward"
    yield "all in float32 where no other precision is named"
    yield "extra memory is the most that is allocated at once, over the inputs and the gradients"
    yield "below 1 is faster"
    if settings.peers and not with_peers:
        yield "the entmax package is not installed, so there are no peers; pip install 'anymax[peers]'"
    yield from machine.warnings()


@dataclass(frozen=True)
class _Contestant:
    maker: str
    name: str
    run: Run
    setting: str = ""


@dataclass(frozen=True)
class _Inputs:
    """What every contestant of a case is given."""

    scores_RN: Tensor
    upstream_RN: Tensor
    alpha_R1: Tensor
    learned_alpha_R1: Tensor

    def rounded(self, dtype: torch.dtype) -> "_Inputs":
        """The same scores and upstream gradient in another precision."""
        scores_RN = self.scores_RN.detach().to(dtype).requires_grad_()
        return _Inputs(scores_RN, self.upstream_RN.to(dtype), self.alpha_R1, self.learned_alpha_R1)

    def timed(self, mapping: Callable[[], Tensor]) -> Run:
        """Forward and backward of a mapping of the scores."""
        return lambda: torch.autograd.grad(mapping(), self.scores_RN, self.upstream_RN)

    def timed_with_alpha(self, mapping: Callable[[], Tensor]) -> Run:
        """Forward and backward of a mapping of the scores and the learned alpha."""
        return lambda: torch.autograd.grad(mapping(), (self.scores_RN, self.learned_alpha_R1), self.upstream_RN)


def _inputs(rows: int, n: int, scale: float) -> _Inputs:
    generator = torch.Generator().manual_seed(0)
    scores_RN = (torch.randn(rows, n, generator=generator) * scale).requires_grad_()
    upstream_RN = torch.randn(rows, n, generator=generator)
    low, high = ROW_ALPHAS
    alpha_R1 = low + (high - low) * torch.rand(rows, 1, generator=generator)
    return _Inputs(scores_RN, upstream_RN, alpha_R1, alpha_R1.clone().requires_grad_())


def _compare(rows: int, n: int, scale: float, settings: Settings, with_peers: bool) -> Comparison:
    inputs = _inputs(rows, n, scale)
    contestants = [_Contestant("torch", BASELINE, inputs.timed(lambda: inputs.scores_RN.softmax(-1))), *_ours(inputs)]
    sweeps: list[peers.Sweep] = []
    if with_peers:
        contestants += _exact_peers(inputs, settings, sweeps)
        contestants += _bisecting_peers(inputs, settings, sweeps)
    job = f"Ratio to {BASELINE}, scores of scale {scale:g}"
    return Comparison(job, _entries(contestants, settings.budget), tuple(sweeps), _shape_name(rows, n))


def _ours(inputs: _Inputs) -> Iterator[_Contestant]:
    scores_RN = inputs.scores_RN

    def with_alpha(alpha: float | Tensor) -> Callable[[], Tensor]:
        return lambda: entmax(scores_RN, alpha)

    for alpha in ALPHAS:
        yield _Contestant("anymax", f"entmax {alpha:g}", inputs.timed(with_alpha(alpha)))
    yield _Contestant("anymax", "entmax per row", inputs.timed(with_alpha(inputs.alpha_R1)))
    learned = inputs.timed_with_alpha(with_alpha(inputs.learned_alpha_R1))
    yield _Contestant("anymax", "entmax per row, learned", learned)


def _exact_peers(inputs: _Inputs, settings: Settings, sweeps: list[peers.Sweep]) -> Iterator[_Contestant]:
    """Those that sort, each at its fastest k; what was tried is added to `sweeps`."""
    for function in ("sparsemax", "entmax15"):
        sweep, mapping = peers.fastest_k(function, inputs.scores_RN, inputs.timed, settings.sweep_budget)
        sweeps.append(sweep)
        yield _Contestant(peers.name(), function, inputs.timed(mapping), sweep.chosen)


def _bisecting_peers(inputs: _Inputs, settings: Settings, sweeps: list[peers.Sweep]) -> Iterator[_Contestant]:
    """Those that bisect, with the fewest steps that are accurate enough; what was tried is added to `sweeps`."""
    for label, alpha in (("1.33", 1.33), ("per row", inputs.alpha_R1)):
        name = f"entmax_bisect {label}"
        entries = settings.checked_entries
        sweep, steps = peers.fewest_steps(name, inputs.scores_RN, alpha, most_entries=entries)
        sweeps.append(sweep)
        mapping = peers.bisection(inputs.scores_RN, alpha, steps)
        yield _Contestant(peers.name(), name, inputs.timed(mapping), sweep.chosen)
        if settings.peer_defaults:
            default = peers.bisection(inputs.scores_RN, alpha, peers.DEFAULT_STEPS)
            setting = f"n_iter={peers.DEFAULT_STEPS}"
            yield _Contestant(peers.name(), f"{name}, default", inputs.timed(default), setting)
    learned = peers.bisection(inputs.scores_RN, inputs.learned_alpha_R1, steps)
    yield _Contestant(peers.name(), f"{name}, learned", inputs.timed_with_alpha(learned), sweep.chosen)


def _compare_plif(rows: int, n: int, budget: Budget) -> Comparison:
    inputs = _inputs(rows, n, 1.0)
    scores_RN = inputs.scores_RN
    slopes_K = torch.rand(PLIF_PIECES, generator=torch.Generator().manual_seed(0)).add_(0.5).requires_grad_()

    def by_scores_and_slopes() -> object:
        return torch.autograd.grad(
            plif(scores_RN, slopes_K, bound=PLIF_BOUND), (scores_RN, slopes_K), inputs.upstream_RN
        )

    contestants = [
        _Contestant("torch", BASELINE, inputs.timed(lambda: scores_RN.softmax(-1))),
        _Contestant("anymax", "plif", by_scores_and_slopes, f"{PLIF_PIECES} pieces"),
    ]
    return Comparison(f"PLIF of {_shape_name(rows, n)}, forward and backward", _entries(contestants, budget))


def _compare_calls(with_peers: bool, budget: Budget) -> Comparison:
    scores_RN = torch.randn(*SMALL_SHAPE, generator=torch.Generator().manual_seed(0))
    contestants = [
        _Contestant("torch", BASELINE, lambda: torch.softmax(scores_RN, -1)),
        _Contestant("anymax", "entmax 1.5", lambda: entmax(scores_RN, 1.5)),
    ]
    if with_peers:
        entmax15 = peers.module().entmax15
        contestants.append(_Contestant(peers.name(), "entmax15", lambda: entmax15(scores_RN)))
    small_budget = Budget(seconds=min(budget.seconds, 2.0), rounds=budget.rounds, least=budget.least)
    job = f"One call on {_shape_name(*SMALL_SHAPE)}, without a gradient"
    return Comparison(job, _entries(contestants, small_budget), unit=MICROSECONDS)


def _compare_precisions(rows: int, n: int, settings: Settings) -> Comparison:
    """Time and memory in half precision, against torch.softmax in float32."""
    scale = settings.scales[0]
    inputs = _inputs(rows, n, scale)
    by_precision = {name: inputs.rounded(dtype) for name, dtype in PRECISIONS.items()}

    def contestants(name: str, mapping: Callable[[_Inputs], Tensor]) -> Iterator[Contestant]:
        for precision, of in by_precision.items():
            run = of.timed(lambda of=of: mapping(of))  # type: ignore[misc]
            yield Contestant(f"{name}, {precision}", run, of.scores_RN.numel() * of.scores_RN.element_size())

    compared = [
        *contestants(BASELINE, lambda of: of.scores_RN.softmax(-1)),
        *contestants("entmax 1.5", lambda of: entmax(of.scores_RN, 1.5)),
        *contestants("entmax per row", lambda of: entmax(of.scores_RN, of.alpha_R1)),
    ]
    return compare(f"Half precision, {_shape_name(rows, n)}, scores of scale {scale:g}", compared, settings.budget)


def _entries(contestants: list[_Contestant], budget: Budget) -> tuple[Entry, ...]:
    runs = {f"{one.maker} {one.name}": one.run for one in contestants}
    timings = time_interleaved(runs, baseline=next(iter(runs)), budget=budget)
    pairs = zip(contestants, timings.values(), strict=True)
    return tuple(Entry(one.name, timing, one.setting, one.maker) for one, timing in pairs)


def _shape_name(rows: int, n: int) -> str:
    return f"{rows}x{n}"
