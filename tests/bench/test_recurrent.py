"""The bench of recurrent networks at tiny sizes: who is compared with whom, and how it is shown. Never how fast."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anymax import cli
from anymax.bench.harness.report import Report
from anymax.bench.harness.steps import median_parts
from anymax.bench.harness.timing import Budget
from anymax.bench.recurrent import benchmark as recurrent
from anymax.bench.recurrent import benchmark as recurrent_masks
from anymax.bench.recurrent import lengths as recurrent_lengths
from anymax.bench.recurrent import settings as recurrent_settings
from anymax.bench.recurrent.lengths import drawn_against_mean, first_meetings
from anymax.bench.recurrent.settings import Settings, body_of
from anymax.bench.recurrent.trainee import AWDTrainee, Parts, PlainTrainee, RecurrentTrainee
from anymax.bench.recurrent.twin import MixedOutput, PickedOutput, plain_of, with_output
from anymax.models import AWDLSTM, LSTMConfig
from anymax.models.lstm.config import DROPOUTS
from anymax.recipes import merity, yang
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AveragedSGDConfig, SGDConfig
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig
from anymax.vocabulary import FullOutputConfig, MixtureOutputConfig

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = 60
NETWORK, MIXTURE = merity.ptb().toy(), yang.ptb().toy()
TINY = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)
SETTINGS = Settings(
    words=WORDS,
    network=NETWORK,
    mixture=MIXTURE,
    mixture_block=6,
    drawn=8,
    together=2,
    threads=1,
    budget=TINY,
    part_steps=2,
)
WHOLE, NEW, DRAWN, MIXED, MASKS = range(5)


@pytest.fixture(scope="module")
def measured() -> Report:
    return recurrent.measure(SETTINGS)


def batches(number: int = 3, *, rows: int = 4, block: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(WORDS, (2, rows, block), generator=generator)) for _ in range(number)]


def unregularized(config: RunConfig) -> RunConfig:
    """The same recipe with every rate, penalty and decay at zero."""
    task = LanguageModelingConfig.of(config.task)
    body = replace(task.model.body, **dict.fromkeys(DROPOUTS, 0.0), activation=0.0, temporal_activation=0.0)
    output = task.model.output
    if isinstance(output, MixtureOutputConfig):
        output = replace(output, latent_dropout=0.0)
    model = replace(task.model, body=body, output=output)
    return replace(config, task=replace(task, model=model), optimizer=replace(config.optimizer, weight_decay=0.0))


def ours(config: RunConfig = NETWORK) -> AWDTrainee:
    return AWDTrainee("ours", recurrent.build(config, WORDS), config, batches())


def plain(config: RunConfig = NETWORK) -> PlainTrainee:
    model = plain_of(recurrent.build(config, WORDS))
    return PlainTrainee("plain", model, config.optimizer.lr, config.clip, batches())


def test_every_comparison_is_made(measured: Report):
    names = [[entry.name for entry in one.entries] for one in measured.comparisons]
    assert names[WHOLE] == [recurrent.PLAIN, recurrent.OURS]
    assert names[NEW] == [recurrent_lengths.KNOWN, recurrent_lengths.NEW]
    assert names[DRAWN] == [recurrent_lengths.FIXED, recurrent_lengths.DRAWN]
    assert names[MIXED] == ["eager, all words mixed", "eager, target picked first", "MixtureOutput"]
    assert names[MASKS][:2] == ["F.dropout", "element_dropout"] and "copies" in names[MASKS][2]


def test_announcements_are_as_many_as_promised():
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_against_plain", "_lengths", "_mixture"):
            patch.setattr(recurrent, name, lambda job, settings: [])
        patch.setattr(recurrent, "masks", lambda *_: [])
        recurrent.measure(SETTINGS, told.append)
    assert len(told) == SETTINGS.num_steps


def test_entries_are_whole(measured: Report):
    for one in measured.comparisons:
        assert one.entries[0].timing.ratio.median == 1.0
        assert all(entry.timing.rounds >= 2 and entry.timing.milliseconds.median > 0 for entry in one.entries)
    for entry in measured.comparisons[WHOLE].entries:
        assert entry.parts is not None and all(entry.parts[name] > 0 for name in ("recurrences", "clip", "optimizer"))
    torchs, awd = (entry.parts for entry in measured.comparisons[WHOLE].entries)
    for name in ("weight_masks", "dropouts", "penalties"):
        assert torchs[name] == 0 < awd[name]


def test_a_mixture_that_holds_all_scores_takes_more_memory():
    """Every expert's scores for every word are 12,000 numbers here, more than the model has."""
    settings = replace(SETTINGS, words=500, mixture_block=8)
    peaks = {entry.name: entry.num_bytes for entry in recurrent._mixture("job", settings).entries}
    assert peaks["eager, all words mixed"] > peaks["eager, target picked first"] > peaks["MixtureOutput"]


