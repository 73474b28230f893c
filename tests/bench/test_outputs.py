"""The benches of output layers at tiny shapes: who is compared with whom, and how it is shown. Never how fast."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from anymax import cli
from anymax.bench import growth, outputs
from anymax.bench.harness import comparison
from anymax.bench.harness.memory import peak_bytes
from anymax.bench.harness.report import Report
from anymax.bench.harness.timing import Budget

TINY = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)
SETTINGS = outputs.Settings(
    tokens=8,
    dim=4,
    words=50,
    stds=(3.0, 0.1),
    pieces=20,
    mixture=(6, 2, 4, 30),
    band_sizes=(10, 20, 30),
    adaptive_dim=16,
    spelled_words=12,
    budget=TINY,
)
SIZES = growth.Settings(sizes=(100, 400), tokens=8, dim=16, most_eager_bytes=3 * 4 * 8 * 100, budget=TINY)


@pytest.fixture(scope="module")
def measured() -> Report:
    return outputs.measure(SETTINGS)


@pytest.fixture(scope="module")
def grown() -> Report:
    return growth.measure(SIZES)


def test_memory_is_counted_at_the_worst_moment():
    def run() -> torch.Tensor:
        first = torch.empty(1000, dtype=torch.uint8)
        del first
        return torch.empty(3000, dtype=torch.uint8)

    assert 3000 <= peak_bytes(run) < 4000

    def both() -> int:
        kept, more = torch.empty(1000, dtype=torch.uint8), torch.empty(3000, dtype=torch.uint8)
        return kept.numel() + more.numel()

    assert 4000 <= peak_bytes(both) < 5000


def test_the_profiler_says_nothing_on_standard_error(capfd: pytest.CaptureFixture[str]):
    peak_bytes(lambda: torch.empty(10))
    assert capfd.readouterr().err == ""


def test_every_layer_meets_what_torch_offers(measured: Report):
    first_of = {one.job.split(":")[0]: [entry.name for entry in one.entries] for one in measured.comparisons}
    assert first_of["Full output"][:2] == ["F.cross_entropy(F.linear)", "F.linear_cross_entropy, chunked"]
    assert "linear_cross_entropy of PLIF" in first_of["Full output"]
    assert first_of["Adaptive output"][0] == "nn.AdaptiveLogSoftmaxWithLoss"
    assert first_of["Mixture of 2 softmaxes"][2] == "linear_mixture_loss"
    assert first_of["Input layers"][0] == "nn.Embedding"
    assert "linear_entmax_loss 1.5, bfloat16" in first_of["In half precision"]
    assert sum(one.job.startswith("Entmax loss") for one in measured.comparisons) == len(SETTINGS.stds)
    assert len(measured.comparisons) == SETTINGS.num_steps
    for one in measured.comparisons:
        assert one.entries[0].timing.ratio.median == 1.0
        assert all(entry.timing.milliseconds.median > 0 and entry.num_bytes >= 0 for entry in one.entries)


def test_the_peers_chunk_size_is_the_fastest_that_was_tried(measured: Report):
    (sweep,) = measured.comparisons[0].sweeps
    assert len(sweep.tried) == len(outputs.CHUNK_SIZES)
    assert sweep.tried[sweep.chosen] == min(sweep.tried.values())
    assert measured.comparisons[0].entries[1].setting == sweep.chosen


def test_contestants_of_one_job_have_the_same_gradient():
    """A comparison of time means nothing between different results."""
    sizes: dict[str, float] = {}

    def keep(job: str, contestants: list[comparison.Contestant], *_: object) -> comparison.Comparison:
        for one in contestants:
            gradients = one.run()
            sizes.setdefault(one.name, float(gradients[0].norm()))  # type: ignore[index]
        return comparison.Comparison(job, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "compare", keep)
        outputs.measure(SETTINGS)
    for name in ("F.linear_cross_entropy, chunked", "linear_cross_entropy", "linear_cross_entropy of PLIF"):
        # PLIF starts as the identity.
        assert sizes[name] == pytest.approx(sizes["F.cross_entropy(F.linear)"], rel=1e-4)
    for loss, dtype in product(("linear_cross_entropy", "linear_entmax_loss 1.5"), ("bfloat16", "float16")):
        assert sizes[f"{loss}, {dtype}"] == pytest.approx(sizes[f"{loss}, float32"], rel=2e-2)
    for name in ("eager, target picked first", "linear_mixture_loss", "linear_mixture_loss of PLIF"):
        assert sizes[name] == pytest.approx(sizes["eager, probabilities mixed"], rel=1e-4)


def test_growth_leaves_torch_out_where_its_scores_would_not_fit(grown: Report):
    small, large = ([entry.name for entry in one.entries] for one in grown.comparisons)
    assert small == ["FullOutput", "SparseOutput", "AdaptiveOutput", growth.EAGER]
    assert large == small[:3]


def test_growth_is_drawn(grown: Report, tmp_path: Path):
    pytest.importorskip("matplotlib")
    growth.figure(grown).save(tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_tables_show_time_and_memory_with_their_ratios(measured: Report):
    page = measured.page("anymax bench outputs").markdown()
    assert "|  | ms | ratio | extra MiB | ratio |" in page and "| linear_entmax_loss 1.5 | " in page
    assert "- Tried for F.linear_cross_entropy, milliseconds: batch_chunk_size" in page
    torchs, chunked = measured.comparisons[0].entries[:2]
    ratio = chunked.num_bytes / torchs.num_bytes
    assert f"| F.linear_cross_entropy, chunked `{chunked.setting}` | " in page and f" | {ratio:.3f} |\n" in page


@pytest.mark.parametrize(("subject", "cases", "settings"), [("outputs", outputs, SETTINGS), ("growth", growth, SIZES)])
def test_the_command_measures_and_writes_what_is_asked(
    subject: str, cases: object, settings: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
):
    monkeypatch.setattr(cases, "quick", lambda threads: settings)
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    extra = [] if subject == "outputs" else ["--plot", str(tmp_path / "growth.png")]
    assert cli.main(["bench", subject, "--quick", "--output", str(page), "--json", str(numbers), *extra]) == 0
    assert page.read_text().startswith(f"# Benchmark: {subject}\n\n```\n$ anymax bench {subject} --quick\n")
    assert json.loads(numbers.read_text())["command"] == f"anymax bench {subject} --quick"
    assert (tmp_path / "growth.png").exists() == (subject == "growth")
