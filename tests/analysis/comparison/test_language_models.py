"""Several runs in one table: means and spreads over seeds, and what may be luck."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.analysis.comparison import language_models as comparison
from anymax.analysis.comparison.language_models import Chosen, InContext, Point, Result
from anymax.display import COLOURS, Noted
from anymax.evaluation import Bin, FrequencyTable


def result(recipe: str, seed: int, perplexity: float) -> Result:
    curve = (Point(1e5, 10.0, math.log(2 * perplexity)), Point(2e5, 20.0, math.log(perplexity)))
    bins = (Bin(None, 10, 25, 0.25, 9.0), Bin(10, 100, 75, 0.75, 3.0), Bin(100, None, 0, 0.0, None))
    frequency = FrequencyTable(bins, (replace(bins[0], loss=8.0 + seed), *bins[1:]))
    return Result(
        recipe, seed, math.log(perplexity), True, 900.0, 300.0, 1_000, 2e5, 100_000, 20.0, 50_000_000, curve, frequency
    )


NEAR = [result("a", 1, 100), result("a", 2, 104), result("b", 1, 102), result("b", 2, 106), result("c", 1, 150)]


def write_run(folder: Path, *, items: int, train_words: int, train_tokens: int) -> None:
    (folder / "evaluations").mkdir(parents=True)
    perplexity = {"loss": 5.0, "perplexity": math.exp(5)}
    bins = FrequencyTable((Bin(None, 10, 7, 1.0, 5.0),), (Bin(None, None, 7, 1.0, 5.0),)).as_dict()
    tested = {"perplexity": perplexity, "unigram": {"perplexity": 9.0}, "bigram": {"perplexity": 8.0}}
    tested |= {"by_frequency": bins, "train_words": train_words, "train_tokens": train_tokens}
    tested |= {"choices": {"accuracy": 0.25, "epsilon_perplexity": 90.0}}
    (folder / "evaluations" / "test.json").write_text(json.dumps(tested))
    summary = {"items": items, "steps": 4, "num_parameters": 7, "training_seconds": 6.0, "peak_memory_bytes": 100}
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [
        {"kind": "train", "step": 2, "loss": 6.5, "items": items // 2, "items_per_second": items / 4, "log": {}},
        {"kind": "evaluation", "step": 2, "metrics": {"loss": 6.0}},
        {
            "kind": "train",
            "step": 4,
            "loss": 6.0,
            "items": items,
            "items_per_second": items / 8,
            "log": {"averaging": 1.0},
        },
        {"kind": "evaluation", "step": 4, "metrics": {"loss": 5.5}},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_run_of_pieces_is_counted_in_words_and_its_curve_in_seconds_of_training(tmp_path: Path):
    write_run(tmp_path / "run", items=1_200, train_words=1_000, train_tokens=1_500)
    read = comparison.read_result(tmp_path / "run", "bpe", 3)
    assert (read.words, read.seconds, read.parameters, read.memory) == (800, 6.0, 7, 100)
    assert [(point.words, point.loss) for point in read.curve] == [(400, 6.0), (800, 5.5)]
    assert read.chosen == (0.25, 90.0)
    assert [point.is_averaged for point in read.curve] == [False, True]
    assert read.frequency == FrequencyTable((Bin(None, 10, 7, 1.0, 5.0),), (Bin(None, None, 7, 1.0, 5.0),))
    assert [point.seconds for point in read.curve] == pytest.approx([2.0, 6.0])


def test_the_course_of_a_run_shows_where_it_overfits(tmp_path: Path):
    write_run(tmp_path / "run", items=1_200, train_words=400, train_tokens=400)
    losses = [(5.0, 5.5), (3.0, 5.0), (1.0, 6.0)]
    records = []
    for step, (train, valid) in enumerate(losses, start=1):
        # Two records before every evaluation, the second of three times as many words.
        for items, loss in ((step * 400 - 300, train + 3), (step * 400, train - 1)):
            log = {"kind": "train", "step": step, "loss": loss, "items": items, "items_per_second": 1.0, "log": {}}
            records.append(log)
        records.append({"kind": "evaluation", "step": step, "metrics": {"loss": valid}})
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"steps": 3}))
    shown = comparison.course_table([comparison.read_result(tmp_path / "run", "one", 1)])
    best = (f"{math.exp(5):.2f}", f"{math.exp(3):.2f}", "2.00")
    last = (f"{math.exp(6):.2f}", f"{math.exp(1):.2f}", "3.00")
    assert shown.rows == (("one", *best, *last),)


def test_perplexities_by_context_are_means_over_seeds_and_empty_where_no_windows_are_read():
    measured = [InContext(64, 48, math.log(90 + number), math.log(80 + number)) for number in range(4)]
    contexts = {0.75: [*measured, None]}
    valid, test = comparison.context_tables(NEAR, contexts)
    assert valid.columns == test.columns == ("recipe", "window", "0.75")
    assert test.rows == (("a", "64", Noted("80.50", "48")), ("b", "64", Noted("82.50", "48")), ("c", "", ""))
    assert valid.rows[0] == ("a", "64", Noted("90.50", "48"))
    assert "Perplexity of valid by context" in comparison.page(NEAR, "", contexts).markdown()
    assert "by context" not in comparison.page(NEAR, "", {}).markdown()


def test_losses_by_frequency_are_means_over_seeds_with_the_share_of_each_bin():
    by_word, by_previous = comparison.frequency_tables(NEAR)
    # The last bin has no words.
    assert by_word.columns == by_previous.columns == ("recipe", "10", "100")
    assert by_previous.rows[:2] == (("share of words", "25.0%", "75.0%"), ("a", "9.500", "3.000"))
    assert by_word.rows[1] == ("a", "9.000", "3.000") and [row[0] for row in by_word.rows[1:]] == ["a", "b", "c"]
    # A lexicon of fewer words counts otherwise, and has its own shares above it.
    fewer = replace(NEAR[0].frequency.by_word[0], share=0.5, loss=None)
    other = replace(NEAR[4], recipe="d", frequency=FrequencyTable((fewer,) * 3, NEAR[0].frequency.by_previous))
    rows = comparison.frequency_tables([*NEAR, other])[0].rows
    assert [row[0] for row in rows] == ["share of words", "a", "b", "c", "share of words", "d"]
    assert rows[4:] == (("share of words", "50.0%", "50.0%", "50.0%"), ("d", "", "", ""))
    sparse = replace(NEAR[0], recipe="sparse", loss=1.5, is_likelihood=False)
    assert comparison.frequency_tables([*NEAR, sparse]) == (by_word, by_previous)


def test_results_that_lack_something_are_named_with_their_folder(tmp_path: Path):
    write_run(tmp_path / "run", items=1_200, train_words=1_000, train_tokens=1_500)
    tested = json.loads((tmp_path / "run" / "evaluations" / "test.json").read_text())
    # The first is what `anymax evaluate --no-baselines` writes.
    for wrong in ({"unigram": None}, {"train_tokens": 0}, {"choices": {}}, {"by_frequency": 3}, {"perplexity": []}):
        (tmp_path / "run" / "evaluations" / "test.json").write_text(json.dumps(tested | wrong))
        with pytest.raises(ValueError, match=r"run must hold the results of a finished run, but .*; measure it with"):
            comparison.read_result(tmp_path / "run", "bpe", 3)
    (tmp_path / "run" / "summary.json").write_text("[" * 99_999)
    with pytest.raises(ValueError, match=r"summary\.json is damaged"):
        comparison.read_result(tmp_path / "run", "bpe", 3)


def test_a_row_has_the_mean_and_the_spread_over_seeds():
    row, _, alone = comparison.rows_of(NEAR)
    assert row.score == pytest.approx(102) and row.spread == pytest.approx(math.sqrt(8))
    assert alone.spread is None
    assert comparison.pooled_spread(comparison.rows_of(NEAR)) == pytest.approx(math.sqrt(8))
    assert comparison.pooled_spread(comparison.rows_of(NEAR[::2])) is None


def test_a_difference_that_seeds_explain_is_reported_from_one_they_do_not():
    rows = comparison.rows_of(NEAR)
    spread = comparison.pooled_spread(rows)
    assert [comparison.verdict(row, rows, spread) for row in rows] == ["best", "+2.0, within 2 errors", "+48.0"]
    assert comparison.verdict(rows[1], rows, None) == "+2.0"


def test_a_loss_that_is_no_likelihood_is_never_ranked_as_a_perplexity():
    sparse = replace(NEAR[0], recipe="sparse", loss=1.5, is_likelihood=False)
    rows = comparison.rows_of([*NEAR, sparse])
    assert rows[-1].score == 1.5
    assert comparison.verdict(rows[-1], rows, 1.0) == "a loss, no perplexity"
    assert comparison.verdict(rows[0], rows, 1.0) == "best"


def test_what_a_model_chooses_is_shown_where_some_have_no_perplexity():
    assert "accuracy" not in comparison.table(NEAR).columns and not comparison.needs_choices(NEAR)
    chosen = [replace(each, chosen=Chosen(0.2 + each.seed / 100, 100.0 + each.seed)) for each in NEAR]
    sparse = replace(chosen[0], recipe="sparse", loss=1.5, is_likelihood=False)
    shown = comparison.table([*chosen, sparse])
    table = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    assert [row["accuracy"] for row in table] == ["21.50%", "21.50%", "21.00%", "21.00%", "", ""]
    assert [row["eps-perplexity"] for row in table] == ["101.50", "101.50", "101.00", "101.00", "", ""]
    assert [row["test"] for row in table][-3] == "1.5000"
    page = comparison.page([*NEAR, sparse], "anymax compare a sparse").markdown()
    assert "| accuracy |" in page and "1e-06 added" in page
    # One seed that was not measured leaves the mean out.
    assert comparison.rows_of([chosen[0], NEAR[1]])[0].chosen is None


def test_the_page_has_a_row_for_each_recipe_and_for_models_that_count():
    page = comparison.page(NEAR, "anymax compare a b c").markdown()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert cells[:6] == ["recipe", "a", "b", "c", "interpolated bigram", "unigram"]
    assert cells[6:10] == ["recipe", "a", "b", "c"]
    assert cells[10:] == ["recipe", "share of words", "a", "b", "c"] * 2
    # The best evaluation on the way, the test split, the mean over seeds.
    assert "| a | 102.00 | 102.00 | 2.83 | best |" in page
    assert "2.83 pooled" in page and "anymax compare a b c" in page


def test_the_picture_is_drawn_with_every_recipe_that_has_a_perplexity(tmp_path: Path):
    pytest.importorskip("matplotlib")
    comparison.figure(NEAR).save(tmp_path / "picture.png")
    drawn = (tmp_path / "picture.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    sparse = replace(NEAR[0], recipe="sparse", loss=1.5, is_likelihood=False)
    comparison.figure([*NEAR, sparse]).save(tmp_path / "same.png")
    assert (tmp_path / "same.png").read_bytes() == drawn
    first, last = NEAR[0].curve
    averaged = replace(NEAR[0], curve=(first, replace(last, is_averaged=True)))
    comparison.figure([averaged, *NEAR[1:]]).save(tmp_path / "dot.png")
    assert (tmp_path / "dot.png").read_bytes() != drawn


def test_a_run_that_was_evaluated_once_is_seen_as_a_point(tmp_path: Path):
    image = pytest.importorskip("matplotlib.image")
    comparison.figure([replace(each, curve=each.curve[-1:]) for each in NEAR]).save(tmp_path / "once.png")
    comparison.figure([replace(NEAR[0], curve=NEAR[0].curve[-1:])]).save(tmp_path / "one.png")
    comparison.figure([replace(each, curve=()) for each in NEAR]).save(tmp_path / "never.png")
    once, never = (image.imread(tmp_path / name)[:, :760, :3] for name in ("once.png", "never.png"))
    colour = [int(COLOURS[0][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    for picture, is_seen in ((once, True), (never, False)):
        # Above the legend, which has the colours of all recipes.
        pixels = (abs(picture[:450] - colour) < 0.01).all(axis=2).sum()
        assert (pixels > 50) == is_seen


def test_without_any_perplexity_there_is_no_picture():
    sparse = [replace(each, loss=1.5, is_likelihood=False) for each in NEAR]
    assert comparison.page(sparse, "").figures == [] and len(comparison.page(NEAR, "").figures) == 1


@pytest.mark.parametrize(("low", "high"), [(148.0, 375.0), (60.0, 20_000.0), (100.0, 5_000.0), (150.0, 170.0)])
def test_the_axis_of_perplexities_has_ticks_from_where_curves_end_to_where_they_begin(low: float, high: float):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    curve = (Point(1e6, 1.0, math.log(high)), Point(2e6, 2.0, math.log(low)))
    comparison._draw_curves(axes, [replace(result("one", 1, low), curve=curve)], {"one": "black"}, "words")
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(ticks) >= 3 and ticks[0] < 1.8 * low and ticks[-1] > high / 1.8
