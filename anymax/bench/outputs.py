"""Losses of output layers, and input layers, against what torch offers: time and memory of forward and backward.

Shapes: T tokens, D the dimension of a hidden state, V words, K experts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, Contestant, compare, fastest
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.report import Report
from anymax.bench.harness.timing import Budget, Run
from anymax.losses import linear_cross_entropy, linear_entmax_loss, linear_mixture_loss
from anymax.transforms import PLIF, Sig
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, CharacterInput, FixedInput

Announce = Callable[[str], None]
JOB_BUDGET = Budget(seconds=60.0, rounds=20)
CHUNK_SIZES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        tokens, dim, words: of the full output layer.
        stds: deviations of the scores for the entmax loss; the smaller, the wider the support.
        mixture: tokens, experts, dimension and words of the mixture.
        band_sizes, adaptive_dim: of the adaptive layers.
        spelled_words: the vocabulary of the character layer.
        threads: torch's number of threads; None leaves it as it is.
        budget: of one comparison.
    """

    tokens: int = 1024
    dim: int = 256
    words: int = 65536
    stds: tuple[float, ...] = (3.0, 1.0, 0.3, 0.05, 0.02)
    pieces: int = 100_000
    mixture: tuple[int, int, int, int] = (560, 15, 280, 10_000)
    band_sizes: tuple[int, ...] = (20_000, 40_000, 208_000)
    adaptive_dim: int = 512
    spelled_words: int = 20_000
    threads: int | None = None
    budget: Budget = JOB_BUDGET

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return 2 + len(self.stds) + 3


def quick(threads: int | None = None) -> Settings:
    """Half a minute in all: a sixteenth of the tokens and words, few rounds."""
    return Settings(
        tokens=256,
        words=8192,
        stds=(3.0, 0.05),
        pieces=10_000,
        mixture=(64, 5, 64, 2000),
        band_sizes=(2000, 4000, 20_800),
        adaptive_dim=128,
        spelled_words=500,
        threads=threads,
        budget=Budget(seconds=2.0, rounds=10, least=2),
    )


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every comparison; `announce` is called with each as it begins."""
    notes = (
        "each ratio is the median of per-round ratios to the first row of its table, forward and backward, float32, "
        "with gradients for the hidden states and all parameters",
        "extra memory is the most that is allocated at once, over the inputs and the gradients",
        "below 1 is better",
        *machine.warnings(),
    )
    with machine.threads(settings.threads):
        comparisons = []
        for job, run in _jobs(settings):
            announce(job)
            comparisons.append(run(job))
        return Report("outputs", machine.describe(), tuple(comparisons), notes)


def _jobs(settings: Settings) -> Iterator[tuple[str, Callable[[str], Comparison]]]:
    yield (
        f"Full output: {settings.tokens} tokens, dimension {settings.dim}, {settings.words} words",
        lambda job: _full(job, settings),
    )
    yield (
        f"In half precision: {settings.tokens} tokens, dimension {settings.dim}, {settings.words} words",
        lambda job: _half(job, settings),
    )
    for std in settings.stds:
        yield f"Entmax loss at alpha 1.5, scores of deviation {std:g}", lambda job, std=std: _entmax(job, settings, std)  # type: ignore[misc]
    tokens, experts, dim, words = settings.mixture
    yield (
        f"Mixture of {experts} softmaxes: {tokens} tokens, dimension {dim}, {words} words",
        lambda job: _mixture(job, settings),
    )
    sizes = " / ".join(map(str, settings.band_sizes))
    yield (
        f"Adaptive output: {settings.tokens} tokens, dimension {settings.adaptive_dim}, bands {sizes}",
        lambda job: _adaptive(job, settings),
    )
    yield (
        f"Input layers: {settings.tokens} tokens, dimension {settings.adaptive_dim}",
        lambda job: _inputs(job, settings),
    )


def differentiated(loss: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Run:
    """Forward and backward."""
    return lambda: torch.autograd.grad(loss(), inputs, allow_unused=True)


def contestant(name: str, loss: Callable[[], Tensor], inputs: Sequence[Tensor], setting: str = "") -> Contestant:
    """Forward and backward, with a gradient for each of the inputs."""
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    return Contestant(name, differentiated(loss, inputs), num_bytes, setting)


def _layer(num_tokens: int, dim: int, num_words: int, std: float) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a weight that gives scores of a deviation, and targets by Zipf's law."""
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(num_tokens, dim, generator=generator).requires_grad_()
    weight_VD = (torch.randn(num_words, dim, generator=generator) * (std / dim**0.5)).requires_grad_()
    return hidden_TD, weight_VD, zipf(num_tokens, num_words, generator)


