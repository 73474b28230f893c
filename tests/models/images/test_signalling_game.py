"""The signalling game: both players written out in loops, and gradients against sums over messages and picks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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
from anymax.models.images.signalling_game import Receiver, Sender, SignallingGame

SIZE, MESSAGES, DIM, UNITS, CANDIDATES = 5, 6, 4, 3, 3
ENTROPY = 0.3


def make(estimator: Estimator, **options: object) -> SignallingGame:
    torch.manual_seed(1)
    sizes = {"num_messages": MESSAGES, "dim": DIM, "num_units": UNITS, "scale": 0.3, "entropy": ENTROPY}
    return SignallingGame(SIZE, estimator, **sizes, **options).double()


def play(number: int) -> tuple[Tensor, Tensor]:
    return torch.randn(number, CANDIDATES, SIZE).double(), torch.randint(CANDIDATES, (number,))


def one_hot(index: Tensor) -> Tensor:
    return F.one_hot(index, MESSAGES).double()


def scores_by_hand(receiver: Receiver, message: Tensor, candidates: Tensor) -> Tensor:
    """The scores of each candidate of one game for one message."""
    vector = sum(weight * row for weight, row in zip(message, receiver.messages, strict=True))
    return torch.stack([vector @ (receiver.embed.weight @ candidate) for candidate in candidates])


PAIRS = {
    "one of each game": [0, 1, 2, 3],
    "one of each game in another order": [2, 0, 3, 1],
    "as many as games, of two of them": [1, 1, 3, 3],
    "mixed": [3, 0, 0, 2, 3, 3, 0],
    "none": [],
}


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("kind", ["drawn", "relaxed", "relaxed with a gradient"])
def test_the_receiver_scores_what_a_loop_over_pairs_scores(pairs: list[int], kind: str):
    receiver, (candidates, _) = make(DenseMarginal()).receiver, play(4)
    example = torch.tensor(pairs, dtype=torch.long)
    messages = one_hot(torch.randint(MESSAGES, (len(pairs),)))
    if kind != "drawn":
        messages = torch.rand(len(pairs), MESSAGES).double().softmax(-1).requires_grad_(kind.endswith("gradient"))
    found = receiver(messages, example, candidates)
    assert found.shape == (len(pairs), CANDIDATES)
    if pairs:
        expected = torch.stack(
            [scores_by_hand(receiver, message, candidates[game]) for message, game in zip(messages, pairs, strict=True)]
        )
        torch.testing.assert_close(found, expected)
        wanted = [*receiver.parameters(), *([messages] if messages.requires_grad else [])]
        weights = torch.randn_like(found)
        torch.testing.assert_close(
            *(torch.autograd.grad((scores * weights).sum(), wanted) for scores in (found, expected))
        )


def test_the_sender_passes_each_number_through_the_same_learned_function():
    sender: Sender = make(DenseMarginal()).sender
    image = torch.randn(SIZE).double()
    bent = []
    for number in sender.embed.weight @ image:
        units = [torch.sigmoid(weight * number) for weight in sender.spread.weight.flatten()]
        bent.append(torch.sigmoid(sum(w * unit for w, unit in zip(sender.gather.weight.flatten(), units, strict=True))))
    expected = sender.score.weight @ torch.stack(bent) / 0.3
    torch.testing.assert_close(sender(image.unsqueeze(0)), expected.unsqueeze(0))


def expected_losses(model: SignallingGame, candidates: Tensor, target: Tensor) -> Tensor:
    """The loss of each game by a sum over messages, the receiver's likelihood in each."""
    losses = []
    for images, right in zip(candidates, target.tolist(), strict=True):
        probs = model.mapping(model.sender(images[right].unsqueeze(0)))[0]
        likelihoods = torch.stack(
            [
                scores_by_hand(model.receiver, message, images).log_softmax(0)[right]
                for message in one_hot(torch.arange(6))
            ]
        )
        losses.append(-(probs @ likelihoods) - ENTROPY * torch.special.entr(probs).sum())
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("estimator", "mapping"),
    [
        (DenseMarginal(), anymax.softmax),
        (DenseMarginal(), anymax.sparsemax),
        (SparseMarginal(), anymax.sparsemax),
        (SumAndSample(MESSAGES), anymax.softmax),
    ],
)
def test_exact_estimators_give_the_sum_over_messages(estimator: Estimator, mapping):
    model, (candidates, target) = make(estimator, mapping=mapping), play(5)
    found, expected = model(candidates, target), expected_losses(model, candidates, target)
    torch.testing.assert_close(found.losses, expected)
    weights, parameters = torch.rand(5).double(), list(model.parameters())
    torch.testing.assert_close(
        *(torch.autograd.grad(losses @ weights, parameters) for losses in (found.losses, expected))
    )
    _, latent = model.play(candidates, target)
    support = (latent.probs > 0).sum(1)
    assert torch.equal(found.calls, support if isinstance(estimator, SparseMarginal) else torch.full((5,), MESSAGES))
    assert mapping is anymax.softmax or support.sum() < 5 * MESSAGES


