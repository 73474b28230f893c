"""The bench of attention at tiny sizes: who is compared with whom, and how it is shown. Never how fast."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax import cli
from anymax.bench.attention import benchmark, package, translation
from anymax.bench.attention import settings as attention_settings
from anymax.bench.attention.settings import Batch, Settings, Shape
from anymax.bench.harness import peers, timing
from anymax.bench.harness.comparison import Comparison, Contestant
from anymax.bench.harness.memory import peak_bytes
from anymax.bench.harness.report import Report
from anymax.bench.harness.timing import Budget
from anymax.models import TransformerConfig

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)
SETTINGS = Settings(
    shapes=(Shape(1, 4, 40),),
    translation=Shape(2, 2, 12),
    width=8,
    densities=(0.1, 0.3, 0.6),
    body=TransformerConfig(16, num_layers=1, num_heads=2, ffn_dim=16, norm_first=False),
    batch=Batch(2, 9, 30),
    checked_entries=1 << 10,
    threads=1,
    budget=TINY,
    sweep_budget=TINY,
    step_budget=TINY,
    part_steps=2,
)
OURS = ["entmax_attention, 10 %", "entmax_attention, 30 %", "entmax_attention, 60 %"]

needs_peer = pytest.mark.skipif(not peers.is_installed(), reason="the entmax package is not installed")


@pytest.fixture(scope="module")
def announced() -> list[str]:
    return []


@pytest.fixture(scope="module")
def measured(announced: list[str]) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        # Collecting garbage takes longer than all these runs.
        patch.setattr(timing, "_no_garbage_collection", nullcontext)
        return benchmark.measure(SETTINGS, announced.append)


def test_attention_meets_what_torch_offers(measured: Report):
    names = {f"{one.job} {one.case}".strip(): [entry.name for entry in one.entries] for one in measured.comparisons}
    for kind in ("", ", dropout 0.1", ", causal"):
        assert names[f"Attention of 1x4x40{kind}"] == [benchmark.TORCHS, benchmark.EAGER, *OURS]
    for density in ("10 %", "30 %", "60 %"):
        job = f"Alpha learned per head, 1x4x40 {density}"
        assert names[job] == [benchmark.FIXED, benchmark.PER_HEAD, benchmark.LEARNED]
    mixed = names["Half of the heads of density 10 %, half dense 1x4x40"]
    assert mixed[:2] == [benchmark.ALONE, benchmark.TOGETHER]
    job = "Attention of 2x2x12, as in translation, dropout 0.1"
    assert names[job] == [benchmark.EAGER, benchmark.TORCHS, *OURS]


@needs_peer
def test_the_package_comes_at_the_settings_that_were_best(measured: Report):
    cases = [one for one in measured.comparisons if one.job == package.JOB]
    assert [one.case for one in cases] == ["1x4x40, 10 %", "1x4x40, 30 %", "1x4x40, 60 %"]
    for one in cases:
        assert [entry.name.split(", ")[-1] for entry in one.entries] == [
            "entmax_attention",
            "entmax15",
            "entmax_bisect",
        ]
        of_k, of_steps = one.sweeps
        assert of_k.tried[of_k.chosen] == min(of_k.tried.values())
        assert of_steps.tried[of_steps.chosen] <= peers.TOLERANCE
        assert [entry.setting for entry in one.entries[1:]] == [of_k.chosen, of_steps.chosen]
        assert list(of_k.tried) == ["k=None", "k=32"]
    (learned,) = (one for one in measured.comparisons if "alpha per head, learned" in one.job)
    assert learned.entries[1].setting.startswith("n_iter=")


def test_entries_are_whole(measured: Report):
    for one in measured.comparisons:
        assert one.entries[0].timing.ratio.median == 1.0
        assert all(entry.timing.milliseconds.median > 0 and entry.num_bytes >= 0 for entry in one.entries)
    steps = measured.comparisons[-1]
    assert all(entry.parts is not None and min(entry.parts.values()) > 0 for entry in steps.entries)


def test_each_step_is_announced(measured: Report, announced: list[str]):
    assert len(announced) == len(measured.comparisons) == SETTINGS.num_steps
    assert len(set(announced)) == len(announced)


def test_every_shape_is_measured(monkeypatch: pytest.MonkeyPatch):
    for name in ("_against_torch", "_translation", "_learned", "_mixed"):
        monkeypatch.setattr(benchmark, name, lambda job, *_: Comparison(job, ()))
    for name in ("_fixed", "_learned"):
        monkeypatch.setattr(package, name, lambda *_: Comparison("", ()))
    monkeypatch.setattr(translation, "compare_mappings", lambda job, settings: Comparison(job, ()))
    settings, announced = Settings(), []
    benchmark.measure(settings, announced.append)
    assert len(set(announced)) == len(announced) == settings.num_steps
    for shape in ("1x8x2048", "4x8x512"):
        assert {f"Attention of {shape}", f"Attention of {shape}, causal"} < set(announced)
        assert f"Attention of {shape}, dropout 0.1" in announced
        assert {f"Alpha learned per head, {shape}, {density} %" for density in (2, 10, 50)} < set(announced)
        assert f"Half of the heads of density 2 %, half dense, {shape}" in announced
    assert "Attention of 16x8x128, as in translation, dropout 0.1" in announced
    if peers.is_installed():
        assert {f"{package.JOB}, {density} %" for density in (2, 10, 50)} < set(announced)


def test_without_the_package_the_report_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "is_installed", lambda: False)
    monkeypatch.setattr(benchmark, "compare", lambda job, *_, **__: Comparison(job, ()))
    monkeypatch.setattr(translation, "compare_mappings", lambda job, settings: Comparison(job, ()))
    announced: list[str] = []
    report = benchmark.measure(SETTINGS, announced.append)
    assert any("not installed" in note and "anymax[peers]" in note for note in report.notes)
    assert len(announced) == SETTINGS.num_steps
    assert replace(SETTINGS, peers=False).num_steps == SETTINGS.num_steps


def kept(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> dict[str, list[Contestant]]:
    """The contestants of every comparison, by its job, or its first case's."""
    found: dict[str, list[Contestant]] = {}

    def keep(job: str, contestants: list[Contestant], *_: object, **__: object) -> Comparison:
        found.setdefault(job, contestants)
        return Comparison(job, ())

    for module in (benchmark, package):
        monkeypatch.setattr(module, "compare", keep)
    monkeypatch.setattr(translation, "compare_mappings", lambda job, settings: Comparison(job, ()))
    benchmark.measure(settings)
    return found


