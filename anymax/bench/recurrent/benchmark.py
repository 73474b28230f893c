"""Training steps of recurrent networks: what regularizers, a mixture of softmaxes, drawn lengths and masks cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, Contestant, compare, fastest
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.report import Report
from anymax.bench.harness.steps import compare_steps
from anymax.bench.harness.timing import Budget, Run
from anymax.bench.outputs import zipf
from anymax.bench.recurrent.lengths import drawn_against_mean, first_meetings, mean_length
from anymax.bench.recurrent.settings import Settings, body_of, shape_of, widths_of
from anymax.bench.recurrent.trainee import AWDTrainee, PlainTrainee
from anymax.bench.recurrent.twin import MixedOutput, PickedOutput, plain_of, with_output
from anymax.bench.training.trainee import Pair
from anymax.data import Lexicon
from anymax.models import AWDLSTM, build_language_model
from anymax.regularizers.element_dropout import element_dropout
from anymax.training.config import RunConfig
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig
from anymax.vocabulary import MixtureOutputConfig

Announce = Callable[[str], None]
NUM_BATCHES = 4
CHUNK_SIZES = (128, 256, 512, 1024)
ALL_SCORES = "all scores at once"
PLAIN = "plain torch"
OURS = "AWDLSTM"
FUSED = "MixtureOutput"
EAGER = {"eager, all words mixed": MixedOutput, "eager, target picked first": PickedOutput}


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every comparison; `announce` is told each as it begins."""
    with machine.threads(settings.threads):
        notes = tuple(_notes(settings))
        comparisons: list[Comparison] = []
        for job, run in _jobs(settings):
            announce(job)
            comparisons += run(job)
        return Report("recurrent", machine.describe(), tuple(comparisons), notes)


def build(config: RunConfig, num_words: int) -> AWDLSTM:
    """The network of a recipe for so many words, its parameters drawn at random."""
    torch.manual_seed(0)
    # The end of a line and the unknown word are two of them.
    lexicon = Lexicon.from_counts({f"word{i}": 1 for i in range(num_words - 2)})
    model = build_language_model(LanguageModelingConfig.of(config.task).model, lexicon)
    if not isinstance(model, AWDLSTM):
        raise ValueError(f"config must be one of an AWD-LSTM, got one of {type(model).__name__}")
    return model


def _notes(settings: Settings) -> Iterator[str]:
    rows, block, lengths = *shape_of(settings.network), settings.lengths
    yield (
        f"a step is forward, backward, clipping and the optimizer in float32; words are drawn by Zipf's law among "
        f"{settings.words}, and every batch goes on from the state of the one before"
    )
    yield f"the network, by layer {widths_of(settings.network)} wide, reads {rows} rows of {block} words"
    yield (
        "plain torch has nn.LSTM layers, one tied table with a bias, cross-entropy, clipping and SGD; ours adds weight "
        "drop, dropout of words and of vectors at three places, both activation penalties, weight decay and averages"
    )
    yield (
        f"the mixture stands on layers {widths_of(settings.mixture)} wide, with all regularizers, and reads "
        f"{shape_of(settings.mixture)[0]} rows of {settings.mixture_block} words"
    )
    yield (
        f"{len(lengths)} lengths are drawn as in a training, from {min(lengths)} to {max(lengths)} words and "
        f"{mean_length(lengths)} in the mean; nothing is compiled for any of them"
    )
    yield "each ratio is the median of per-round ratios to the first row of its table"
    yield "peak memory is the most that torch allocates at once, with parameters, averages and gradients"
    yield "below 1 is better"
    yield from machine.warnings()


def _jobs(settings: Settings) -> Iterator[tuple[str, Callable[[str], list[Comparison]]]]:
    output = LanguageModelingConfig.of(settings.mixture.task).model.output
    assert isinstance(output, MixtureOutputConfig)
    # Before the lengths, so that of those only the block has been met.
    yield "A step with all regularizers against plain torch", lambda job: [_against_plain(job, settings)]
    yield "Steps of drawn lengths", lambda job: _lengths(job, settings)
    yield f"A step with a mixture of {output.num_experts} softmaxes", lambda job: [_mixture(job, settings)]
    body = body_of(settings.network)
    budget = replace(settings.budget, seconds=settings.budget.seconds / 4, rounds=100)
    yield (
        f"Masks of recurrent weights of {' / '.join(map(str, body.widths))}",
        lambda job: [masks(job, body.widths, body.weight_dropout, budget)],
    )