def exact_gradients(model: SignallingGame, candidates: Tensor, target: Tensor) -> Tensor:
    """Of the chance to fail, less what entropies are worth: the sender's of messages, the receiver's of picks."""
    images, right = candidates[0], target[0]
    probs = model.sender(images[right].unsqueeze(0))[0].softmax(0)
    picks = torch.stack([scores_by_hand(model.receiver, message, images) for message in one_hot(torch.arange(6))])
    picks = picks.softmax(1)
    failure = -(probs @ picks[:, right])
    surprise = probs.detach() @ torch.special.entr(picks).sum(1)
    of_sender = failure - ENTROPY * torch.special.entr(probs).sum()
    of_receiver = failure - ENTROPY * surprise
    parts = ((of_sender, model.sender), (of_receiver, model.receiver))
    found = [torch.autograd.grad(loss, list(part.parameters()), retain_graph=True) for loss, part in parts]
    return torch.cat([gradient.flatten() for part in found for gradient in part])


@pytest.mark.parametrize(
    ("estimator", "pick"),
    [
        (DenseMarginal(), ScoreFunction()),
        (ScoreFunction("average"), ScoreFunction("average")),
        (ScoreFunction("sample"), ScoreFunction("sample")),
        (SumAndSample(), ScoreFunction("sample")),
    ],
    ids=["dense", "average", "sample", "sum and sample"],
)
def test_where_success_alone_counts_gradients_are_right_on_average(estimator: Estimator, pick: Estimator):
    model, (candidates, target) = make(estimator, pick=pick), play(1)
    exact = exact_gradients(model, candidates, target)
    many = candidates.expand(400, -1, -1), target.expand(400)
    parameters = [*model.sender.parameters(), *model.receiver.parameters()]
    drawn = []
    for _ in range(80):
        gradients = torch.autograd.grad(model(*many).losses.mean(), parameters)
        drawn.append(torch.cat([gradient.flatten() for gradient in gradients]))
    estimates = torch.stack(drawn)
    error = estimates.std(0) / len(drawn) ** 0.5
    assert ((estimates.mean(0) - exact).abs() <= 4.5 * error + 1e-9).all()
    # Wrong by a fifth would be seen.
    assert (0.2 * exact).norm() > 4 * error.norm()


def test_where_success_alone_counts_the_loss_is_whether_the_game_was_lost():
    model, (candidates, target) = make(ScoreFunction(), pick=ScoreFunction()), play(50)
    estimate, _ = model.play(candidates, target)
    assert set(estimate.loss.tolist()) == {-1.0, 0.0}


ESTIMATORS = {
    "dense": DenseMarginal,
    "score": lambda: ScoreFunction("average"),
    "nvil": lambda: NVIL(SIZE, (8,)),
    "gumbel": Gumbel,
    "straight through": StraightThroughGumbel,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_any_estimator_trains_every_parameter_and_takes_no_games(name: str):
    model = make(ESTIMATORS[name]())
    for number in (30, 0):
        model(*play(number)).losses.sum().backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_relaxed_messages_that_need_no_gradient_are_heard_as_they_are():
    model, (candidates, target) = make(Gumbel(2.0, published=True)).eval(), play(8)
    torch.manual_seed(3)
    with_gradient = model.play(candidates, target)[0].loss
    torch.manual_seed(3)
    with torch.no_grad():
        assert torch.allclose(model.play(candidates, target)[0].loss, with_gradient)


def test_the_number_of_parameters_is_that_of_its_tables():
    model = SignallingGame(4096, DenseMarginal())
    sender, receiver = 4096 * 256 + 512 + 512 + 256 * 256, 4096 * 256 + 256 * 256
    assert sum(parameter.numel() for parameter in model.parameters()) == sender + receiver
