"""Beam search in batches against one sentence at a time, on language models with random weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.report import Report
from anymax.bench.harness.timing import Budget, time_interleaved
from anymax.decoding import Hypotheses, agreement, beam_search
from anymax.models import LSTMLM, LanguageModel, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveOutput, Bands, FixedInput, FullOutput

Announce = Callable[[str], None]
ALONE = "one at a time"
EOS = 0
BUDGET = Budget(seconds=45.0, rounds=5)


@dataclass(frozen=True)
class Settings:
    """What to measure and for how long.

    Args:
        sentences: prompts that are continued.
        batch_sizes: how many of them at once, beside one at a time.
        longest: the most words of a continuation; the least is a quarter of it, and they rise evenly in between.
    """

    sentences: int = 64
    batch_sizes: tuple[int, ...] = (7, 64)
    beam: int = 5
    vocabulary: int = 8000
    dim: int = 256
    layers: int = 3
    prompt: int = 8
    longest: int = 40
    threads: int | None = None
    budget: Budget = BUDGET

    @property
    def num_steps(self) -> int:
        """How many times `measure` announces something."""
        return len(MODELS)


def quick(threads: int | None = None) -> Settings:
    """Half a minute: fewer words, and smaller models."""
    return Settings(
        vocabulary=2000, dim=64, layers=2, longest=20, threads=threads, budget=Budget(seconds=8.0, rounds=5, least=2)
    )


def transformer(settings: Settings) -> LanguageModel:
    layers = FixedInput(settings.vocabulary, settings.dim), FullOutput(settings.vocabulary, settings.dim)
    return TransformerLM(*layers, TransformerConfig(settings.dim, settings.layers, 4, 4 * settings.dim))


def adaptive(settings: Settings) -> LanguageModel:
    size = settings.vocabulary
    bands = Bands.from_sizes((size // 10, size * 3 // 10, size - size // 10 - size * 3 // 10), dim=settings.dim)
    input, output = FixedInput(size, settings.dim), AdaptiveOutput(bands, settings.dim)
    return TransformerLM(input, output, TransformerConfig(settings.dim, settings.layers, 4, 4 * settings.dim))


def lstm(settings: Settings) -> LanguageModel:
    layers = FixedInput(settings.vocabulary, settings.dim), FullOutput(settings.vocabulary, settings.dim)
    return LSTMLM(*layers, LSTMConfig(settings.dim, settings.dim, settings.layers))


MODELS = {"Transformer": transformer, "Transformer, adaptive output": adaptive, "LSTM": lstm}


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """One comparison for each model; `announce` is called with each as it begins."""
    with machine.threads(settings.threads):
        comparisons, agreed = [], []
        for name, build in MODELS.items():
            announce(name)
            torch.manual_seed(0)
            comparison, note = _comparison(name, build(settings).eval(), settings)
            comparisons.append(comparison)
            agreed.append(note)
        notes = (
            f"a beam of {settings.beam} continues {settings.sentences} prompts of {settings.prompt} words by at most "
            f"{settings.longest // 4} to {settings.longest} words of {settings.vocabulary}; models are "
            f"{settings.dim} wide, with {settings.layers} layers of random weights, and rarely end a sentence earlier",
            *agreed,
            "ratios are to the first row of a table, and below 1 is faster",
            *machine.warnings(),
        )
        return Report("decoding", machine.describe(), tuple(comparisons), notes)


def _comparison(name: str, model: LanguageModel, settings: Settings) -> tuple[Comparison, str]:
    """How long each batch size takes, and whether all find the same."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(settings.vocabulary, (settings.sentences, settings.prompt), generator=generator)
    lengths = torch.linspace(settings.longest // 4, settings.longest, settings.sentences).long()
    # Prompts of all lengths in each batch, as in a text.
    lengths = lengths[torch.randperm(settings.sentences, generator=generator)]

    def search(size: int) -> list[Hypotheses]:
        return [
            hypotheses
            for some, most in zip(prompts.split(size), lengths.split(size), strict=True)
            for hypotheses in beam_search(model, some, eos=EOS, max_length=most.tolist(), beam=settings.beam)
        ]

    sizes = {ALONE: 1, **{f"batches of {size}": size for size in settings.batch_sizes}}
    timings = time_interleaved(
        {label: lambda size=size: search(size) for label, size in sizes.items()},  # type: ignore[misc]
        baseline=ALONE,
        budget=settings.budget,
    )
    alone = search(1)
    compared = [agreement(alone, search(size)) for size in settings.batch_sizes]
    note = (
        f"{name}: of {len(alone)} sentences, {' and '.join(str(one.same) for one in compared)} are the same as one at "
        f"a time, {' and '.join(str(one.ties) for one in compared)} differ by a tie within 1e-5, "
        f"{' and '.join(str(one.different) for one in compared)} otherwise"
    )
    return Comparison(name, tuple(Entry(label, timing) for label, timing in timings.items())), note