def gradients_of(contestant: Contestant) -> list[torch.Tensor]:
    return list(contestant.run())  # type: ignore[call-overload]


@needs_peer
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.05)])
def test_contestants_of_one_job_have_the_same_gradients(
    precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
):
    """A comparison of time means nothing between different results."""
    settings = replace(SETTINGS, precision=precision)
    jobs = kept(monkeypatch, settings)

    def check(job: str, *places: int) -> None:
        first, *others = (gradients_of(jobs[job][place]) for place in places)
        assert first[0].dtype == settings.dtype
        for gradients in others:
            for ours, theirs in zip(first, gradients, strict=False):
                assert (theirs.float() - ours.float()).norm() < tolerance * ours.float().norm()

    for kind in ("", ", causal"):
        check(f"Attention of 1x4x40{kind}", 0, 1)
    check(package.JOB, 0, 1, 2)
    check(f"{package.JOB}, an alpha per head, learned", 0, 1)
    check("Alpha learned per head, 1x4x40", 1, 2)


def test_dropout_drops(monkeypatch: pytest.MonkeyPatch):
    settings = replace(SETTINGS, peers=False)
    jobs = kept(monkeypatch, settings)
    for job in ("Attention of 1x4x40, dropout 0.1", "Attention of 2x2x12, as in translation, dropout 0.1"):
        for contestant in jobs[job]:
            assert not torch.equal(gradients_of(contestant)[2], gradients_of(contestant)[2])
    for contestant in jobs["Attention of 1x4x40"]:
        torch.testing.assert_close(gradients_of(contestant), gradients_of(contestant))


def test_heads_of_both_kinds_gather_in_one_call_what_they_gather_alone(monkeypatch: pytest.MonkeyPatch):
    settings = replace(SETTINGS, peers=False)
    job = "Half of the heads of density 10 %, half dense"
    _, together, sparse, dense = map(gradients_of, kept(monkeypatch, settings)[job])
    for both, thin, wide in zip(together, sparse, dense, strict=True):
        torch.testing.assert_close(both[:, ::2], thin[:, ::2])
        torch.testing.assert_close(both[:, 1::2], wide[:, 1::2])


def test_tables_show_density_time_and_memory(measured: Report):
    page = measured.page("anymax bench attention").markdown()
    first = measured.comparisons[0]
    assert "## Attention of 1x4x40\n\n|  | ms | ratio | extra MiB | to eager softmax |\n" in page
    eager, ours = first.entries[1:3]
    assert ours.setting.startswith("density ") and ", scale " in ours.setting
    assert f"| entmax_attention, 10 % `{ours.setting}` | " in page
    assert f" | {ours.num_bytes / eager.num_bytes:.3f} |\n" in page
    assert "\n|  | 10 % | 30 % | 60 % |\n" in page and "\n|  | 1x4x40 |\n" in page
    assert "backend computed entmax_attention." in page


def test_the_command_measures_and_writes_what_is_asked(
    measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(benchmark, "measure", lambda settings, announce: asked.append(settings) or measured)
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    options = ["--quick", "--precision", "bfloat16", "--no-peers", "--threads", "1"]
    assert cli.main(["bench", "attention", *options, "--output", str(page), "--json", str(numbers)]) == 0
    assert cli.main(["bench", "attention"]) == 0
    assert asked == [attention_settings.quick(precision="bfloat16", peers=False, threads=1), Settings()]
    command = "anymax bench attention --quick --precision bfloat16 --no-peers --threads 1"
    assert page.read_text().startswith(f"# Benchmark: attention\n\n```\n$ {command}\n")
    assert json.loads(numbers.read_text())["command"] == command


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        attention_settings.quick(threads=0)
    with pytest.raises(ValueError, match="device must be one of"):
        Settings(device="tpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="precision must be one of"):
        Settings(precision="float8")  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be 'cpu' where torch finds no GPU, got 'cuda'"):
        Settings(device="cuda")


def test_memory_of_a_gpu_is_its_allocators_peak_after_the_work(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    answers = {"memory_allocated": 100, "max_memory_allocated": 350}
    for name in ("synchronize", "reset_peak_memory_stats", *answers):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name) or answers.get(name))
    assert peak_bytes(lambda: calls.append("run"), "cuda") == 250
    run = calls.index("run")
    assert calls[:run] == ["synchronize", "memory_allocated", "reset_peak_memory_stats"]
    assert calls[run + 1 :] == ["synchronize", "max_memory_allocated"]
