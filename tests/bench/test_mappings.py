"""The bench of mappings at tiny shapes: what is measured, the peers' settings, and how it is shown. Never how fast."""

import pytest
import torch

from anymax.bench import mappings
from anymax.bench.harness import machine, peers
from anymax.bench.harness.report import Report, digits, number
from anymax.bench.harness.timing import Budget
from anymax.bench.mappings import Settings, measure

TINY = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)
SHAPES = ((4, 7), (2, 200))
PLIF_SHAPE = (2, 30)
OURS = ["entmax 1", "entmax 2", "entmax 1.5", "entmax 1.33", "entmax per row", "entmax per row, learned"]
PEERS = ["sparsemax", "entmax15", "entmax_bisect 1.33", "entmax_bisect 1.33, default", "entmax_bisect per row"]
PEERS += ["entmax_bisect per row, default", "entmax_bisect per row, learned"]

needs_peer = pytest.mark.skipif(not peers.is_installed(), reason="the entmax package is not installed")


@pytest.fixture(scope="module")
def measured() -> Report:
    return measure(Settings(SHAPES, scales=(0.2, 4.0), budget=TINY, sweep_budget=TINY, plif_shape=PLIF_SHAPE))


@pytest.fixture(scope="module")
def alone() -> Report:
    return measure(Settings(SHAPES, peers=False, budget=TINY, sweep_budget=TINY, plif_shape=PLIF_SHAPE))


def test_every_scale_and_shape_has_softmax_and_every_alpha(alone: Report):
    *cases, _, calls = alone.comparisons[: len(SHAPES) + 2]
    assert [case.case for case in cases] == ["4x7", "2x200"]
    for case in cases:
        assert [entry.name for entry in case.entries] == ["torch.softmax", *OURS]
        assert case.sweeps == ()
        assert all(entry.timing.milliseconds.median > 0 for entry in case.entries)
        assert case.entries[0].timing.ratio.median == 1.0
    assert [entry.name for entry in calls.entries] == ["torch.softmax", "entmax 1.5"]


def test_plif_is_compared_at_its_shape_with_its_pieces(alone: Report):
    case = alone.comparisons[len(SHAPES)]
    assert case.job == "PLIF of 2x30, forward and backward"
    assert [(entry.name, entry.setting) for entry in case.entries] == [("torch.softmax", ""), ("plif", "100000 pieces")]
    assert all(entry.timing.milliseconds.median > 0 for entry in case.entries)


def test_every_shape_has_time_and_memory_in_half_precision(alone: Report):
    halves = alone.comparisons[len(SHAPES) + 2 :]
    assert [half.job for half in halves] == [
        f"Half precision, {shape}, scores of scale 1" for shape in ("4x7", "2x200")
    ]
    for half, (rows, n) in zip(halves, SHAPES, strict=True):
        names = ("torch.softmax", "entmax 1.5", "entmax per row")
        assert [entry.name for entry in half.entries] == [
            f"{name}, {precision}" for name in names for precision in ("float32", "bfloat16", "float16")
        ]
        num_bytes = {entry.name: entry.num_bytes for entry in half.entries}
        # The probabilities are kept, and torch's allocator counts in blocks of 64 bytes.
        for name in names:
            assert num_bytes[f"{name}, float32"] >= 4 * rows * n
            assert all(2 * rows * n <= num_bytes[f"{name}, {dtype}"] for dtype in ("bfloat16", "float16"))
        assert num_bytes["entmax 1.5, bfloat16"] < num_bytes["entmax 1.5, float32"]


@needs_peer
def test_peers_come_with_the_settings_that_were_tried(measured: Report):
    cases = measured.comparisons[:4]
    assert [(case.job.split()[-1], case.case) for case in cases] == [
        (scale, shape) for scale in ("0.2", "4") for shape in ("4x7", "2x200")
    ]
    for case in cases:
        assert [entry.name for entry in case.entries if entry.maker == peers.name()] == PEERS
        chosen = {sweep.function: sweep.chosen for sweep in case.sweeps}
        settings = {entry.name: entry.setting for entry in case.entries}
        assert all(settings[function] == setting for function, setting in chosen.items())
        assert settings["entmax_bisect 1.33, default"] == "n_iter=50"
    ks = {case.case: list(case.sweeps[0].tried) for case in cases}
    assert ks == {"4x7": ["k=None"], "2x200": ["k=None", "k=32", "k=128"]}


