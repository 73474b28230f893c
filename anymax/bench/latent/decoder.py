"""A costly decoder behind a choice: the exact expected loss by a sum over the support against one over everything."""

from collections.abc import Callable

import torch
from torch import Tensor

from anymax.bench.harness.comparison import Comparison, Entry, fastest
from anymax.bench.harness.timing import Budget, Run, time_interleaved
from anymax.bench.latent.game import WANTED_SUPPORT, CountedRows, sharpness
from anymax.bench.latent.settings import Settings
from anymax.latent import Choice, DenseMarginal, Estimator, SparseMarginal
from anymax.mappings import sparsemax
from anymax.models.images.bit_vector_vae import NUM_LEVELS, BitVectorVAE

DENSE, SPARSE = "DenseMarginal", "SparseMarginal"


class CodedImages:
    """Images of which each has a distribution over one-hot codes, and the generator of a bit-vector VAE behind it."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(0)
        self.model = BitVectorVAE(
            settings.image_size,
            settings.codes,
            SparseMarginal(),
            width=settings.decoder_width,
            pixel_size=settings.pixel_size,
        )
        shape = (settings.images, settings.image_size)
        self.images = torch.randint(NUM_LEVELS, shape, dtype=torch.uint8)
        scores = torch.randn(settings.images, settings.codes)
        self.scores = (scores * sharpness(scores, WANTED_SUPPORT)).requires_grad_()

    def run(self, estimator: Estimator, at_once: int) -> Tensor:
        """Forward and backward of all images, `at_once` at a time; the expected losses."""
        self.scores.grad = None
        self.model.zero_grad()
        losses = []
        for start in range(0, len(self.images), at_once):
            part = slice(start, start + at_once)
            latent = Choice(self.scores[part], sparsemax)
            estimate = estimator(latent, self.model.distortion(self.images[part]))
            estimate.surrogate.sum().backward()
            losses.append(estimate.loss)
        return torch.cat(losses)


def compare_marginals(job: str, settings: Settings) -> Comparison:
    """The sparse sum against the dense one at its fastest number of images at once."""
    coded, number = CodedImages(settings), settings.images
    estimators = {DENSE: CountedRows(DenseMarginal()), SPARSE: CountedRows(SparseMarginal())}

    def running(name: str, at_once: int) -> Callable[[], Tensor]:
        return lambda: coded.run(estimators[name], at_once)

    chunks = {f"{at_once} at once": at_once for at_once in (1, 4, 16, 64) if at_once < number}
    chunks |= {f"{number} at once": number}
    settings_of_dense: dict[str, Run] = {label: running(DENSE, at_once) for label, at_once in chunks.items()}
    sweep = fastest(DENSE, settings_of_dense, Budget(seconds=settings.slow_budget.seconds, rounds=2, least=2))
    runs = {SPARSE: running(SPARSE, number), DENSE: running(DENSE, chunks[sweep.chosen])}
    rows = {name: _rows_per_image(estimators[name], run, number) for name, run in runs.items()}
    timings = time_interleaved(runs, baseline=SPARSE, budget=settings.slow_budget)
    chosen = {DENSE: sweep.chosen, SPARSE: f"{number} at once"}
    entries = [Entry(name, timings[name], chosen[name], rows=rows[name]) for name in runs]
    return Comparison(job, tuple(entries), (sweep,), rows="rows per image")


def _rows_per_image(estimator: CountedRows, run: Run, num_images: int) -> float:
    estimator.rows = 0
    run()
    return estimator.rows / num_images
