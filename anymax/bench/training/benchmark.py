"""Whole training steps: layers and mappings of ours, and ours against plain torch and transformers.

SM has a table for the input and one for the output, ADP an adaptive input and an adaptive softmax; with -T the output
shares the tables of the input, and ADP-T the projections of the tails too. Baevski and Auli 2019.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, fastest
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.report import Report
from anymax.bench.harness.steps import compare_steps
from anymax.bench.harness.timing import Budget, Run
from anymax.bench.outputs import zipf
from anymax.bench.training import post_editor_twin, post_editors
from anymax.bench.training.post_editors import EditSize, compare_with_transformers
from anymax.bench.training.trainee import Pair, Trainee
from anymax.bench.training.translators import BASE, SMALL, TINY, Size, compare_mappings, describe
from anymax.bench.training.twin import twin_of
from anymax.bench.training.twin_layers import BandedOutput, SoftmaxOutput
from anymax.data import BlockBatches, Lexicon, encode, open_corpus
from anymax.models import TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, Bands, FixedInput, FullOutput, tie_

Announce = Callable[[str], None]
JOB_BUDGET = Budget(seconds=40.0, rounds=15, least=3)
TWINS = ("SM", "ADP", "ADP-T")
BODY = TransformerConfig(256, num_layers=4, num_heads=4, ffn_dim=1024)
NUM_BATCHES = 16
CHUNK_SIZES = (128, 256, 512, 1024)
FULL = "all scores at once"


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        words: of the vocabulary; of a corpus, the most frequent.
        body: of all models; half its width is that of the narrow tables.
        num_bands: of adaptive layers, cut where the scores cost least.
        batch_size, block: rows of a batch and tokens of a row.
        corpus: the name of a corpus, its folder or its file; None draws words by Zipf's law.
        threads: torch's number of threads; None leaves it as it is.
        translators: each is compared with torch's layers, whatever the words and the body of the language models.
        post_editors: each is compared with transformers' model, where that package is installed.
        budget: of one comparison.
        part_steps: how many steps are timed part by part; the medians are shown.
    """

    words: int = 118_592
    body: TransformerConfig = BODY
    num_bands: int = 3
    batch_size: int = 8
    block: int = 128
    corpus: str | Path | None = None
    threads: int | None = None
    translators: tuple[Size, ...] = (SMALL, BASE)
    post_editors: tuple[EditSize, ...] = (post_editors.SMALL, post_editors.BASE)
    budget: Budget = JOB_BUDGET
    part_steps: int = 5

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}; leave it out for torch's own number")

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch_size * self.block

    @property
    def edits(self) -> tuple[EditSize, ...]:
        """The post-editors that can be compared."""
        return self.post_editors if post_editor_twin.is_installed() else ()

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return 2 + len(TWINS) + len(self.translators) + len(self.edits)


def quick(threads: int | None = None, corpus: str | Path | None = None) -> Settings:
    """Half a minute in all, a corpus aside: fewer words, a quarter of the tokens, few rounds."""
    return Settings(
        words=20_000,
        body=TransformerConfig(128, num_layers=2, num_heads=2, ffn_dim=512),
        batch_size=4,
        block=64,
        corpus=corpus,
        threads=threads,
        translators=(TINY,),
        post_editors=(post_editors.TINY,),
        budget=Budget(seconds=4.0, rounds=10, least=2),
        part_steps=3,
    )