def _against_plain(job: str, settings: Settings) -> Comparison:
    config, batches = settings.network, _batches(settings, shape_of(settings.network))
    model = build(config, settings.words)
    assert config.clip is not None
    plain = PlainTrainee(PLAIN, plain_of(model), config.optimizer.lr, config.clip, batches)
    sweeps = (_choose_optimizer(plain), _choose_chunk(plain, settings))
    plain.setting = ", ".join(sweep.chosen for sweep in sweeps)
    trainees = [plain, AWDTrainee(OURS, model, config, batches)]
    return compare_steps(job, trainees, settings.budget, sweeps, part_steps=settings.part_steps)


def _choose_optimizer(plain: PlainTrainee) -> Sweep:
    """Give plain torch the SGD that is fastest."""
    plain()
    parameters = list(plain.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizers = {name: torch.optim.SGD(parameters, plain.lr, **{name: True}) for name in ("fused", "foreach")}
    runs: dict[str, Run] = {name: optimizer.step for name, optimizer in optimizers.items()}
    sweep = fastest("torch.optim.SGD", runs, Budget(seconds=1.0, rounds=20))
    plain.optimizer = optimizers[sweep.chosen]
    plain.optimizer.zero_grad()
    return sweep


def _choose_chunk(plain: PlainTrainee, settings: Settings) -> Sweep:
    """Give plain torch the number of tokens that have their scores at once at which whole steps are fastest."""
    rows, block = shape_of(settings.network)
    chunks = {ALL_SCORES: None} | {f"batch_chunk_size={size}": size for size in CHUNK_SIZES if size <= rows * block}

    def stepping(chunk: int | None) -> Run:
        def step() -> float:
            plain.model.chunk = chunk
            return plain()

        return step

    budget = Budget(seconds=settings.budget.seconds / 2, rounds=5, least=2)
    sweep = fastest("the output of plain torch", {name: stepping(chunk) for name, chunk in chunks.items()}, budget)
    plain.model.chunk = chunks[sweep.chosen]
    return sweep


def _mixture(job: str, settings: Settings) -> Comparison:
    config = settings.mixture
    batches = _batches(settings, (shape_of(config)[0], settings.mixture_block))
    model = build(config, settings.words)
    models = {name: with_output(model, kind) for name, kind in EAGER.items()} | {FUSED: model}
    trainees = [AWDTrainee(name, one, config, batches) for name, one in models.items()]
    return compare_steps(job, trainees, settings.budget)


def _lengths(job: str, settings: Settings) -> list[Comparison]:
    rows, block = shape_of(settings.network)
    lengths = settings.lengths
    batch_of = {
        length: _batches(settings, (rows, length), number=1)[0] for length in {*lengths, mean_length(lengths), block}
    }
    trainee = AWDTrainee(OURS, build(settings.network, settings.words), settings.network, [batch_of[block]])
    # Everything but the length is met here.
    trainee()
    new = [batch_of[length] for length in dict.fromkeys(lengths) if length != block]
    return [
        first_meetings("Steps of lengths met for the first time", trainee, new),
        drawn_against_mean(job, trainee, lengths, batch_of, together=settings.together),
    ]


def _batches(settings: Settings, shape: tuple[int, int], *, number: int = NUM_BATCHES) -> list[Pair]:
    """So many batches of rows of words, drawn by Zipf's law."""
    generator = torch.Generator().manual_seed(0)
    rows, block = shape
    texts = [zipf(rows * (block + 1), settings.words, generator).view(rows, -1) for _ in range(number)]
    return [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]


def masks(job: str, widths: Sequence[int], rate: float, budget: Budget) -> Comparison:
    """Forward and backward of dropout for one hidden-to-hidden weight of each width."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4 * width, width) for width in widths]
    weights = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)

    def differentiated(dropped: Callable[[Tensor], Tensor]) -> Run:
        return lambda: torch.autograd.grad([dropped(weight) for weight in weights], weights, gradients)

    def copied() -> object:
        return [weight.detach().clone() for weight in weights], [gradient.clone() for gradient in gradients]

    contestants = [
        Contestant("F.dropout", differentiated(lambda weight: F.dropout(weight, rate)), num_bytes),
        Contestant("element_dropout", differentiated(lambda weight: element_dropout(weight, rate)), num_bytes),
        Contestant("copies of weights and gradients", copied, num_bytes),
    ]
    return compare(job, contestants, budget)
