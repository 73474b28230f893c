"""The semi-supervised autoencoder: its losses written out class by class, and what each estimator makes of them."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence

import anymax
from anymax.latent import (
    NVIL,
    DenseMarginal,
    Estimator,
    Gumbel,
    ScoreFunction,
    SparseMarginal,
    StraightThroughGumbel,
    SumAndSample,
)
from anymax.models.images.semi_supervised_vae import SemiSupervisedVAE

SIZE, CLASSES, WIDTH, VECTOR = 6, 4, 5, 2
ENTROPY = 0.7
Mapping = Callable[[Tensor], Tensor]


def make(estimator: Estimator, mapping: Mapping = anymax.softmax) -> SemiSupervisedVAE:
    torch.manual_seed(1)
    model = SemiSupervisedVAE(
        SIZE,
        CLASSES,
        estimator,
        mapping=mapping,
        classifier_width=7,
        width=WIDTH,
        vector_size=VECTOR,
        entropy=ENTROPY,
    )
    with torch.no_grad():
        # Scores far enough apart that some classes get no probability from sparsemax.
        model.classifier[-1].weight.mul_(6)
    return model.double()


def black_or_white(number: int) -> Tensor:
    return torch.randint(2, (number, SIZE)).double()


def without_noise(model: SemiSupervisedVAE) -> SemiSupervisedVAE:
    """The same with Gaussian vectors that are their means."""
    last = model.infer[1][-1]
    with torch.no_grad():
        last.weight[VECTOR:] = 0
        last.bias[VECTOR:] = -40
    return model


def layers(network: torch.nn.Module, inputs: Tensor) -> Tensor:
    """A network of linear layers with rectifiers between, from its parameters."""
    weights = [parameter for name, parameter in network.named_parameters() if name.endswith("weight")]
    biases = [parameter for name, parameter in network.named_parameters() if name.endswith("bias")]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs = (inputs @ weight.T + bias).clamp(min=0)
    return inputs @ weights[-1].T + biases[-1]


def explained(model: SemiSupervisedVAE, image: Tensor, label: int, noise: Tensor) -> Tensor:
    """The negative evidence bound of one image that shows a given class."""
    one_hot = torch.eye(CLASSES, dtype=image.dtype)[label]
    first = torch.cat([model.see.weight, model.see_class.weight], 1)
    hidden = (first @ torch.cat([image, one_hot]) + model.see.bias).clamp(min=0)
    inferred = layers(model.infer, hidden)
    vector = Normal(inferred[:VECTOR], inferred[VECTOR:].exp())
    pixels = Bernoulli(logits=layers(model.generator, torch.cat([vector.mean + vector.scale * noise, one_hot])))
    prior = Normal(torch.zeros(VECTOR).double(), torch.ones(VECTOR).double())
    divergence = kl_divergence(vector, prior).sum()
    return -pixels.log_prob(image).sum() + divergence - torch.tensor(1 / CLASSES).double().log()


def classified(mapping: Mapping, scores: Tensor, label: int) -> Tensor:
    if mapping is anymax.softmax:
        return scores.logsumexp(0) - scores[label]
    # The conjugate of half the squared norm, and what the norm is at a corner.
    probs = anymax.sparsemax(scores)
    return probs @ scores - probs.square().sum() / 2 + 0.5 - scores[label]


def by_hand(model: SemiSupervisedVAE, unlabelled: Tensor, labelled: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """The losses of images with a label, then of those without, with noise drawn in that order."""
    noise = torch.randn(len(labelled), VECTOR, dtype=torch.float64)
    for image, label, drawn in zip(labelled, labels.tolist(), noise, strict=True):
        yield explained(model, image, label, drawn) + classified(model.mapping, layers(model.classifier, image), label)
    noise = torch.randn(len(unlabelled), CLASSES, VECTOR, dtype=torch.float64)
    for image, drawn in zip(unlabelled, noise, strict=True):
        probs = model.mapping(layers(model.classifier, image))
        losses = torch.stack([explained(model, image, label, drawn[label]) for label in range(CLASSES)])
        yield probs @ losses - ENTROPY * torch.special.entr(probs).sum()


def gradients(model: SemiSupervisedVAE, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("mapping", [anymax.softmax, anymax.sparsemax])
def test_losses_and_gradients_are_those_of_a_sum_over_classes(mapping: Mapping):
    model = make(DenseMarginal(), mapping)
    unlabelled, labelled, labels = black_or_white(5), black_or_white(3), torch.tensor([2, 0, 3])
    weights = torch.rand(8, dtype=torch.float64)
    torch.manual_seed(5)
    found = model(unlabelled, labelled, labels)
    torch.manual_seed(5)
    expected = torch.stack(list(by_hand(model, unlabelled, labelled, labels)))
    losses = torch.cat([found.labelled, found.unlabelled])
    torch.testing.assert_close(losses, expected)
    assert found.calls.tolist() == [CLASSES] * 5
    torch.testing.assert_close(gradients(model, losses @ weights), gradients(model, expected @ weights))


def test_the_support_gives_the_same_as_all_classes_at_fewer_calls():
    images, labels = black_or_white(6), torch.tensor([2, 0, 3, 1, 0, 2])
    dense, sparse = (without_noise(make(kind, anymax.sparsemax)) for kind in (DenseMarginal(), SparseMarginal()))
    found = [model(images, images, labels) for model in (dense, sparse)]
    torch.testing.assert_close(found[0].unlabelled, found[1].unlabelled)
    torch.testing.assert_close(*(gradients(m, f.unlabelled.sum()) for m, f in zip((dense, sparse), found, strict=True)))
    probs = anymax.sparsemax(sparse.classifier(images))
    assert torch.equal(found[1].calls, (probs > 0).sum(1)) and found[1].calls.sum() < found[0].calls.sum() == 24


ESTIMATORS = {
    "dense": DenseMarginal,
    "score": lambda: ScoreFunction("average"),
    "score of two": lambda: ScoreFunction("sample"),
    "nvil": lambda: NVIL(SIZE, (8,)),
    "gumbel": Gumbel,
    "straight through": StraightThroughGumbel,
    "sum and sample": SumAndSample,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_estimator_trains_every_parameter(name: str):
    model = make(ESTIMATORS[name]())
    found = model(black_or_white(9), black_or_white(4), torch.tensor([0, 1, 2, 3]))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients(model, found.unlabelled.sum()))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_takes_part_where_no_image_lacks_its_label(name: str):
    model = make(ESTIMATORS[name]())
    unlabelled, labelled, labels = black_or_white(3), black_or_white(4), torch.tensor([0, 1, 2, 3])
    torch.manual_seed(5)
    found = model(unlabelled[:0], labelled, labels)
    torch.manual_seed(5)
    assert torch.equal(found.labelled, model(unlabelled, labelled, labels).labelled)
    assert found.unlabelled.shape == found.calls.shape == (0,)
    found.labelled.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not any(parameter.grad.any() for parameter in model.estimator.parameters())


@pytest.mark.parametrize("mapping", [anymax.softmax, anymax.sparsemax])
def test_without_any_images_all_gradients_are_zero(mapping: Mapping):
    model = make(DenseMarginal(), mapping)
    found = model(black_or_white(0), black_or_white(0), torch.zeros(0, dtype=torch.long))
    (found.labelled.sum() + found.unlabelled.sum()).backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_another_estimator_may_be_asked_or_given_at_any_time():
    model, images = without_noise(make(DenseMarginal())), black_or_white(5)
    asked, latent = model.estimate(images, SumAndSample(CLASSES))
    torch.testing.assert_close(asked.loss, model.estimate(images)[0].loss)
    torch.testing.assert_close(latent.probs, model.classifier(images).softmax(-1))
    model.estimator = ScoreFunction()
    assert model.estimate(images)[0].calls.tolist() == [1] * 5


def test_every_vector_is_shown_with_every_class():
    model, vectors = make(DenseMarginal()).float(), torch.randn(3, VECTOR)
    shown = model.generate(vectors)
    assert shown.shape == (3, CLASSES, SIZE)
    for row, vector in enumerate(vectors):
        for label in range(CLASSES):
            inputs = torch.cat([vector, F.one_hot(torch.tensor(label), CLASSES).float()])
            torch.testing.assert_close(shown[row, label], layers(model.generator, inputs).sigmoid())


def test_a_mapping_without_a_loss_for_labels_is_refused():
    with pytest.raises(ValueError, match="mapping must be softmax or sparsemax, whose loss the labels have"):
        make(DenseMarginal(), anymax.sigsoftmax)