@needs_peer
@pytest.mark.parametrize("alpha", [1.33, torch.linspace(1.1, 2.0, 6)[:, None]], ids=["number", "per row"])
def test_the_peer_gets_the_fewest_steps_that_are_accurate(alpha: float | torch.Tensor):
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    sweep, steps = peers.fewest_steps("bisect", scores, alpha, most_entries=1000)
    exact_alpha = alpha.double() if isinstance(alpha, torch.Tensor) else alpha
    exact = peers.module().entmax_bisect(scores.double(), exact_alpha, n_iter=50)

    def error(count: int) -> float:
        return float((peers.bisection(scores, alpha, count)().double() - exact).abs().max())

    assert sweep.chosen == f"n_iter={steps}"
    assert error(steps) <= peers.TOLERANCE < error(steps - 1)
    assert sweep.tried[sweep.chosen] == pytest.approx(error(steps))


@needs_peer
def test_where_no_number_of_steps_is_accurate_the_default_serves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "TOLERANCE", -1.0)
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    sweep, steps = peers.fewest_steps("bisect", scores, 1.5, most_entries=1)
    assert steps == 50 and sweep.tried["n_iter=50"] > peers.TOLERANCE


def test_without_the_peer_the_report_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "is_installed", lambda: False)
    result = measure(Settings(((2, 3),), budget=TINY, plif_shape=PLIF_SHAPE))
    assert any("not installed" in note and "anymax[peers]" in note for note in result.notes)


@pytest.mark.parametrize(("share", "told"), [(0.5, True), (0.01, False), (None, False)])
def test_a_busy_machine_is_reported(share: float | None, told: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "busy_share", lambda: share)
    result = measure(Settings(((2, 3),), peers=False, budget=TINY, plif_shape=PLIF_SHAPE))
    assert any("50% of the cores busy" in note for note in result.notes) == told


def test_the_busy_share_is_a_share_where_it_is_known():
    share = machine.busy_share(0.05)
    assert share is None or -0.01 <= share <= 1


def test_each_step_is_announced_and_the_threads_are_given_back():
    before, steps, seen = torch.get_num_threads(), [], []
    settings = Settings(SHAPES, threads=1, peers=False, budget=TINY, plif_shape=PLIF_SHAPE)

    def announce(step: str) -> None:
        steps.append(step)
        seen.append(torch.get_num_threads())

    result = measure(settings, announce)
    assert len(steps) == settings.num_steps and "2x200" in steps[1]
    assert set(seen) == {1} and result.machine.threads == 1
    assert torch.get_num_threads() == before


def test_the_quick_settings_keep_the_row_lengths_and_shrink_the_work():
    small = mappings.quick()
    assert [n for _, n in small.shapes] == [n for _, n in mappings.SHAPES]
    assert sum(rows * n for rows, n in small.shapes) < sum(rows * n for rows, n in mappings.SHAPES)
    assert small.plif_shape[1] == mappings.PLIF_SHAPE[1] and small.plif_shape[0] < mappings.PLIF_SHAPE[0]


def test_the_page_has_contestants_by_shapes_below_their_makers(measured: Report):
    page = measured.page("anymax bench mappings --scales 0.2 4").markdown()
    assert "$ anymax bench mappings --scales 0.2 4" in page and measured.machine.cpu in page
    assert "## Ratio to torch.softmax, scores of scale 0.2\n\n|  | 4x7 | 2x200 |\n" in page
    softmax, ours = (case.entries[:2] for case in measured.comparisons[:2])
    first = " | ".join(f"{digits(entry.timing.milliseconds.median)} ms" for entry in (softmax[0], ours[0]))
    assert f"| **torch** |  |  |\n| torch.softmax | {first} |\n| **anymax** |  |  |\n" in page
    ratio = ours[1].timing.ratio
    assert f" | {number(ratio.median)} `{number(ratio.low)}-{number(ratio.high)}` |" in page
    assert "## One call on 8x64, without a gradient\n\n|  | microseconds | ratio |\n" in page
    if peers.is_installed():
        assert "- Tried for entmax_bisect 1.33 on 2x200, largest error: n_iter=" in page


def test_numbers_keep_three_digits():
    assert [number(value) for value in (0.456, 9.87, 34.56, 234.5)] == ["0.46", "9.87", "34.6", "234"]
    assert [digits(value) for value in (0.01234, 9.876, 34.56, 123_456)] == ["0.0123", "9.88", "34.6", "123456"]