class Words(NamedTuple):
    """What models learn from."""

    origin: str
    counts: Sequence[float]
    num_specials: int
    batches: list[Pair]


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every comparison; `announce` is called with each as it begins."""
    with machine.threads(settings.threads):
        announce("Words")
        words = _words(settings)
        bands = Bands.optimal(
            words.counts, settings.num_bands, dim=settings.body.model_dim, num_specials=words.num_specials
        )
        notes = tuple(_notes(settings, bands, words))
        comparisons = []
        for job, run in _jobs(settings, bands, words.batches):
            announce(job)
            comparisons.append(run(job))
        return Report("training", machine.describe(), tuple(comparisons), notes)


def _notes(settings: Settings, bands: Bands, words: Words) -> Iterator[str]:
    body = settings.body
    yield (
        f"a step is forward, backward, clipping and fused AdamW in float32 for {settings.batch_size} rows of "
        f"{settings.block} tokens {words.origin}; {body.num_layers} blocks of dimension {body.model_dim} with "
        f"{body.num_heads} heads and {body.ffn_dim} inside, no dropout"
    )
    yield (
        "SM has a table for the input and one for the output, ADP adaptive layers with bands of "
        f"{' / '.join(map(str, bands.sizes))} words and dimensions {' / '.join(map(str, bands.dims))}; "
        "-T: output and input share their tables, and those of ADP-T the projections of the tails"
    )
    for size in settings.translators:
        yield describe(size)
    if settings.translators:
        yield "steps of translators have fused Adam; all have the weights of the first, and the same batches in turn"
    for edit_size in settings.edits:
        yield post_editors.describe(edit_size)
    if settings.edits:
        yield post_editors.describe_peer()
    elif settings.post_editors:
        yield "transformers is not installed, so no post-editor was compared with its model"
    yield "each ratio is the median of per-round ratios to the first row of its table"
    yield "peak memory is the most that torch allocates at once, with parameters, moments and gradients"
    yield "above 1 is faster, or more memory"
    yield from machine.warnings()


def _words(settings: Settings) -> Words:
    if settings.corpus is None:
        generator = torch.Generator().manual_seed(0)
        counts = (1e9 / torch.arange(1, settings.words + 1)).tolist()
        rows = (
            zipf(settings.tokens + settings.batch_size, settings.words, generator).view(settings.batch_size, -1)
            for _ in range(NUM_BATCHES)
        )
        batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
        return Words("drawn by Zipf's law", counts, 0, batches)
    corpus = open_corpus(settings.corpus)
    lexicon = Lexicon.from_words(corpus.words("train"), max_size=settings.words)
    tokens = encode(corpus, "train", lexicon).tokens()
    num_batches = len(tokens) // settings.tokens
    if num_batches == 0:
        raise ValueError(
            f"corpus must have the {settings.tokens} tokens of a batch, got {len(tokens)}; give a longer text"
        )
    whole = tokens[: num_batches * settings.tokens]
    drawn = BlockBatches(whole, settings.block, settings.batch_size, seed=0, eos=lexicon.eos)
    batches = [(batch.ids, batch.target) for batch in islice(drawn, NUM_BATCHES)]
    return Words(f"of {corpus.name}", lexicon.counts, lexicon.num_specials, batches)


def _jobs(settings: Settings, bands: Bands, batches: list[Pair]) -> Iterator[tuple[str, Callable[[str], Comparison]]]:
    job = f"Adaptive layers against full ones: {bands.vocabulary_size} words"
    yield job, lambda job: _against_full(job, settings, bands, batches)
    for name in TWINS:
        yield f"{name} against plain torch", lambda job, name=name: _against_torch(job, name, settings, bands, batches)  # type: ignore[misc]
    for size in settings.translators:
        compare = partial(compare_mappings, size=size, budget=settings.budget, part_steps=settings.part_steps)
        yield f"A translator {size.name} against plain torch", compare
    for edit_size in settings.edits:
        compare = partial(
            compare_with_transformers, size=edit_size, budget=settings.budget, part_steps=settings.part_steps
        )
        yield f"A post-editor {edit_size.name} against transformers", compare


def _against_full(job: str, settings: Settings, bands: Bands, batches: list[Pair]) -> Comparison:
    narrow = settings.body.model_dim // 2
    trainees = [Trainee(name, build(name, settings.body, bands), batches) for name in ("SM", "SM-T")]
    trainees += [
        Trainee(f"{name} of dimension {narrow}", build(name, settings.body, bands, dim=narrow), batches)
        for name in ("SM", "SM-T")
    ]
    trainees.append(Trainee("ADP-T", build("ADP-T", settings.body, bands), batches))
    return compare_steps(job, trainees, settings.budget, tokens=settings.tokens)


def _against_torch(job: str, name: str, settings: Settings, bands: Bands, batches: list[Pair]) -> Comparison:
    ours = build(name, settings.body, bands)
    torchs = Trainee(f"{name} of torch's modules", twin_of(ours), batches)
    sweeps = tuple(_choose_chunk(torchs, settings))
    trainees = [torchs, Trainee(name, ours, batches)]
    return compare_steps(job, trainees, settings.budget, sweeps, part_steps=settings.part_steps, tokens=settings.tokens)


def build(name: str, body: TransformerConfig, bands: Bands, *, dim: int | None = None) -> TransformerLM:
    """SM, SM-T, ADP or ADP-T, its parameters drawn at random.

    Args:
        dim: how wide the tables of SM and SM-T are; by default as the model.
    """
    torch.manual_seed(0)
    model_dim, num_words = body.model_dim, bands.vocabulary_size
    is_adaptive = name.startswith("ADP")
    input = AdaptiveInput(bands, model_dim) if is_adaptive else FixedInput(num_words, model_dim, dim=dim)
    output = AdaptiveOutput(bands, model_dim) if is_adaptive else FullOutput(num_words, model_dim, dim=dim)
    if name.endswith("-T"):
        tie_(input, output, projections=is_adaptive)
    return TransformerLM(input, output, body)


def _choose_chunk(trainee: Trainee, settings: Settings) -> Iterator[Sweep]:
    """Give the twin's output the chunk at which whole steps are fastest; torch's adaptive softmax has no choice."""
    output = trainee.model.output
    if not isinstance(output, SoftmaxOutput | BandedOutput):
        return
    chunks = {FULL: None} | {f"batch_chunk_size={rows}": rows for rows in CHUNK_SIZES if rows <= settings.tokens}

    def stepping(chunk: int | None) -> Run:
        def step() -> float:
            output.chunk = chunk
            return trainee()

        return step

    budget = Budget(seconds=settings.budget.seconds / 2, rounds=5, least=2)
    sweep = fastest(trainee.name, {setting: stepping(chunk) for setting, chunk in chunks.items()}, budget)
    output.chunk, trainee.setting = chunks[sweep.chosen], sweep.chosen
    yield sweep