def test_the_whole_bench_measures_the_recipes():
    settings = Settings()
    assert (settings.network, settings.mixture, settings.words) == (merity.ptb(), yang.ptb(), 10_000)
    assert recurrent_settings.widths_of(settings.network) == "400 / 1150 / 1150 / 400"
    assert recurrent_settings.shape_of(settings.network) == (20, 70)
    assert recurrent_settings.widths_of(settings.mixture) == "280 / 960 / 960 / 620"
    for config in (settings.network, settings.mixture, recurrent_settings.quick().network):
        body = body_of(config)
        assert all(getattr(body, name) > 0 for name in (*DROPOUTS, "activation", "temporal_activation"))
        assert isinstance(config.optimizer, AveragedSGDConfig) and config.clip == 0.25


def test_the_quick_bench_has_narrow_models_that_can_be_built():
    settings = recurrent_settings.quick()
    assert recurrent_settings.widths_of(settings.network) == "100 / 287 / 287 / 100"
    assert recurrent_settings.shape_of(settings.network) == (10, 35)
    assert recurrent_settings.widths_of(settings.mixture) == "70 / 240 / 240 / 155"
    assert recurrent.build(settings.mixture, settings.words).output.num_experts == 5


@pytest.mark.parametrize("chunk", [None, 16])
def test_without_regularizers_both_sides_learn_the_same(chunk: int | None):
    """A comparison of time means nothing between different results."""
    config = unregularized(NETWORK)
    one, other = ours(config), plain(config)
    other.model.chunk = chunk
    losses = [one() for _ in range(6)]
    assert [other() for _ in range(6)] == pytest.approx(losses, rel=1e-4)
    assert len(set(losses)) == 6


def test_regularizers_are_on_in_what_is_measured():
    one, other = ours(), plain()
    assert one() > other() + 0.01
    assert one.model.penalty is not None and one.optimizer.is_averaging


@pytest.mark.parametrize("kind", [MixedOutput, PickedOutput])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_eager_mixture_computes_the_same(kind: type, reduction: str):
    model = recurrent.build(unregularized(MIXTURE), WORDS).double()
    twin = with_output(model, kind)
    assert isinstance(twin.output, kind) and twin.output.table is twin.input.table
    assert twin.output.table is not model.output.table
    (ids, target), *_ = batches()
    for one in (model, twin):
        one(ids, target, reduction).backward()
    torch.testing.assert_close(twin(ids, target, reduction), model(ids, target, reduction))
    gradients = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad)


def test_an_eager_mixture_drops_the_same_numbers():
    model = recurrent.build(MIXTURE, WORDS)
    (ids, target), *_ = batches()
    losses = []
    for one in (model, with_output(model, MixedOutput), with_output(model, PickedOutput)):
        torch.manual_seed(3)
        losses.append(one(ids, target).item())
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.parametrize("make", [ours, plain, lambda: ours(MIXTURE), lambda: ours(unregularized(NETWORK))])
def test_a_step_taken_in_parts_is_a_step(make):
    whole, parted = make(), make()
    for seed in range(3):
        torch.manual_seed(seed)
        whole()
        torch.manual_seed(seed)
        parted.parts()
    for ours, theirs in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-4)


