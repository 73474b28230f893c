"""Semi-supervised classification as a task: few images have a label, and an autoencoder has the class inside."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import draw_order, generator_of
from anymax.data.images.images import Images
from anymax.data.images.labelled import MixedBatches, MixedRows
from anymax.data.text.corpus import Split
from anymax.distributed.ranks import Ranks
from anymax.latent import Choice, DenseMarginal
from anymax.mappings import softmax, sparsemax
from anymax.models.images.semi_supervised_vae import ImageLosses, SemiSupervisedVAE
from anymax.training.latent_view import Gallery, LatentView, count_by_class, count_sizes
from anymax.training.task import Step
from anymax.training.tasks.image_task import GALLERY_SEED, ImageTask, Means, parts
from anymax.training.tasks.semi_supervised.config import SemiSupervisedConfig

MEASURED_AT_ONCE = 500


class SemiSupervisedTask(ImageTask):
    """Learn to classify, and to explain images that have no label."""

    def __init__(self, config: SemiSupervisedConfig, ranks: Ranks, *, seed: int) -> None:
        super().__init__(config.images, ranks, seed=seed)
        self.config = config
        train = self.images["train"]
        _check_drawable(self.images)
        if config.num_labelled >= len(train):
            raise ValueError(
                f"num_labelled must leave some of the {len(train):,} training images without a label, "
                f"got {config.num_labelled:,}"
            )
        order = draw_order(len(train), seed, 0, "which keep their label")
        self.labelled, self.unlabelled = order[: config.num_labelled], order[config.num_labelled :]
        self.model: SemiSupervisedVAE = self.make_model()

    def make_model(self) -> SemiSupervisedVAE:
        config, train = self.config, self.images["train"]
        return SemiSupervisedVAE(
            train.size,
            train.num_classes,
            config.estimator.build(train.size),
            mapping={"softmax": softmax, "sparsemax": sparsemax}[config.mapping],
            classifier_width=config.classifier_width,
            width=config.width,
            vector_size=config.vector_size,
            entropy=config.entropy,
        )

    def undecayed(self) -> set[nn.Parameter]:
        """What only the estimator holds: it learns nothing while the others warm up, and would decay to nothing."""
        return set(self.model.estimator.parameters())

    def batches(self, split: Split) -> MixedBatches:
        config, ranks = self.config, self.ranks
        return MixedBatches(
            self.labelled,
            self.unlabelled,
            config.batch_size,
            warm_epochs=config.warm_epochs,
            seed=self.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def step(self, model: nn.Module, batch: MixedRows, carry: None) -> Step:
        labels = self.images["train"].labels[batch.labelled].to(self.ranks.device)
        losses: ImageLosses = model(self._draw(batch.unlabelled), self._draw(batch.labelled), labels)
        log = {"calls": float(losses.calls.double().sum()) / max(1, len(losses.calls))}
        if batch.num_unlabelled == 0:
            return Step(losses.labelled.sum(), len(batch.labelled), log=log, lr_factor=self.config.warm_rate)
        # Each kind weighs as if all its images were seen equally often.
        weight = len(self.unlabelled) / len(self.labelled)
        labelled = losses.labelled.sum() * (batch.num_unlabelled / batch.num_labelled)
        return Step(weight * losses.unlabelled.sum() + labelled, len(batch.unlabelled), log=log)

    @torch.no_grad()
    def latent_view(self) -> LatentView:
        images = self.images["test"]
        classes, sizes = self._classes()
        return LatentView(
            "classes",
            None if images.side is None else self._gallery(),
            count_by_class(images.labels, classes, self.model.num_classes),
            count_sizes(sizes) if self.config.mapping == "sparsemax" else {},
        )

    def _classes(self) -> tuple[Tensor, Tensor]:
        """For every image of the test split the likeliest class, and how many classes have a probability."""
        images, drawn = self.images["test"], generator_of(GALLERY_SEED, 0, "pixels")
        classes, sizes = [], []
        for rows in parts(len(images), MEASURED_AT_ONCE):
            pixels = images.numbers(rows).bernoulli(generator=drawn).to(self.ranks.device)
            latent = Choice(self.model.classifier(pixels), self.model.mapping)
            classes.append(latent.scores.argmax(-1).cpu())
            sizes.append((latent.probs > 0).sum(-1).cpu())
        return torch.cat(classes), torch.cat(sizes)

    def _gallery(self) -> Gallery:
        """What every class makes of the same Gaussian vectors."""
        shape = (5, self.config.vector_size)
        drawn = torch.randn(shape, generator=generator_of(GALLERY_SEED, 0, "vectors"))
        vectors = torch.cat([torch.zeros(1, shape[1]), drawn])
        made = self.model.generate(vectors.to(self.ranks.device)).cpu()
        rows = ["mean"] + [f"draw {number}" for number in range(1, len(vectors))]
        columns = [str(label) for label in range(made.shape[1])]
        return Gallery("What each class generates", made, rows, columns, source="vectors drawn from the prior")

    def measure(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Error and accuracy, the negative evidence bound with all classes summed, and calls of the generator.

        `calls` are those of the run's estimator for an image, `support` how many classes have a probability.
        """
        assert isinstance(model, SemiSupervisedVAE)
        means, images = Means(), self.images[split]
        for rows in parts(len(images), MEASURED_AT_ONCE):
            pixels = images.numbers(rows).bernoulli()
            estimate, latent = model.estimate(pixels)
            exact, _ = model.estimate(pixels, DenseMarginal())
            right = latent.scores.argmax(-1) == images.labels[rows]
            means.add(
                {
                    "loss": exact.loss - latent.entropy(),
                    "accuracy": right,
                    "calls": estimate.calls,
                    "support": (latent.probs > 0).sum(-1),
                }
            )
        return means.means()

    def _draw(self, rows: Tensor) -> Tensor:
        """Training images with every pixel drawn black or white."""
        bright = self.images["train"].numbers(rows)
        return (torch.rand_like(bright) < bright).to(self.ranks.device, bright.dtype)


def _check_drawable(images: Mapping[Split, Images]) -> None:
    """Refuse features that are no probabilities of white."""
    features = {split: found.values for split, found in images.items() if found.values.is_floating_point()}
    for split, values in features.items():
        low, high = (float(extreme) for extreme in values.aminmax())
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"features must be between 0 and 1, as pixels are drawn black or white, got {low:g} to {high:g} "
                f"in {split}; scale them"
            )
