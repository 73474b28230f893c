"""A variational autoencoder with a class and a Gaussian vector inside, where few images have a label.

Shapes: B images, P pairs of an image and a class, D pixels, C classes, H numbers of the Gaussian vector.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.latent import Choice, Estimate, Estimator
from anymax.losses import sparsemax_loss
from anymax.mappings import softmax, sparsemax
from anymax.models.images.perceptron import perceptron


class ImageLosses(NamedTuple):
    """Losses of images without a label (U,), of images with one (L,), and the calls that the former took (U,)."""

    unlabelled: Tensor
    labelled: Tensor
    calls: Tensor


class SemiSupervisedVAE(nn.Module):
    """Classifies images, and explains each by its class and a Gaussian vector.

    A classifier gives scores for the class; an inference network the Gaussian vector, from image and class; a generator
    the pixels, from vector and class. An image without a label has the expected negative ELBO over its classes, less
    its classifier's entropy; one with a label the ELBO of its class and the classifier's loss. Kingma et al. 2014,
    as in Correia et al. 2020.

    Args:
        image_size: number of pixels.
        num_classes: number of classes.
        estimator: how the gradient through the class is found; it may be given another one at any time.
        mapping: what the classifier's probabilities are; its loss is the one that belongs to it.
        classifier_width: of three hidden layers.
        width: of two hidden layers of inference and generator.
        vector_size: how many numbers the Gaussian vector has.
        entropy: how much of the entropy is taken off; 1 is the ELBO.

    Example:
        >>> from anymax.latent import SparseMarginal
        >>> from anymax.mappings import sparsemax
        >>> from anymax.models import SemiSupervisedVAE
        >>> model = SemiSupervisedVAE(6, num_classes=10, estimator=SparseMarginal(), mapping=sparsemax)
        >>> images = torch.randint(2, (5, 6)).float()
        >>> losses = model(images[:3], images[3:], labels=torch.tensor([4, 7]))
        >>> losses.unlabelled.shape, losses.labelled.shape
        (torch.Size([3]), torch.Size([2]))
    """

    def __init__(
        self,
        image_size: int,
        num_classes: int,
        estimator: Estimator,
        *,
        mapping: Callable[[Tensor], Tensor] = softmax,
        classifier_width: int = 256,
        width: int = 128,
        vector_size: int = 8,
        entropy: float = 1.0,
    ) -> None:
        super().__init__()
        if mapping not in (softmax, sparsemax):
            raise ValueError(f"mapping must be softmax or sparsemax, whose loss the labels have, got {mapping}")
        self.num_classes = num_classes
        self.mapping = mapping
        self.entropy = entropy
        self.estimator = estimator
        self.classifier = perceptron(image_size, *(classifier_width,) * 3, num_classes)
        # The first layer of inference reads the image once, and each class on top of it.
        self.see = nn.Linear(image_size, width)
        self.see_class = nn.Linear(num_classes, width, bias=False)
        self.infer = nn.Sequential(nn.ReLU(), perceptron(width, width, 2 * vector_size))
        self.generator = perceptron(vector_size + num_classes, width, width, image_size)

    def forward(self, unlabelled: Tensor, labelled: Tensor, labels: Tensor) -> ImageLosses:
        """The losses of images of zeros and ones; either kind may have none."""
        # Both kinds go through the networks that read images together: one product for two.
        both, sizes = torch.cat([labelled, unlabelled]), (len(labelled), len(unlabelled))
        (scores, open_scores), (seen, open_seen) = self.classifier(both).split(sizes), self.see(both).split(sizes)
        if self.mapping is softmax:
            classified = F.cross_entropy(scores, labels, reduction="none")
        else:
            classified = sparsemax_loss(scores, labels, reduction="none")
        one_hot = F.one_hot(labels, self.num_classes).to(labelled.dtype)
        explained = self._explain(labelled, seen)(one_hot, torch.arange(len(labelled), device=labelled.device))
        if not len(unlabelled):
            # What only the estimator holds takes part in every step, as several processes want it.
            untouched = sum(parameter.sum() for parameter in self.estimator.parameters())
            return ImageLosses(unlabelled.new_zeros(0), explained + classified + 0 * untouched, labels.new_zeros(0))
        latent = Choice(open_scores, self.mapping)
        estimate = self.estimator(latent, self._explain(unlabelled, open_seen), unlabelled)
        losses = estimate.surrogate - self.entropy * latent.entropy()
        return ImageLosses(losses, explained + classified, estimate.calls)

    def estimate(self, images: Tensor, estimator: Estimator | None = None) -> tuple[Estimate, Choice]:
        """The expected loss over classes by this or another estimator, and the distribution of the class."""
        latent = Choice(self.classifier(images), self.mapping)
        return (estimator or self.estimator)(latent, self.explain(images), images), latent

    def explain(self, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The negative log-likelihood and divergence of each pair of a class and an image, with a uniform prior."""
        return self._explain(images, self.see(images))

    def _explain(self, images_BD: Tensor, seen_BW: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        def loss_given(choice_PC: Tensor, example_P: Tensor) -> Tensor:
            mean_PH, log_scale_PH = self.infer(seen_BW[example_P] + self.see_class(choice_PC)).chunk(2, -1)
            vector_PH = mean_PH + log_scale_PH.exp() * torch.randn_like(mean_PH)
            logits_PD = self.generator(torch.cat([vector_PH, choice_PC], -1))
            images_PD = images_BD.index_select(0, example_P)
            reconstruction = F.binary_cross_entropy_with_logits(logits_PD, images_PD, reduction="none")
            return reconstruction.sum(-1) + _divergence(mean_PH, log_scale_PH) + math.log(self.num_classes)

        return loss_given

    def generate(self, vectors: Tensor) -> Tensor:
        """How bright each pixel is for every vector (N, H) with every class: (N, C, D)."""
        classes = torch.eye(self.num_classes, device=vectors.device).expand(len(vectors), -1, -1)
        spread = vectors.unsqueeze(1).expand(-1, self.num_classes, -1)
        return self.generator(torch.cat([spread, classes], -1)).sigmoid()


def _divergence(mean: Tensor, log_scale: Tensor) -> Tensor:
    """Kullback-Leibler from the Gaussian to the standard one."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1 - 2 * log_scale).sum(-1)
