"""The autoencoder of bits: its losses written out over all bit-vectors, with the pixels' levels by torch's own loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.latent import (
    NVIL,
    DenseMarginal,
    Estimator,
    Gumbel,
    ScoreFunction,
    SparseMap,
    SparseMarginal,
    StraightThroughGumbel,
    TopKSparsemax,
)
from anymax.models.images.bit_vector_vae import BitVectorVAE
from anymax.structured import Budget
from tests.latent.members import all_bits

PIXELS, BITS, WIDTH, LEVELS = 5, 4, 6, 256


def make(estimator: Estimator, **options: object) -> BitVectorVAE:
    torch.manual_seed(1)
    return BitVectorVAE(PIXELS, BITS, estimator, width=WIDTH, pixel_size=3, **options).double()


def images(number: int) -> Tensor:
    return torch.randint(LEVELS, (number, PIXELS), dtype=torch.uint8)


def distortion(model: BitVectorVAE, bits: Tensor, image: Tensor) -> Tensor:
    """The loss of an image for one bit-vector, pixel by pixel."""
    numbers = model.generator(bits).view(PIXELS, 3)
    return F.cross_entropy(model.levels(numbers), image.long(), reduction="sum")


def test_the_distortion_is_the_cross_entropy_of_all_pixels():
    model, seen = make(DenseMarginal()), images(3)
    example = torch.tensor([2, 0, 0, 1, 2])
    bits = torch.rand(5, BITS).double().requires_grad_()
    found = model.distortion(seen)(bits, example)
    expected = torch.stack([distortion(model, *pair) for pair in zip(bits, seen[example], strict=True)])
    torch.testing.assert_close(found, expected)
    wanted = [bits, *model.generator.parameters(), *model.levels.parameters()]
    weights = torch.rand(5).double()
    torch.testing.assert_close(*(torch.autograd.grad(losses @ weights, wanted) for losses in (found, expected)))


def bounds(model: BitVectorVAE, seen: Tensor) -> Tensor:
    """The negative evidence bound of each image: code against prior, and pixels, by a sum over all bit-vectors."""
    bits, found = all_bits(BITS), []
    for image in seen:
        on = model.inference(image.double() / 255).sigmoid()
        code = (bits * on + (1 - bits) * (1 - on)).prod(1)
        losses = torch.stack([distortion(model, vector, image) for vector in bits])
        found.append(code @ (losses + code.log() - math.log(2**-BITS)))
    return torch.stack(found)


def test_the_loss_of_independent_bits_is_the_bound_over_all_bit_vectors():
    model, seen = make(DenseMarginal()), images(3)
    found, expected = model(seen), bounds(model, seen)
    torch.testing.assert_close(found.losses, expected)
    assert found.calls.tolist() == [2**BITS] * 3
    weights, parameters = torch.rand(3).double(), list(model.parameters())
    torch.testing.assert_close(
        *(torch.autograd.grad(losses @ weights, parameters) for losses in (found.losses, expected))
    )


@pytest.mark.parametrize("mapping", [TopKSparsemax(3), SparseMap(), SparseMap(Budget(2))])
def test_the_loss_of_a_sparse_code_is_the_bound_over_its_support(mapping):
    model, seen = make(SparseMarginal(), mapping=mapping), images(4)
    found = model(seen)
    support = model.estimate(seen)[1].support()
    for number, image in enumerate(seen):
        mine = support.example == number
        code = support.probs[mine]
        losses = torch.stack([distortion(model, bits, image) for bits in support.values[mine]])
        expected = code @ (losses + code.log()) + BITS * math.log(2)
        torch.testing.assert_close(found.losses[number], expected)
        torch.testing.assert_close(found.entropy[number], torch.special.entr(code.detach()).sum())
        assert found.calls[number] == mine.sum() <= BITS + 1
    exact, _ = model.estimate(seen, DenseMarginal())
    torch.testing.assert_close(exact.loss, model.estimate(seen)[0].loss)


def test_no_bound_is_below_the_likelihood():
    model, seen = make(DenseMarginal()), images(3)
    joint = torch.stack([torch.stack([-distortion(model, bits, image) for bits in all_bits(BITS)]) for image in seen])
    likelihood = joint.logsumexp(1) - BITS * math.log(2)
    for mapping in (None, TopKSparsemax(3), SparseMap()):
        assert (make(DenseMarginal(), mapping=mapping)(seen).losses >= -likelihood).all()


ESTIMATORS = {
    "dense": DenseMarginal,
    "score": lambda: ScoreFunction("average"),
    "nvil": lambda: NVIL(PIXELS, (8,)),
    "gumbel": Gumbel,
    "straight through": StraightThroughGumbel,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_estimator_trains_every_parameter_and_takes_no_images(name: str):
    model = make(ESTIMATORS[name]())
    for number in (30, 0):
        model.zero_grad()
        model(images(number)).losses.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert all(bool(parameter.grad.any()) == (number > 0) for parameter in model.parameters())


def test_the_mean_level_is_that_of_the_distribution_of_each_pixel():
    model, bits = make(DenseMarginal()), all_bits(BITS)[5:7].unsqueeze(0)
    shown = model.generate(bits)
    assert shown.shape == (1, 2, PIXELS)
    for vector, levels in zip(bits[0], shown[0], strict=True):
        probs = model.levels(model.generator(vector).view(PIXELS, 3)).softmax(1)
        torch.testing.assert_close(levels, (probs * torch.arange(LEVELS) / 255).sum(1))


@pytest.mark.parametrize("num_bits", [32, 128])
def test_the_number_of_parameters_is_that_of_its_layers(num_bits: int):
    model = BitVectorVAE(784, num_bits, DenseMarginal())
    inference = 784 * 128 + 128 + 128 * num_bits + num_bits
    generator = num_bits * 128 + 128 + 128 * 784 * 5 + 784 * 5 + 5 * 256 + 256
    assert sum(parameter.numel() for parameter in model.parameters()) == inference + generator
