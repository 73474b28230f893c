"""The bench of discrete latents at tiny sizes: who is compared with whom, and how it is shown. Never how fast."""

import json
from pathlib import Path

import pytest
import torch

from anymax import cli
from anymax.bench.harness.report import Report
from anymax.bench.harness.timing import Budget
from anymax.bench.latent import benchmark as latent
from anymax.bench.latent import game as latent_games
from anymax.bench.latent import settings as latent_settings
from anymax.bench.latent import structures as latent_structures
from anymax.bench.latent.decoder import CodedImages
from anymax.bench.latent.game import CountedRows, GameTrainee, UnionOfSupports, draws_games, sharpness, trained_game
from anymax.bench.latent.settings import Settings
from anymax.latent import Choice, DenseMarginal, ScoreFunction, SparseMarginal
from anymax.mappings import softmax, sparsemax
from anymax.structured import Bits, Sequence, sparsemap, topk_bits

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)
SETTINGS = Settings(
    games=6,
    candidates=3,
    image_size=12,
    messages=10,
    dim=8,
    units=7,
    sender_steps=5,
    images=3,
    codes=9,
    decoder_width=6,
    pixel_size=2,
    structures=4,
    bits=6,
    sequence=(4, 3),
    top=5,
    threads=1,
    budget=TINY,
    slow_budget=TINY,
)
GAME, DECODER, BITS, SEQUENCES, TOPK = range(5)


@pytest.fixture(scope="module")
def measured() -> Report:
    return latent.measure(SETTINGS)


def test_every_comparison_is_made(measured: Report):
    names = [[entry.name for entry in one.entries] for one in measured.comparisons]
    assert names[GAME] == list(latent_games.ESTIMATORS)
    assert names[DECODER] == ["SparseMarginal", "DenseMarginal"]
    assert names[BITS] == ["chain", "systematic", "active set", latent_structures.LOOP]
    assert names[SEQUENCES] == ["active set", latent_structures.LOOP]
    assert names[TOPK] == ["topk_bits", latent_structures.LISTS]
    for one in measured.comparisons:
        assert one.entries[0].timing.ratio.median == 1.0
        assert all(entry.timing.rounds >= 2 and entry.timing.milliseconds.median > 0 for entry in one.entries)


def test_the_whole_bench_has_the_published_sizes():
    settings = Settings()
    assert (settings.games, settings.candidates, settings.image_size, settings.messages) == (64, 16, 784, 256)
    assert (settings.codes, settings.decoder_width, settings.pixel_size) == (256, 128, 5)
    assert (settings.structures, settings.bits, settings.sequence, settings.top) == (64, 128, (30, 8), 10)


