"""Attention by entmax against torch's, eager attention and the entmax package, and what it costs in a training step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from anymax.bench.attention import package, translation
from anymax.bench.attention.problem import Problem, alphas_per_head, make
from anymax.bench.attention.settings import Settings, Shape
from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, Contestant, compare
from anymax.bench.harness.report import Report
from anymax.kernels.attention import kernels

Announce = Callable[[str], None]
TORCHS = "F.scaled_dot_product_attention"
EAGER = "eager softmax"
OURS = "entmax_attention"
FIXED = "alpha 1.5"
PER_HEAD = "an alpha per head, fixed"
LEARNED = "an alpha per head, learned"
ALONE = "both kinds in a call each"
TOGETHER = "both in one call, two calls"


@dataclass(frozen=True)
class Kind:
    """How attention is called, beside its shape."""

    name: str
    dropout: float = 0.0
    is_causal: bool = False


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every comparison; `announce` is called with each as it begins."""
    with machine.threads(settings.threads):
        notes = tuple(_notes(settings))
        comparisons = []
        for step, run in _jobs(settings):
            announce(step)
            comparisons.append(run())
        return Report("attention", machine.describe(), tuple(comparisons), notes)


def _notes(settings: Settings) -> Iterator[str]:
    yield (
        f"a shape is batch x heads x length, as many keys as queries; heads are {settings.width} wide, in "
        f"{settings.precision}; forward and backward, with gradients for queries, keys and values"
    )
    yield (
        "density is the share of probabilities that are not zero, of those a query may choose; queries and keys are "
        "standard normal, and each head's queries are multiplied with the scale, the deviation of the scores, at which "
        "alpha 1.5 or the head's own has the wanted density: found by bisection, measured again over all heads. "
        "Softmax gets the scores of the middle density"
    )
    low, high = settings.alphas
    yield f"an alpha per head: from {low:g} to {high:g}, evenly"
    yield translation.describe(settings)
    yield f"the {_backend(settings)} backend computed entmax_attention"
    if settings.device == "cuda":
        yield f"all on {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}; the CPU above drives it"
    yield "each ratio is the median of per-round ratios to the first row of its table"
    yield (
        "extra memory is the most that torch allocates at once, over the inputs and the gradients; a block of scores "
        "for each thread inside a kernel is not seen"
    )
    yield "below 1 is better"
    if settings.peers and not settings.with_peers:
        yield "the entmax package is not installed, so there are no peers; pip install 'anymax[peers]'"
    yield from machine.warnings()


def _backend(settings: Settings) -> str:
    """The name of the one that takes such queries."""
    query_BHNE = torch.empty(1, 1, 1, settings.width, dtype=settings.dtype, device=settings.device)
    return str(getattr(kernels.choose(query_BHNE), "__name__", "unnamed")).rpartition(".")[2]


def _jobs(settings: Settings) -> Iterator[tuple[str, Callable[[], Comparison]]]:
    dropped = Kind(f"dropout {settings.dropout:g}", dropout=settings.dropout)
    for kind in (Kind(""), dropped, Kind("causal", is_causal=True)):
        for shape in settings.shapes:
            job = f"Attention of {shape}{f', {kind.name}' if kind.name else ''}"
            yield job, partial(_against_torch, job, shape, kind, settings)
    job = f"Attention of {settings.translation}, as in translation, dropout {settings.dropout:g}"
    yield job, partial(_translation, job, settings)
    for shape in settings.shapes:
        job = f"Alpha learned per head, {shape}"
        for wanted in settings.densities:
            yield f"{job}, {100 * wanted:g} %", partial(_learned, job, shape, wanted, settings)
    job = f"Half of the heads of density {100 * settings.densities[0]:g} %, half dense"
    for shape in settings.shapes:
        yield f"{job}, {shape}", partial(_mixed, job, shape, settings)
    if settings.with_peers:
        yield from package.jobs(settings)
    job = "A training step of a Transformer for translation"
    yield job, partial(translation.compare_mappings, job, settings)


def _against_torch(job: str, shape: Shape, kind: Kind, settings: Settings) -> Comparison:
    problems = _at_every_density(shape, kind, settings)
    contestants = [*_softmaxes(problems), *_ours(problems, settings)]
    compared = compare(job, contestants, settings.budget, device=settings.device)
    return replace(compared, memory_baseline=EAGER)


def _translation(job: str, settings: Settings) -> Comparison:
    problems = _at_every_density(settings.translation, Kind("", dropout=settings.dropout), settings)
    torchs, eager = _softmaxes(problems)
    return compare(job, [eager, torchs, *_ours(problems, settings)], settings.budget, device=settings.device)


def _at_every_density(shape: Shape, kind: Kind, settings: Settings) -> list[Problem]:
    return [
        make(shape, [wanted], settings, is_causal=kind.is_causal, dropout=kind.dropout) for wanted in settings.densities
    ]


def _softmaxes(problems: Sequence[Problem]) -> tuple[Contestant, Contestant]:
    """Torch's fused attention and an eager one."""
    middle = problems[len(problems) // 2]
    eager = partial(middle.eager, lambda scores: scores.softmax(-1))
    return middle.contestant(TORCHS, middle.torchs, setting=""), middle.contestant(EAGER, eager, setting="")


def _ours(problems: Sequence[Problem], settings: Settings) -> Iterator[Contestant]:
    for problem, wanted in zip(problems, settings.densities, strict=True):
        yield problem.contestant(f"{OURS}, {100 * wanted:g} %", problem.ours)


def _learned(job: str, shape: Shape, wanted: float, settings: Settings) -> Comparison:
    fixed = make(shape, [wanted], settings)
    spread = make(shape, [wanted], settings, alphas=alphas_per_head(settings, shape.heads))
    learned_H = spread.alpha_H.clone().requires_grad_()
    contestants = [
        fixed.contestant(FIXED, fixed.ours),
        spread.contestant(PER_HEAD, partial(spread.ours, spread.alpha_H)),
        spread.contestant(LEARNED, partial(spread.ours, learned_H), learned_H),
    ]
    compared = compare(job, contestants, settings.budget, device=settings.device)
    return replace(compared, case=f"{100 * wanted:g} %")


def _mixed(job: str, shape: Shape, settings: Settings) -> Comparison:
    """Two calls in every row, so that the ratio of the mixed call is to the mean of the others."""
    wanted = (settings.densities[0], settings.dense)
    sparse, dense = (make(shape, [one], settings) for one in wanted)
    mixed = make(shape, wanted, settings)

    def twice(name: str, first: Problem, second: Problem, setting: str) -> Contestant:
        one, other = (problem.contestant(name, problem.ours) for problem in (first, second))

        def run() -> object:
            one.run()
            return other.run()

        return Contestant(name, run, other.gradient_bytes, setting)

    contestants = [
        twice(ALONE, sparse, dense, ""),
        twice(TOGETHER, mixed, mixed, mixed.setting),
        twice("the sparse ones, two calls", sparse, sparse, sparse.setting),
        twice("the dense ones, two calls", dense, dense, dense.setting),
    ]
    compared = compare(job, contestants, settings.budget, device=settings.device)
    return replace(compared, case=str(shape))