def test_medians_of_parts_are_taken_one_by_one():
    steps = [Parts(words=1.0, clip=5.0), Parts(words=3.0, clip=4.0), Parts(words=2.0, clip=9.0)]
    assert median_parts(steps) == Parts(words=2.0, clip=5.0)


def test_averages_are_held_from_the_first_step_on():
    averaging, bare = ours(), ours(replace(NETWORK, optimizer=SGDConfig(1.0)))
    for trainee in (averaging, bare):
        trainee()
    num_bytes = 4 * sum(parameter.numel() for parameter in bare.model.parameters())
    assert bare.held_bytes == num_bytes and averaging.held_bytes == 2 * num_bytes


def test_torch_is_taken_at_the_settings_that_were_fastest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recurrent, "CHUNK_SIZES", (16, 32, 64))
    one = recurrent._against_plain("job", SETTINGS)
    optimizers, chunks = one.sweeps
    assert list(optimizers.tried) == ["fused", "foreach"]
    # A batch has 32 words.
    assert list(chunks.tried) == [recurrent.ALL_SCORES, "batch_chunk_size=16", "batch_chunk_size=32"]
    assert all(sweep.tried[sweep.chosen] == min(sweep.tried.values()) for sweep in one.sweeps)
    assert one.entries[0].setting == f"{optimizers.chosen}, {chunks.chosen}" and one.entries[1].setting == ""


