"""The bench of training steps at tiny sizes: who is compared with whom, and how it is shown. Never how fast."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax import cli
from anymax.bench.harness.comparison import Comparison
from anymax.bench.harness.report import Report, digits, number
from anymax.bench.harness.timing import Budget
from anymax.bench.training import benchmark as training
from anymax.bench.training import post_editor_twin
from anymax.bench.training.post_editors import OURS, THEIRS, EditSize
from anymax.bench.training.trainee import Trainee
from anymax.bench.training.translators import MAPPINGS, TORCHS, Size
from anymax.bench.training.twin import TwinLM
from anymax.models import BertConfig, TransformerConfig
from anymax.vocabulary import Bands

BODY = TransformerConfig(16, num_layers=1, num_heads=2, ffn_dim=16)
SETTINGS = training.Settings(
    words=200,
    body=BODY,
    batch_size=2,
    block=64,
    threads=1,
    translators=(Size("for tests", BODY, words=40, length=6, spread=0.4, max_tokens=36),),
    post_editors=(EditSize("for tests", BertConfig(16, 1, 2, 24), words=40, length=5, spread=0.3, max_tokens=36),),
    budget=Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6),
    part_steps=2,
)
BANDS = Bands.from_sizes((20, 30, 50), dim=16)


@pytest.fixture(scope="module")
def measured() -> Report:
    return training.measure(SETTINGS)


pytestmark = pytest.mark.usefixtures("one_thread")


def trainee(name: str = "ADP-T") -> Trainee:
    torch.manual_seed(1)
    batches = [(torch.randint(100, (2, 8)), torch.randint(100, (2, 8))) for _ in range(3)]
    return Trainee(name, training.build(name, BODY, BANDS), batches)


def test_adaptive_layers_meet_full_ones_and_all_meet_torch(measured: Report):
    names = {one.job.split(":")[0]: [entry.name for entry in one.entries] for one in measured.comparisons}
    full = ["SM", "SM-T", "SM of dimension 8", "SM-T of dimension 8"]
    assert names.pop("Adaptive layers against full ones") == [*full, "ADP-T"]
    for model in ("SM", "ADP", "ADP-T"):
        assert names.pop(f"{model} against plain torch") == [f"{model} of torch's modules", model]
    assert names.pop("A translator for tests against plain torch") == [TORCHS, *MAPPINGS]
    if post_editor_twin.is_installed():
        assert names.pop("A post-editor for tests against transformers") == [THEIRS, OURS]
    assert names == {} and len(measured.comparisons) + 1 == SETTINGS.num_steps


def test_entries_are_whole(measured: Report):
    for one in measured.comparisons:
        assert one.entries[0].timing.ratio.median == 1.0
        for entry in one.entries:
            # Parameters, two moments and gradients, four bytes each.
            assert entry.num_bytes > 16 * entry.num_parameters
    assert all(one.tokens == 128 for one in measured.comparisons[:4])
    against_torch = [one.entries for one in measured.comparisons[1:4]]
    assert all(torchs.num_parameters == ours.num_parameters for torchs, ours in against_torch)
    assert all(entry.parts is not None for entries in against_torch for entry in entries)


def test_torch_is_taken_at_the_setting_that_was_fastest(measured: Report):
    language_models = measured.comparisons[1:4]
    sweeps = {one.job: one.sweeps for one in language_models if one.sweeps}
    assert list(sweeps) == ["SM against plain torch", "ADP-T against plain torch"]
    for one in language_models:
        for sweep in one.sweeps:
            assert list(sweep.tried) == [training.FULL, "batch_chunk_size=128"]
            assert sweep.tried[sweep.chosen] == min(sweep.tried.values())
            assert one.entries[0].setting == sweep.chosen


def test_both_sides_of_a_comparison_learn_the_same():
    """A comparison of time means nothing between different results."""
    losses: list[list[float]] = []

    def keep(job: str, trainees: list[Trainee], *_: object, **__: object) -> Comparison:
        if isinstance(trainees[0].model, TwinLM):
            losses.append([trainee() for trainee in trainees])
        return Comparison(job, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "compare_steps", keep)
        patch.setattr(training, "_choose_chunk", lambda trainee, settings: ())
        training.measure(replace(SETTINGS, translators=(), post_editors=()))
    assert len(losses) == 3
    for torchs, ours in losses:
        assert ours == pytest.approx(torchs, rel=1e-5)


def test_a_step_taken_in_parts_is_a_step():
    whole, parted = trainee(), trainee()
    for _ in range(3):
        whole()
        parts = parted.parts()
    for ours, theirs in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours)
    assert min(parts.input, parts.body, parts.output, parts.optimizer) > 0


def test_a_trainee_learns_and_holds_parameters_and_two_moments():
    learner = trainee("SM")
    first = [learner() for _ in range(3)]
    for _ in range(30):
        learner()
    assert sum(learner() for _ in range(3)) < sum(first)
    num_parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    assert learner.held_bytes == pytest.approx(3 * 4 * num_parameters, rel=0.01)


def test_words_may_come_from_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "train.txt"
    text.write_text("".join(f"the cat saw dog{i % 40} and bird{i % 7}\n" for i in range(200)))
    settings = replace(SETTINGS, corpus=tmp_path, words=50)
    words = training._words(settings)
    assert len(words.counts) == 50 and words.origin == f"of {tmp_path.name}" and words.num_specials == 2
    assert all(ids.shape == target.shape == (2, 64) for ids, target in words.batches)
    assert all(int(target.min()) >= 0 for _, target in words.batches)
    text.write_text("too short\n")
    with pytest.raises(ValueError, match="the 128 tokens of a batch, got 3"):
        training._words(settings)


def test_tables_show_speed_memory_and_where_time_goes(measured: Report):
    page = measured.page("anymax bench training").markdown()
    assert page.count("|  | parameters | tokens/s | ratio | peak MiB | ratio |\n") == len(measured.comparisons)
    torchs, ours = measured.comparisons[1].entries
    # A batch has 128 tokens.
    speed = f"{128e3 / ours.timing.milliseconds.median:.0f}"
    assert f"| SM | 0.0M | {speed} | {number(1 / ours.timing.ratio.median)} `" in page
    assert "|  | SM of torch's modules | SM |\n" in page and "| optimizer | " in page
    assert f"| together | {digits(sum(torchs.parts.values()))} | {digits(sum(ours.parts.values()))} |" in page
    assert "Tried for SM of torch's modules, milliseconds: all scores at once" in page
    assert "drawn by Zipf's law" in page and "200 words" in page
    assert ("transformers is not installed" in page) != post_editor_twin.is_installed()


def test_without_transformers_no_post_editor_is_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(post_editor_twin, "is_installed", lambda: False)
    assert SETTINGS.edits == () and SETTINGS.num_steps == 6
    notes = training._notes(SETTINGS, BANDS, training._words(SETTINGS))
    assert "transformers is not installed, so no post-editor was compared with its model" in notes


def test_the_command_measures_and_writes_what_is_asked(
    measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(training, "measure", lambda settings, announce: asked.append(settings) or measured)
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    options = ["--quick", "--corpus", "my books", "--threads", "1", "--output", str(page), "--json", str(numbers)]
    assert cli.main(["bench", "training", *options]) == 0
    assert asked == [training.quick(threads=1, corpus="my books")]
    command = "anymax bench training --quick --corpus 'my books' --threads 1"
    assert page.read_text().startswith(f"# Benchmark: training\n\n```\n$ {command}\n")
    assert json.loads(numbers.read_text())["command"] == command


def test_a_number_of_threads_below_one_is_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        training.quick(threads=0)