def zipf(num_tokens: int, num_words: int, generator: torch.Generator) -> Tensor:
    """Words whose probability falls as one over their rank."""
    return torch.multinomial(1 / torch.arange(1, num_words + 1), num_tokens, replacement=True, generator=generator)


def _full(job: str, settings: Settings) -> Comparison:
    hidden_TD, weight_VD, target_T = _layer(settings.tokens, settings.dim, settings.words, 3.0)
    inputs = [hidden_TD, weight_VD]
    plif, sig = PLIF(settings.pieces), Sig()

    def chunked(rows: int) -> Callable[[], Tensor]:
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows)
        return lambda: F.linear_cross_entropy(hidden_TD, weight_VD, target_T, options=options)

    sweep = _sweep_of_chunks({f"batch_chunk_size={rows}": chunked(rows) for rows in CHUNK_SIZES}, inputs, settings)
    best = chunked(int(sweep.chosen.partition("=")[2]))

    def ours(**options: object) -> Callable[[], Tensor]:
        return lambda: linear_cross_entropy(hidden_TD, weight_VD, target_T, **options)  # type: ignore[arg-type]

    contestants = [
        contestant(
            "F.cross_entropy(F.linear)", lambda: F.cross_entropy(F.linear(hidden_TD, weight_VD), target_T), inputs
        ),
        contestant("F.linear_cross_entropy, chunked", best, inputs, sweep.chosen),
        contestant("linear_cross_entropy", ours(), inputs),
        contestant("linear_cross_entropy, reduction none", lambda: ours(reduction="none")().sum(), inputs),
        contestant("linear_entmax_loss 1.5", lambda: linear_entmax_loss(hidden_TD, weight_VD, target_T, 1.5), inputs),
        contestant("linear_cross_entropy of Sig", ours(transform=sig), inputs),
        contestant("linear_cross_entropy of PLIF", ours(transform=plif), [*inputs, plif.weight]),
        contestant(
            "F.cross_entropy(PLIF(F.linear))",
            lambda: F.cross_entropy(plif(F.linear(hidden_TD, weight_VD)), target_T),
            [*inputs, plif.weight],
        ),
    ]
    return compare(job, contestants, settings.budget, (sweep,))


def _half(job: str, settings: Settings) -> Comparison:
    contestants = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        hidden, weight, target_T = _layer(settings.tokens, settings.dim, settings.words, 3.0)
        layer = [tensor.detach().to(dtype).requires_grad_() for tensor in (hidden, weight)]

        def eager(layer: list[Tensor] = layer, target_T: Tensor = target_T) -> Tensor:
            return F.cross_entropy(F.linear(*layer), target_T)

        def ours(layer: list[Tensor] = layer, target_T: Tensor = target_T) -> Tensor:
            return linear_cross_entropy(layer[0], layer[1], target_T)

        def sparse(layer: list[Tensor] = layer, target_T: Tensor = target_T) -> Tensor:
            return linear_entmax_loss(layer[0], layer[1], target_T, 1.5)

        name = str(dtype).removeprefix("torch.")
        # Torch multiplies float16 on a CPU so slowly that it would take most of the budget.
        losses = {"F.cross_entropy(F.linear)": eager} if dtype != torch.float16 else {}
        losses |= {"linear_cross_entropy": ours, "linear_entmax_loss 1.5": sparse}
        contestants += [contestant(f"{loss}, {name}", run, layer) for loss, run in losses.items()]
    return compare(job, contestants, settings.budget)


def _sweep_of_chunks(losses: dict[str, Callable[[], Tensor]], inputs: Sequence[Tensor], settings: Settings) -> Sweep:
    runs = {setting: differentiated(loss, inputs) for setting, loss in losses.items()}
    budget = Budget(seconds=settings.budget.seconds / 3, rounds=5, least=2)
    return fastest("F.linear_cross_entropy", runs, budget)


def _entmax(job: str, settings: Settings, std: float) -> Comparison:
    hidden_TD, weight_VD, target_T = _layer(settings.tokens, settings.dim, settings.words, std)
    inputs = [hidden_TD, weight_VD]
    alpha = torch.tensor(1.5, requires_grad=True)
    contestants = [
        contestant("linear_cross_entropy", lambda: linear_cross_entropy(hidden_TD, weight_VD, target_T), inputs),
        contestant("linear_entmax_loss 1.5", lambda: linear_entmax_loss(hidden_TD, weight_VD, target_T, 1.5), inputs),
        contestant(
            "linear_entmax_loss, alpha learned",
            lambda: linear_entmax_loss(hidden_TD, weight_VD, target_T, alpha),
            [*inputs, alpha],
        ),
    ]
    return compare(job, contestants, settings.budget)


