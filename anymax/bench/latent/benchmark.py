"""Discrete latents: what a step costs with each estimator, and SparseMAP against loops over examples."""

from collections.abc import Callable, Iterator

from anymax.bench.harness import machine
from anymax.bench.harness.comparison import Comparison
from anymax.bench.harness.report import Report
from anymax.bench.latent.decoder import compare_marginals
from anymax.bench.latent.game import NUM_KINDS, UNION, WANTED_SUPPORT, compare_estimators
from anymax.bench.latent.settings import Settings
from anymax.bench.latent.structures import compare_bits, compare_sequences, compare_topk

Announce = Callable[[str], None]


def measure(settings: Settings, announce: Announce = lambda step: None) -> Report:
    """Run every comparison; `announce` is called with each as it begins."""
    with machine.threads(settings.threads):
        notes = tuple(_notes(settings))
        comparisons = []
        for job, run in _jobs(settings):
            announce(job)
            comparisons.append(run(job, settings))
        return Report("latent", machine.describe(), tuple(comparisons), notes)


def _jobs(settings: Settings) -> Iterator[tuple[str, Callable[[str, Settings], Comparison]]]:
    batch, (positions, tags) = settings.structures, settings.sequence
    yield f"A step of the signalling game with {settings.messages} messages", compare_estimators
    yield f"A costly decoder behind a choice of {settings.codes} codes, {settings.images} images", compare_marginals
    yield f"sparsemap of {batch} x {settings.bits} bits", compare_bits
    yield f"sparsemap of {batch} sequences of {positions} positions with {tags} tags", compare_sequences
    yield f"The {settings.top} best of {batch} x {settings.bits} bits", compare_topk


def _notes(settings: Settings) -> Iterator[str]:
    yield (
        f"a step of the game is forward, backward and Adam in float32, of {settings.games} games with "
        f"{settings.candidates} images of {settings.image_size} numbers, drawn at random around {NUM_KINDS} kinds"
    )
    yield (
        f"its sender was trained on such games for {settings.sender_steps} steps with SparseMarginal; then its scores "
        f"were scaled so that sparsemax leaves {WANTED_SUPPORT:g} messages to an image in the mean, and Adam's "
        "learning rate is zero so that they stay"
    )
    yield (
        "sums over supports have the probabilities of sparsemax, the other estimators those of softmax; rows are those "
        f'that reach the receiver or the decoder, counted; "{UNION}" runs the receiver on the whole batch for every '
        "message that any of its games supports, one message after another, as the published code does"
    )
    yield (
        f"the decoder is the generator of the bit-vector VAE: {settings.image_size} pixels of {settings.pixel_size} "
        f"numbers and 256 levels, {settings.decoder_width} wide; forward and backward, both sums with the same "
        "probabilities of sparsemax"
    )
    yield (
        "structures are found forward and backward, for normal scores in float32; of the decompositions of bits the "
        "first is the default"
    )
    yield (
        "the one peer on PyPI, lp-sparsemap 1.0, has no wheels and its source does not build: a current setuptools "
        "refuses it, and with an old one a file is missing; so no peer is compared"
    )
    yield "ratios are to the first row of a table, and below 1 is faster"
    yield from machine.warnings()
