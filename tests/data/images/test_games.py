"""Games of images: what their candidates are, and that every one is as likely as the others."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from anymax.data.batches.batches import generator_of
from anymax.data.images.games import GameBatches, Games, draws_games

# Six kinds, unequally many.
LABELS = torch.tensor([0, 1, 1, 2, 2, 2, 3, 4, 4, 7])


def games(**changes: object) -> GameBatches:
    settings = {"num_candidates": 4, "batch_size": 5, "num_batches": 3, "distinct": "labels", "seed": 1, **changes}
    return GameBatches(LABELS, settings.pop("num_candidates"), settings.pop("batch_size"), **settings)


def draw(labels: Tensor, num_candidates: int, distinct: str, number: int) -> Games:
    return draws_games(labels, num_candidates, distinct)(number, generator_of(1, 0, "test"))


def assert_uniform(counts: Tensor) -> None:
    """Counts of equally likely outcomes deviate by less than five standard deviations."""
    mean = counts.double().mean()
    assert ((counts - mean).abs() < 5 * mean.sqrt()).all(), counts


def same(one: Games, other: Games) -> bool:
    return torch.equal(one.candidates, other.candidates) and torch.equal(one.target, other.target)


def test_candidates_show_different_things():
    drawn = draw(LABELS, 4, "labels", 500)
    assert drawn.candidates.shape == (500, 4) and drawn.target.shape == (500,)
    shown = LABELS[drawn.candidates].sort(1).values
    assert (shown[:, 1:] != shown[:, :-1]).all()


# Few images, of which many are in a game, and many of which few are.
@pytest.mark.parametrize(("num_images", "num_candidates"), [(10, 10), (10, 4), (40, 4)])
def test_candidates_are_different_images(num_images: int, num_candidates: int):
    drawn = draw(torch.zeros(num_images), num_candidates, "images", 500)
    ordered = drawn.candidates.sort(1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all() and ordered.min() == 0 and ordered.max() == num_images - 1


def test_every_target_is_equally_likely():
    assert_uniform(draw(LABELS, 4, "labels", 8000).target.bincount(minlength=4))


@pytest.mark.parametrize("num_images", [3, 4])
def test_every_game_of_images_is_equally_likely(num_images: int):
    drawn = draw(torch.zeros(num_images), 2, "images", 6000).candidates
    assert_uniform(
        torch.stack([(drawn == torch.tensor(pair)).all(1).sum() for pair in permutations(range(num_images), 2)])
    )


def test_every_kind_is_equally_likely_and_every_image_of_a_kind():
    drawn = draw(LABELS, 2, "labels", 12_000).candidates
    for place in drawn.unbind(1):
        shown = LABELS[place]
        assert_uniform(shown.bincount()[LABELS.unique()])
        assert_uniform(place[shown == 2].bincount(minlength=6)[3:6])


def test_games_are_drawn_anew_for_every_batch_and_the_same_for_a_seed():
    batches = games()
    epochs = [list(batches) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [3, 3] and batches.epoch == 2
    flat = [batch for epoch in epochs for batch in epoch]
    assert len({tuple(batch.candidates.flatten().tolist()) for batch in flat}) == 6
    again = games()
    assert all(same(one, other) for one, other in zip(flat, [*again, *again], strict=True))
    assert not same(flat[0], next(iter(games(seed=2))))


def test_batches_resume_from_any_state():
    batches = games()
    for place in range(7):
        state = batches.state_dict()
        expected = next(iter(batches))
        other = games()
        other.load_state_dict(state)
        assert same(next(iter(other)), expected), place
    with pytest.raises(ValueError, match=r"made with distinct labels \(now images\)"):
        games(distinct="images").load_state_dict(state)


@pytest.mark.parametrize("world_size", [2, 7])
def test_ranks_share_each_batch(world_size: int):
    ranks = [games(rank=rank, world_size=world_size) for rank in range(world_size)]
    for batch, *parts in zip(games(), *ranks, strict=True):
        assert same(Games(*map(torch.cat, zip(*parts, strict=True))), batch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_candidates": 7}, "num_candidates must be at most the 6 different labels that there are, got 7"),
        ({"num_candidates": 11, "distinct": "images"}, "at most the 10 different images that there are, got 11"),
        ({"distinct": "label"}, 'distinct must be "labels" or "images", got \'label\''),
        ({"batch_size": 0}, "batch_size must be .*at least 1"),
        ({"num_batches": 0}, "num_batches must be .*at least 1"),
    ],
)
def test_games_that_cannot_be_played_are_refused(changes: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        games(**changes)