def _mixture(job: str, settings: Settings) -> Comparison:
    num_tokens, num_experts, dim, num_words = settings.mixture
    generator = torch.Generator().manual_seed(0)
    experts_TKD = torch.randn(num_tokens, num_experts, dim, generator=generator).tanh().requires_grad_()
    prior_TK = torch.randn(num_tokens, num_experts, generator=generator).requires_grad_()
    weight_VD = (torch.randn(num_words, dim, generator=generator) / dim**0.5).requires_grad_()
    bias_V = torch.zeros(num_words, requires_grad=True)
    target_T = zipf(num_tokens, num_words, generator)
    inputs = [experts_TKD, prior_TK, weight_VD, bias_V]
    plif = PLIF(settings.pieces)

    def of_probabilities() -> Tensor:
        probs_TKV = F.linear(experts_TKD, weight_VD, bias_V).softmax(-1)
        return F.nll_loss((prior_TK.softmax(-1)[..., None] * probs_TKV).sum(1).log(), target_T)

    def of_target_alone() -> Tensor:
        scores_RV = F.linear(experts_TKD, weight_VD, bias_V).flatten(0, 1)
        losses_R = F.cross_entropy(scores_RV, target_T.repeat_interleave(num_experts), reduction="none")
        joint_TK = prior_TK.log_softmax(-1) - losses_R.view(num_tokens, num_experts)
        return -joint_TK.logsumexp(1).mean()

    def ours(transform: nn.Module | None) -> Callable[[], Tensor]:
        return lambda: linear_mixture_loss(experts_TKD, prior_TK, weight_VD, target_T, bias_V, transform=transform)

    contestants = [
        contestant("eager, probabilities mixed", of_probabilities, inputs),
        contestant("eager, target picked first", of_target_alone, inputs),
        contestant("linear_mixture_loss", ours(None), inputs),
        contestant("linear_mixture_loss of PLIF", ours(plif), [*inputs, plif.weight]),
    ]
    return compare(job, contestants, settings.budget)


def _adaptive(job: str, settings: Settings) -> Comparison:
    bands = Bands.from_sizes(settings.band_sizes, dim=settings.adaptive_dim)
    hidden_TD, weight_VD, target_T = _layer(settings.tokens, settings.adaptive_dim, bands.vocabulary_size, 1.0)
    torchs = nn.AdaptiveLogSoftmaxWithLoss(settings.adaptive_dim, bands.vocabulary_size, list(bands.cutoffs))
    ours = AdaptiveOutput(bands, settings.adaptive_dim)
    contestants = [
        contestant(
            "nn.AdaptiveLogSoftmaxWithLoss",
            lambda: torchs(hidden_TD, target_T).loss,
            [hidden_TD, *torchs.parameters()],
        ),
        contestant("AdaptiveOutput", lambda: ours(hidden_TD, target_T), [hidden_TD, *ours.parameters()]),
        contestant(
            "F.cross_entropy(F.linear) over all words",
            lambda: F.cross_entropy(F.linear(hidden_TD, weight_VD), target_T),
            [hidden_TD, weight_VD],
        ),
    ]
    return compare(job, contestants, settings.budget)


def _inputs(job: str, settings: Settings) -> Comparison:
    bands = Bands.from_sizes(settings.band_sizes, dim=settings.adaptive_dim)
    num_words, dim = bands.vocabulary_size, settings.adaptive_dim
    generator = torch.Generator().manual_seed(0)
    ids_T = zipf(settings.tokens, num_words, generator)
    spelled_T = zipf(settings.tokens, settings.spelled_words, generator)
    spellings = [f"word{index:07d}" for index in range(settings.spelled_words)]

    def of(name: str, layer: nn.Module, ids: Tensor) -> Contestant:
        return contestant(name, lambda: layer(ids).sum(), list(layer.parameters()))

    contestants = [
        of("nn.Embedding", nn.Embedding(num_words, dim), ids_T),
        of(f"FixedInput of dimension {dim // 8}", FixedInput(num_words, dim, dim=dim // 8), ids_T),
        of("AdaptiveInput", AdaptiveInput(bands, dim), ids_T),
        of(
            f"CharacterInput of {settings.spelled_words} words of 11 letters",
            CharacterInput(spellings, dim, end_index=0, unknown_index=1),
            spelled_T,
        ),
    ]
    return compare(job, contestants, settings.budget)
