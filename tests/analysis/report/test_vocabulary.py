"""What is shown of an output layer is what the layer says: its distributions, supports, experts, bands and curve."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anymax.analysis.report import next_words as report
from anymax.analysis.report import outputs
from anymax.analysis.report.next_words import BEFORE, LIKELIEST, NextWords, measure_next_words
from anymax.analysis.report.output_parts import FOLLOWS
from anymax.analysis.report.outputs import MOST_NAMED, Bandwise, Experts, Supports
from anymax.analysis.report.vocabulary import next_words, parts
from anymax.data.text.config import BPE, Words
from anymax.display import Chart, Table
from anymax.recipes import find
from anymax.training import open_run, train
from anymax.training.tasks.language_modeling.config import LanguageModelingConfig
from anymax.training.tasks.language_modeling.task import LanguageModelingTask
from anymax.transforms import PLIF
from anymax.vocabulary import AdaptiveOutput, FullOutput, MixtureOutput, SparseOutput

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = [
    "who is the lowest of the low and who is the newest of the new here ?",
    "the newest words are the widest words that they will ever see or say",
    "what do they see ? <b>",
]
RECIPES = {
    "plain": "ptb.linear",
    "sparse": "ptb.sparse",
    "mixture": "ptb.mixture_plif",
    "adaptive": "wikitext2.bands_8_54_38",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on a small text, one for each kind of output, and one of subwords."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 40))
    for name, recipe in RECIPES.items():
        make_run(folder, name, recipe, Words())
    make_run(folder, "subwords", "sotu.softmax_tied", BPE(size=48))
    make_run(folder, "spelled", "wikitext2.character_cnn_10k_spelled", Words(max_size=12))
    return folder


def make_run(folder: Path, name: str, recipe: str, units: Words | BPE) -> None:
    config = find(recipe)().toy()
    assert isinstance(config.task, LanguageModelingConfig)
    data = replace(config.task.data, path=folder / "text.txt", units=units, splitting="spaces")
    task = replace(config.task, data=data)
    train(replace(config, task=task, steps=2, epochs=None, log_every=1, evaluate_every=None), folder / name)


def open_language_model(folder: Path, name: str) -> LanguageModelingTask:
    """With weights as large as a longer training would make them."""
    task = open_run(folder / name).task
    assert isinstance(task, LanguageModelingTask)
    with torch.no_grad():
        for table in [p for n, p in task.model.output.named_parameters() if n.startswith("table")]:
            table.mul_(8)
    return task


def measure(task: LanguageModelingTask, **options: int) -> NextWords:
    return measure_next_words(task, "valid", announce=lambda text: None, **options)


@torch.no_grad()
def hidden_of(task: LanguageModelingTask, measured: NextWords) -> Tensor:
    """What the output layer reads, of a model that carries its state, or reads windows of one length, computed anew."""
    tokens = task.prepared.split("valid").tokens().long()
    assert (measured.start, measured.num_tokens) == (0, len(tokens))
    ids = torch.cat([torch.tensor([task.prepared.lexicon.eos]), tokens[:-1]])[None]
    model = task.model.eval()
    if model.carries_state:
        return model.hidden(ids)[0]
    block = task.windows().block
    assert task.windows().context == 0
    return torch.cat([model.hidden(part)[0] for part in ids.split(block, 1)])


def targets(task: LanguageModelingTask) -> Tensor:
    return task.prepared.split("valid").tokens().long()


@pytest.mark.parametrize("name", [*RECIPES, "subwords"])
def test_contexts_are_of_the_text_and_their_bars_those_of_log_probs(folder: Path, name: str) -> None:
    task = open_language_model(folder, name)
    measured = measure(task, contexts=5)
    words, tokens = task.prepared.lexicon.words, targets(task).tolist()
    log_probs = task.model.output.log_probs(hidden_of(task, measured)).detach()
    assert len(measured.contexts) == 5 and len({context.position for context in measured.contexts}) == 5
    for context in measured.contexts:
        at = context.position
        assert context.follows == words[tokens[at]]
        assert len(context.before) == BEFORE
        assert context.before == tuple(words[token] for token in tokens[at - BEFORE : at])
        of_context = log_probs[at].exp()
        best = of_context.topk(min(LIKELIEST, len(words)))
        kept = int((best.values > 0).sum())
        assert [each.prob for each in context.likeliest] == pytest.approx(best.values[:kept].tolist(), rel=1e-4)
        for each in context.likeliest:
            assert of_context[words.index(each.word)].item() == pytest.approx(each.prob, rel=1e-4)
        assert context.prob == pytest.approx(of_context[tokens[at]].item(), rel=1e-4)
        assert abs(context.rank - 1 - int((of_context > of_context[tokens[at]]).sum())) <= 1


def test_the_seed_decides_the_contexts(folder: Path) -> None:
    task = open_language_model(folder, "plain")
    one, again, other = (measure(task, seed=seed).contexts for seed in (1, 1, 2))
    assert one == again and one != other
    assert len(measure(task, contexts=10**6).contexts) == len(targets(task))
    with pytest.raises(ValueError, match="contexts must be at least 1"):
        measure(task, contexts=0)


def test_words_that_are_spelled_are_shown_as_the_model_reads_them(folder: Path) -> None:
    task = open_language_model(folder, "spelled")
    text = [word for line in LINES for word in [*line.split(), "<eos>"]]
    known = task.prepared.lexicon
    for context in measure(task, contexts=20).contexts:
        assert set(context.before) <= set(text)
        assert context.follows in known and all(each.word in known for each in context.likeliest)
        place = context.position % len(text)
        assert context.before == tuple((text * 3)[len(text) + place - BEFORE : len(text) + place])


@pytest.mark.parametrize("name", ["plain", "adaptive"])
def test_of_a_long_split_a_stretch_is_read_that_begins_with_a_line(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "TOKENS", 60)
    task = open_language_model(folder, name)
    words, tokens, eos = task.prepared.lexicon.words, targets(task).tolist(), task.prepared.lexicon.eos
    starts = set()
    for seed in range(6):
        measured = measure(task, seed=seed)
        starts.add(measured.start)
        assert tokens[measured.start - 1] == eos and 30 <= measured.num_tokens <= 60
        for context in measured.contexts:
            assert measured.start + BEFORE <= context.position < measured.start + measured.num_tokens
            assert context.follows == words[tokens[context.position]]
            before = tokens[context.position - len(context.before) : context.position]
            assert context.before == tuple(words[token] for token in before)
    assert len(starts) > 1


def test_lines_too_short_for_all_words_before_show_those_there_are(folder: Path) -> None:
    task = open_language_model(folder, "adaptive")
    task.config = replace(task.config, evaluation=replace(task.config.evaluation, windows="single", block=4))
    for context in measure(task).contexts:
        assert len(context.before) <= 4 and "<eos>" not in context.before[1:]


@pytest.mark.parametrize("name", ["sparse", "mixture", "adaptive"])
def test_blocks_change_nothing(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = open_language_model(folder, name)
    whole = measure(task)
    monkeypatch.setattr(outputs, "BLOCK_BYTES", 1)
    in_rows = measure(task)
    assert whole.contexts == in_rows.contexts
    match whole.of_output, in_rows.of_output:
        case Supports(), Supports():
            sizes = zip(whole.of_output.sizes, in_rows.of_output.sizes, strict=True)
            assert sum(one != other for one, other in sizes) < 0.05 * whole.num_tokens
        case Experts(), Experts():
            assert whole.of_output.average == pytest.approx(in_rows.of_output.average)
            assert whole.transform is not None and in_rows.transform is not None
            assert sum(whole.transform.counts) == sum(in_rows.transform.counts)
        case Bandwise(), Bandwise():
            masses = [[band.mass for band in found.bands] for found in (whole.of_output, in_rows.of_output)]
            assert masses[0] == pytest.approx(masses[1])
        case _:
            raise AssertionError("both must be of one kind")


def test_the_model_and_its_smoothing_are_as_they_were(folder: Path) -> None:
    task = open_language_model(folder, "sparse")
    task.model.train()
    output = task.model.output
    assert isinstance(output, SparseOutput)
    output.label_smoothing = 0.1
    measure(task)
    assert output.training and output.label_smoothing == 0.1


def test_supports_are_the_words_that_are_not_zero(folder: Path) -> None:
    task = open_language_model(folder, "sparse")
    measured = measure(task)
    assert isinstance(task.model.output, SparseOutput) and isinstance(measured.of_output, Supports)
    probs = task.model.output.log_probs(hidden_of(task, measured)).detach().exp()
    sizes = torch.count_nonzero(probs, 1)
    assert 0 < sizes.min() < sizes.max()
    # Computed in calls of another length, a word at the edge may fall on the other side.
    assert (torch.tensor(measured.of_output.sizes) - sizes).abs().max() <= 1
    assert (torch.tensor(measured.of_output.sizes) == sizes).double().mean() > 0.95
    missed = (probs.gather(1, targets(task)[:, None]) == 0).double().mean().item()
    assert measured.of_output.zero_targets == pytest.approx(missed, abs=0.02)
    for context, support in zip(measured.contexts, measured.of_output.of_contexts, strict=True):
        assert support.size == measured.of_output.sizes[context.position]
        assert len(support.words) == min(support.size, MOST_NAMED)
        assert context.likeliest == support.words[: len(context.likeliest)]
    chart, table = parts(measured)[1:]
    assert isinstance(chart, Chart) and isinstance(table, Table)
    assert sum(float(share or 0) for share in chart.columns["share"]) == pytest.approx(1)
    assert [row[1] for row in table.rows if isinstance(row, tuple)] == [
        str(support.size) for support in measured.of_output.of_contexts
    ]


def test_sizes_of_supports_are_counted_by_powers_of_two(folder: Path) -> None:
    measured = measure(open_language_model(folder, "sparse"))
    supports = Supports(1.5, (1, 2, 2, 3, 4, 5, 8, 9), 0.0, ())
    chart = parts(replace(measured, contexts=(), of_output=supports))[1]
    assert isinstance(chart, Chart)
    assert list(chart.columns["size"]) == ["1", "2", "4", "8", "16"]
    assert list(chart.columns["share"]) == [1 / 8, 2 / 8, 2 / 8, 2 / 8, 1 / 8]


def test_experts_weigh_as_the_prior_says(folder: Path) -> None:
    task = open_language_model(folder, "mixture")
    measured = measure(task)
    output = task.model.output
    assert isinstance(output, MixtureOutput) and isinstance(measured.of_output, Experts)
    weights = torch.softmax(hidden_of(task, measured) @ output.prior.weight.T, -1).detach()
    assert measured.of_output.average == pytest.approx(weights.mean(0).tolist(), rel=1e-4)
    for context, row in zip(measured.contexts, measured.of_output.of_contexts, strict=True):
        assert row == pytest.approx(weights[context.position].tolist(), rel=1e-4)
    chart = parts(measured)[1]
    assert isinstance(chart, Chart) and len(chart) == output.num_experts * (1 + len(measured.contexts))


def test_the_curve_is_the_transform_and_every_score_is_counted_once(folder: Path) -> None:
    task = open_language_model(folder, "mixture")
    output = task.model.output
    assert isinstance(output, MixtureOutput) and isinstance(output.transform, PLIF)
    with torch.no_grad():
        output.transform.weight.normal_()
    measured = measure(task)
    curve = measured.transform
    assert curve is not None and curve.transform == "PLIF"
    assert curve.values == pytest.approx(output.transform(torch.tensor(curve.scores)).tolist(), abs=1e-5)
    assert sum(curve.counts) == curve.num_tokens * output.num_experts * output.vocabulary_size
    assert sum(curve.follow) == curve.num_tokens * output.num_experts
    assert all(few <= many for few, many in zip(curve.follow, curve.counts, strict=True))
    scores = output.scores(hidden_of(task, measured)[: curve.num_tokens]).detach()
    assert curve.outside == pytest.approx((scores.abs() > output.transform.bound).double().mean().item(), abs=1e-4)
    half = (curve.scores[1] - curve.scores[0]) / 2
    assert (curve.scores[0] - half, curve.scores[-1] + half) == pytest.approx(
        [end.item() for end in scores.aminmax()], abs=1e-3
    )


def test_bands_share_the_probability_and_their_losses_make_that_of_the_text(folder: Path) -> None:
    task = open_language_model(folder, "adaptive")
    measured = measure(task)
    output = task.model.output
    assert isinstance(output, AdaptiveOutput) and isinstance(measured.of_output, Bandwise)
    bands, hidden = measured.of_output.bands, hidden_of(task, measured)
    log_probs = output.log_probs(hidden).detach().double()
    assert sum(band.mass for band in bands) == pytest.approx(1)
    assert sum(band.num_tokens for band in bands) == measured.num_tokens
    assert [band.size for band in bands] == list(output.bands.sizes)
    losses = -log_probs.gather(1, targets(task)[:, None])[:, 0]
    total = sum(band.num_tokens * band.loss for band in bands if band.loss is not None)
    assert total / measured.num_tokens == pytest.approx(losses.mean().item(), rel=1e-4)
    for band in bands:
        own = slice(band.first, band.first + band.size)
        is_in = (targets(task) >= own.start) & (targets(task) < own.stop)
        of_band = log_probs[:, own].logsumexp(1)
        assert band.mass == pytest.approx(of_band.exp().mean().item(), rel=1e-4)
        assert band.num_tokens == int(is_in.sum())
        if band.num_tokens:
            assert band.loss_of_band == pytest.approx(-of_band[is_in].mean().item(), rel=1e-4)


def test_an_output_without_anything_special_has_its_distributions_alone(folder: Path) -> None:
    task = open_language_model(folder, "plain")
    measured = measure(task)
    assert type(task.model.output) is FullOutput and measured.of_output is None and measured.transform is None
    (chart,) = next_words(task, "valid", source="checkpoints/step_2", announce=lambda text: None)
    assert isinstance(chart, Chart) and chart.source == "checkpoints/step_2"
    of_first = [place for place, number in enumerate(chart.columns["context"]) if number == 1]
    shown = [(chart.columns["word"][place], chart.columns["probability"][place]) for place in of_first]
    assert parts(measured)[0] == replace(chart, source="valid split, seed 1")
    first = measured.contexts[0]
    assert shown[: len(first.likeliest)] == [(each.word, each.prob) for each in first.likeliest]
    marked = [chart.columns["word"][place] for place in of_first if chart.columns["is"][place] == FOLLOWS]
    assert len(marked) == 1 and str(marked[0]).startswith(first.follows)


@pytest.mark.parametrize("name", RECIPES)
def test_all_of_it_is_json_and_a_small_page_with_words_escaped(folder: Path, name: str) -> None:
    task = open_language_model(folder, name)
    measured = measure(task, contexts=40)
    assert json.loads(json.dumps(asdict(measured), allow_nan=False))["num_tokens"] == measured.num_tokens
    html = "".join(part.html() for part in parts(measured) if isinstance(part, Chart | Table))
    assert "\\u003cb\\u003e" in html and "<b>" not in html and len(html) < 400_000


def test_a_model_that_broke_says_so(folder: Path) -> None:
    for name in RECIPES:
        task = open_language_model(folder, name)
        with torch.no_grad():
            next(parameter for parameter in task.model.output.parameters()).fill_(math.nan)
        with pytest.raises(ValueError, match=r"must be (finite )?numbers.*look for the step"):
            measure(task)