class Counting(RecurrentTrainee):
    """Takes a second for each word, two for those of a length it meets for the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        self.now = 0.0
        monkeypatch.setattr(recurrent_lengths.time, "perf_counter", lambda: self.now)

    def step(self, ids: Tensor, target: Tensor) -> float:
        length = ids.shape[1]
        self.now += target.numel() * (1 if length in self.steps else 2)
        self.steps.append(length)
        return 0.0

    _loss = _staged_loss = _clip = _update = None


def test_a_length_is_new_once(monkeypatch: pytest.MonkeyPatch):
    trainee = Counting(monkeypatch)
    known, new = first_meetings("job", trainee, [batches(1, block=length)[0] for length in (5, 7, 6)]).entries
    assert trainee.steps == [5, 5, 7, 7, 6, 6]
    assert (known.timing.milliseconds.median, new.timing.milliseconds.median) == (1e6, 2e6)
    assert new.timing.ratio.low == new.timing.ratio.high == 2.0 and new.timing.rounds == 3


def test_drawn_lengths_are_compared_word_by_word(monkeypatch: pytest.MonkeyPatch):
    trainee = Counting(monkeypatch)
    lengths = [3, 9, 9, 8, 4, 5, 8]
    batch_of = {length: batches(1, block=length)[0] for length in {*lengths, 7}}
    # No length is new, that of the mean aside, whose first step is not timed.
    trainee.steps = list(lengths)
    fixed, drawn = drawn_against_mean("job", trainee, lengths, batch_of, together=3).entries
    taken = trainee.steps[len(lengths) :]
    # The kinds take turns step by step, in any order.
    pairs = [set(taken[i : i + 2]) for i in range(1, 13, 2)]
    assert taken[0] == 7 and len(taken) == 13 and pairs == [{7, length} for length in lengths[:6]]
    assert drawn.timing.rounds == 2 and drawn.timing.ratio.median == 1.0
    assert fixed.timing.milliseconds.median == drawn.timing.milliseconds.median == 1e6


def test_lengths_are_those_of_a_training(measured: Report):
    lengths = SETTINGS.lengths
    assert len(lengths) == 8 and len(set(lengths)) > 2 and lengths == SETTINGS.lengths
    assert any(f"from {min(lengths)} to {max(lengths)}" in note for note in measured.notes)
    known = measured.comparisons[NEW].entries[0]
    assert known.timing.rounds == len(set(lengths) - {8})


def test_our_mask_is_not_kept():
    entries = recurrent_masks.masks("job", (40, 20), 0.5, TINY).entries
    torchs, ours, copy = (entry.num_bytes for entry in entries)
    num_bytes = 4 * 4 * (40**2 + 20**2)
    assert torchs > 1.2 * num_bytes and copy == num_bytes
    # But for two seeds.
    assert num_bytes <= ours < 1.05 * num_bytes


def test_tables_show_time_memory_and_where_time_goes(measured: Report):
    page = measured.page("anymax bench recurrent").markdown()
    assert "$ anymax bench recurrent" in page and " | peak MiB | ratio |\n" in page
    assert "|  | plain torch | AWDLSTM |" in page and "| weight masks |  | " in page and "| together | " in page
    assert page.count("|  | ms per 1000 words | ratio |\n") == 2 and "|  | ms | ratio | extra MiB | ratio |" in page
    assert "Tried for torch.optim.SGD, milliseconds: fused: " in page
    assert "4 rows of 8 words" in page and "4 rows of 6 words" in page and "16 / 24 / 16 wide" in page
    assert "A step with a mixture of 3 softmaxes" in page and "nothing is compiled" in page


def test_memory_is_written_without_exponents(measured: Report):
    entries = tuple(
        replace(entry, num_bytes=num_bytes)
        for entry, num_bytes in zip(measured.comparisons[WHOLE].entries, (1520 * 2**20, 2**19), strict=True)
    )
    page = replace(measured, comparisons=(replace(measured.comparisons[WHOLE], entries=entries),)).page("command")
    assert "| 1520 |" in page.markdown() and "| 0.5 | 0.000 |" in page.markdown()


def test_numbers_are_written_in_full(measured: Report):
    found = json.loads(json.dumps(measured.page("anymax bench recurrent").as_dict()))
    assert found["command"] == "anymax bench recurrent" and len(found["comparisons"]) == 5
    torchs, awd = found["comparisons"][WHOLE]["entries"]
    assert torchs["timing"]["ratio"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    assert awd["parts"]["penalties"] > 0 and awd["num_bytes"] == measured.comparisons[WHOLE].entries[1].num_bytes


def test_the_command_measures_and_writes_what_is_asked(
    measured: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(recurrent, "measure", lambda settings, announce: asked.append(settings) or measured)
    page, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    options = ["--quick", "--threads", "1", "--output", str(page), "--json", str(numbers)]
    assert cli.main(["bench", "recurrent", *options]) == 0
    assert asked == [recurrent_settings.quick(threads=1)]
    command = "anymax bench recurrent --quick --threads 1"
    assert page.read_text().startswith(f"# Benchmark: recurrent\n\n```\n$ {command}\n")
    assert json.loads(numbers.read_text())["command"] == command


@pytest.mark.parametrize(
    ("options", "message"),
    [({"threads": 0}, "threads must be at least 1, got 0"), ({"drawn": 7}, "at least 2 \\* together, 8, got 7")],
)
def test_settings_that_cannot_be_measured_are_refused(options: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def with_layers(output: FullOutputConfig, *, tie: bool) -> AWDLSTM:
    task = LanguageModelingConfig.of(NETWORK.task)
    model = replace(task.model, output=output, tie=task.model.tie if tie else None)
    return recurrent.build(replace(NETWORK, task=replace(task, model=model)), WORDS)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: with_layers(FullOutputConfig(bias=True), tie=False), "FixedInput tied to a FullOutput"),
        (lambda: with_layers(FullOutputConfig(), tie=True), "must have a bias"),
        (lambda: recurrent.build(MIXTURE, WORDS), "FixedInput and MixtureOutput"),
    ],
)
def test_a_network_that_is_not_plain_is_refused(model, message: str):
    with pytest.raises(ValueError, match=message):
        plain_of(model())


def test_a_loss_that_is_not_finite_is_told():
    trainee = ours()
    with torch.no_grad():
        trainee.model.output.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="loss of ours must stay finite, got nan"):
        trainee()


def test_another_network_is_refused():
    task = LanguageModelingConfig.of(NETWORK.task)
    model = replace(task.model, body=LSTMConfig(16, hidden_dim=16, num_layers=1))
    with pytest.raises(ValueError, match="AWD-LSTM, got one of LSTMLM"):
        recurrent.build(replace(NETWORK, task=replace(task, model=model)), WORDS)