def test_announcements_are_as_many_as_promised(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    for name in ("estimators", "marginals", "bits", "sequences", "topk"):
        monkeypatch.setattr(latent, f"compare_{name}", lambda job, settings: None)
    latent.measure(SETTINGS, told.append)
    assert len(told) == SETTINGS.num_steps


def test_rows_are_those_that_reached_the_loss(measured: Report):
    rows = {entry.name: entry.rows for entry in measured.comparisons[GAME].entries}
    assert rows["ScoreFunction"] == rows["Gumbel"] == 1 and rows['ScoreFunction("sample")'] == 2
    assert rows["DenseMarginal"] == SETTINGS.messages
    assert 1 < rows["SparseMarginal"] <= rows["union of supports"] <= SETTINGS.messages
    assert {entry.name: entry.rows for entry in measured.comparisons[DECODER].entries}["DenseMarginal"] == 9
    assert measured.comparisons[BITS].entries[0].rows is None


def test_a_sparse_step_calls_the_receiver_for_its_support_and_no_more():
    draw = draws_games(SETTINGS)
    trainee = GameTrainee(trained_game(SETTINGS, draw), SparseMarginal(), sparsemax)
    batches = [draw() for _ in range(3)]
    support = 0
    for games in batches:
        _, choice = trainee.game.play(*games, DenseMarginal())
        support += int((choice.probs > 0).sum())
        trainee.step(games)
    assert trainee.estimator.rows == support and trainee.rows == support / (3 * SETTINGS.games)


def test_steps_leave_the_sender_as_it_is():
    draw = draws_games(SETTINGS)
    game = trained_game(SETTINGS, draw)
    trainee, games = GameTrainee(game, ScoreFunction(), softmax), draw()
    for _ in range(2):
        trainee.step(games)
    for before, after in zip(game.parameters(), trainee.game.parameters(), strict=True):
        assert after is not before and torch.equal(after, before) and after.grad is not None


@pytest.mark.parametrize("wanted", [2.0, 3.0, 5.0])
def test_scores_are_scaled_to_the_support_that_is_wanted(wanted: float):
    scores = torch.randn(400, 20)
    support = (sparsemax(scores * sharpness(scores, wanted)) > 0).sum(-1).double().mean()
    assert support == pytest.approx(wanted, abs=0.02)


def test_the_trained_sender_has_the_support_that_the_page_names(measured: Report):
    draw = draws_games(SETTINGS)
    game = trained_game(SETTINGS, draw)
    images = torch.cat([draw().candidates.flatten(0, 1) for _ in range(20)])
    assert 2 < (sparsemax(game.sender(images)) > 0).sum(-1).double().mean() < 4
    assert any("leaves 3 messages to an image" in note for note in measured.notes)


def test_the_images_of_a_game_are_of_different_kinds():
    """Images of a kind are close together; those of a game are not."""
    candidates = draws_games(SETTINGS)().candidates
    distance = torch.cdist(candidates, candidates)
    assert distance[:, ~torch.eye(3, dtype=torch.bool)].min() > 1
    assert not torch.equal(candidates, draws_games(SETTINGS)().candidates.flip(0))


def test_the_union_of_supports_sums_the_same():
    scores = (2 * torch.randn(5, 7, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    found = []
    for estimator in (UnionOfSupports(), SparseMarginal()):
        choice = Choice(scores, sparsemax)
        estimate = estimator(choice, lambda values, example: (values * weights[example]).sum(-1) ** 2)
        found.append((estimate.loss, *torch.autograd.grad(estimate.surrogate.sum(), (scores, weights))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert int((choice.probs > 0).any(0).sum()) > (choice.probs > 0).sum(-1).max()


def test_rows_are_counted_over_calls():
    estimator = CountedRows(DenseMarginal())
    for _ in range(2):
        calls = estimator(Choice(torch.randn(3, 4)), lambda values, example: values[:, 0]).calls
    assert estimator.rows == 2 * int(calls.sum()) == 24


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_both_sums_behind_the_decoder_are_the_same(at_once: int):
    coded = CodedImages(SETTINGS)
    sparse, gradient = coded.run(SparseMarginal(), 3), coded.scores.grad
    torch.testing.assert_close(coded.run(DenseMarginal(), at_once), sparse)
    torch.testing.assert_close(coded.scores.grad, gradient, rtol=1e-4, atol=1e-3)


def test_the_dense_sum_is_taken_at_its_fastest(measured: Report):
    one = measured.comparisons[DECODER]
    (sweep,) = one.sweeps
    assert list(sweep.tried) == ["1 at once", "3 at once"]
    assert one.entries[1].setting == sweep.chosen and sweep.tried[sweep.chosen] == min(sweep.tried.values())


@pytest.mark.parametrize(
    ("polytope", "shape"), [(Bits(), (4, 6)), (Sequence(torch.zeros(3, 3, dtype=torch.float64)), (4, 5, 3))]
)
def test_a_loop_finds_the_same_marginals_as_a_batch(polytope: Bits | Sequence, shape: tuple[int, ...]):
    scores = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    one_by_one = latent_structures.solve_one_by_one(scores, polytope)
    torch.testing.assert_close(torch.cat([one.marginals for one in one_by_one]), sparsemap(scores, polytope).marginals)


@pytest.mark.parametrize("k", [1, 2, 7, 32])
def test_lists_find_the_same_best_bits(k: int):
    scores = torch.randn(6, 5, dtype=torch.float64)
    torch.testing.assert_close(latent_structures.topk_one_by_one(scores, k), topk_bits(scores, k).scores)


def test_tables_show_time_and_rows(measured: Report):
    page = measured.page("anymax bench latent").markdown()
    assert page.startswith("# Benchmark: latent\n\n```\n$ anymax bench latent\n")
    assert "|  | ms | ratio | rows per game |\n" in page and page.count("|  | ms | ratio |\n") == 3
    assert "Tried for DenseMarginal, milliseconds: 1 at once: " in page
    assert "lp-sparsemap" in page and "as the published code does" in page


def test_the_command_measures_and_writes_what_is_asked(
    measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(latent, "measure", lambda settings, announce: asked.append(settings) or measured)
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    options = ["--quick", "--threads", "1", "--output", str(page), "--json", str(numbers)]
    assert cli.main(["bench", "latent", *options]) == 0
    assert cli.main(["bench", "latent"]) == 0
    assert asked == [latent_settings.quick(threads=1), Settings()]
    command = "anymax bench latent --quick --threads 1"
    assert f"$ {command}\n" in page.read_text()
    found = json.loads(numbers.read_text())
    assert found["command"] == command and len(found["comparisons"]) == 5
    assert found["comparisons"][GAME]["entries"][0]["rows"] == 1


def test_settings_that_cannot_be_measured_are_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Settings(threads=0)
