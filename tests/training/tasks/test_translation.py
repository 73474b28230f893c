"""Translation as a task: its loss and scores by hand, shares of ranks, decoding in batches, opened runs, bad input."""

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu import sentence_chrf
from torch.nn.functional import log_softmax

from anymax.data import ParallelText, Words
from anymax.data.batches.batches import IGNORE_INDEX
from anymax.decoding.hypotheses import agreement
from anymax.decoding.penalties import AveragePenalty, GNMTPenalty, NoPenalty
from anymax.display import Texts
from anymax.evaluation.translation import score_translations
from anymax.models import Tie
from anymax.recipes import find
from anymax.training import Ranks, RunConfig, average_checkpoints, open_run, read_metrics, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.tasks.translation.config import PairTokens, Search, TranslationConfig, TranslationOptions
from anymax.training.tasks.translation.report import significance
from anymax.training.tasks.translation.task import Translated, TranslationTask
from anymax.training.tasks.translation.translating import open_translator, translate

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"threads": 1, "device": "cpu", "steps": 60, "evaluate_every": 20, "checkpoint_every": 20, "keep": 9}


def small(recipe: str = "drawn.copy", **changes) -> RunConfig:
    run = find(recipe)().toy()
    return replace(run, task=replace(run.task, **changes), epochs=None, **QUICK)


def opened(config: TranslationConfig, folder: Path) -> TranslationTask:
    torch.manual_seed(0)
    return config.build(folder, Ranks(), seed=1, announce=lambda *_: None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has begun to learn, chosen by BLEU."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small(goal="bleu"), folder)
    return folder


def test_a_config_refuses_what_cannot_work():
    task = find("multi30k.softmax")().task
    fits = replace(task.model, max_positions=256)
    for changes, said in (
        ({"goal": "bleu", "decoded": 0}, "decoded must not be 0 with goal 'bleu'"),
        ({"decoded": -1}, "decoded must be at least 0, got -1"),
        ({"data": replace(task.data, joint=False)}, r"data.joint must be True with model.share_input"),
        ({"model": replace(fits, max_positions=100)}, r"data.most_source must be at most .*, 100, got 256"),
        ({"model": fits, "data": replace(task.data, most_target=None)}, r"data.most_target must be .* 256, got None"),
        ({"model": replace(fits, max_positions=200), "data": replace(task.data, most_source=9, most_target=9)},
         r"search.max_length must be below model.max_positions, 200, got 200"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            replace(task, **changes)
    assert replace(task, model=fits).model.max_positions == 256
    for build, said in (
        (lambda: PairTokens(0), "max_tokens must be at least 1, got 0"),
        (lambda: Search(beam=0), "beam must be at least 1, got 0"),
        (lambda: Search(min_length=3, max_length=2), "min_length must be at most max_length, 2, got 3"),
        (lambda: TranslationOptions(tokenize="words"), "tokenize must be one of"),
        (lambda: TranslationOptions(alpha=1.0), "alpha is for the length penalty gnmt, got it with None"),
        (lambda: TranslationOptions(length_penalty="average", alpha=1.0), "alpha is for .* got it with average"),
    ):
        with pytest.raises(ValueError, match=said):
            build()


def test_options_of_an_evaluation_change_the_search_and_no_more():
    usual = Search(max_length=9, unknown=True)
    assert TranslationOptions().search(usual) == usual
    assert TranslationOptions(beam=2).search(usual) == replace(usual, beam=2)
    for name, penalty in (("none", NoPenalty()), ("average", AveragePenalty()), ("gnmt", GNMTPenalty())):
        assert TranslationOptions(length_penalty=name).search(usual) == replace(usual, length_penalty=penalty)
    assert TranslationOptions(length_penalty="gnmt", alpha=0.9).search(usual).length_penalty == GNMTPenalty(0.9)


def test_shares_of_ranks_add_up_to_the_step_of_one_process(tmp_path: Path):
    config = small().task
    alone = opened(config, tmp_path)
    both = [TranslationTask(config, alone.prepared, alone.model, Ranks(rank, 2), seed=1) for rank in (0, 1)]
    for batch, *shares in zip(alone.batches("train"), *(task.batches("train") for task in both), strict=True):
        step = alone.step(alone.model, batch, None)
        steps = [task.step(task.model, share, None) for task, share in zip(both, shares, strict=True)]
        assert sum(each.count for each in steps) == step.count == int((batch.target != IGNORE_INDEX).sum())
        torch.testing.assert_close(sum(each.loss_sum for each in steps), step.loss_sum)


def test_an_evaluation_is_the_loss_of_every_word_without_smoothing(tmp_path: Path):
    config = small("multi30k.softmax").task
    assert config.model.output.label_smoothing > 0
    task = opened(config, tmp_path)
    pairs, model = task.prepared.split("valid"), task.model.eval()
    eos, loss, count = task.prepared.target_units.lexicon.eos, 0.0, 0
    with torch.no_grad():
        for i in range(len(pairs)):
            source, target = pairs.source(i)[None].long(), pairs.target(i).long()
            ids = torch.cat([torch.tensor([eos]), target[:-1]])[None]
            scores = model.hidden(ids, model.encode(source))[0].double() @ task.model.output.table.T.double()
            loss -= float(log_softmax(scores, -1)[range(len(target)), target].sum())
            count += len(target)
        measured = task.evaluate(task.model, "valid")
    assert measured["loss"] == pytest.approx(loss / count, rel=1e-5)
    # In training it is smoothed.
    task.model.train()
    batch = next(iter(task.batches("train")))
    smoothed = task.step(task.model, batch, None).loss_sum
    task.model.eval()
    assert smoothed != task.step(task.model, batch, None).loss_sum


def test_bleu_is_that_of_greedy_translations_of_the_first_sentences(trained: Path):
    task = open_run(trained).task
    done = task.translate_split("valid", 8)
    lines = task.prepared.lines("valid")
    assert (done.sources, done.references) == (lines.sources[:8], lines.references[:8])
    by_hand = []
    eos, unk = task.prepared.target_units.lexicon.eos, task.prepared.target_units.lexicon.unk
    for i in range(8):
        memory = task.model.encode(task.prepared.split("valid").source(i)[None].long())
        words = [eos]
        while len(words) <= task.config.search.max_length:
            log_probs = task.model.output.log_probs(task.model.hidden(torch.tensor([words]), memory)[:, -1])[0]
            log_probs[unk] = -math.inf
            words.append(int(log_probs.argmax()))
            if words[-1] == eos:
                break
        by_hand.append(task.prepared.target_units.text([word for word in words[1:] if word != eos]))
    assert done.translations == by_hand
    bleu = score_translations(by_hand, lines.references[:8], tokenize="none")["bleu"].value
    assert task.evaluate(task.model, "valid")["bleu"] == pytest.approx(bleu)
    assert task.examples() == done.side_by_side()


def test_the_goal_bleu_keeps_the_largest(trained: Path):
    measured = [record for record in read_metrics(trained) if record["kind"] == "evaluation"]
    scores = [record["metrics"]["bleu"] for record in measured]
    assert max(scores) > min(scores)
    best = Checkpoints(trained / "checkpoints").best()
    assert best.metrics["bleu"] == max(scores) and best.step == measured[scores.index(max(scores))]["step"]


def test_decoding_can_be_left_out(tmp_path: Path):
    task = opened(small(decoded=0).task, tmp_path)
    with torch.no_grad():
        assert task.evaluate(task.model, "valid").keys() == {"loss"} and task.examples() == []


def test_examples_are_lines_that_fit_a_terminal():
    long = "a very long sentence " * 20
    done = Translated(["a b", long, "c", "d"], ["b", "", long, "e"], ["x", "y", "z", "w"], [])
    shown = done.side_by_side()
    assert shown[:3] == ["  source       a b", "  translation  b", "  reference    x"]
    assert len(shown) == 9 and max(map(len, shown)) <= 80
    assert shown[3].startswith("  source       a very long") and shown[3].endswith(" ...")


def test_what_is_observed_has_the_tokens_that_heads_look_from_and_at(trained: Path):
    task = open_run(trained).task
    seen = list(task.observe("valid", limit=18, seed=3))
    assert [len(each.queries["cross"]) for each in seen] == [16, 2]
    pairs = dict(zip(*task.prepared.lines("valid"), strict=True))
    for each in seen:
        assert each.queries["encoder"] == each.keys["encoder"] == each.keys["cross"]
        assert each.queries["decoder"] == each.keys["decoder"] == each.queries["cross"]
        for row, (source, target) in enumerate(zip(each.keys["cross"], each.queries["cross"], strict=True)):
            *words, end = source.units
            assert end == "<eos>" and target.units == ("<eos>", *pairs[" ".join(words)].split())
            for kind, (height, width) in {
                "encoder": (len(source.units),) * 2,
                "decoder": (len(target.units),) * 2,
                "cross": (len(target.units), len(source.units)),
            }.items():
                for layer in each.weights[kind]:
                    assert layer.shape[1] == 2
                    rows = layer[row, :, :height, :width].sum(-1)
                    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_translations_are_the_same_in_batches_of_any_size(trained: Path):
    task = open_run(trained).task
    search = Search(beam=4, max_length=10, batch_size=64)
    found = {
        size: task.translate_split("train", 70, search=replace(search, batch_size=size)).found for size in (1, 7, 64)
    }
    for size in (1, 7):
        same, ties, different = agreement(found[64], found[size])
        assert (different, same + ties) == (0, 70) and ties <= 3


def test_a_beam_of_one_ends_at_the_first_end(trained: Path):
    translator = open_translator(trained)
    lengths = []
    for penalty in (NoPenalty(), AveragePenalty()):
        found = translator.search_lines(
            ["ba ca da"], search=Search(beam=1, length_penalty=penalty, stop_when_full=False)
        )
        lengths.append(found[0][0])
    assert lengths[0] == lengths[1] and lengths[0].score == lengths[0].log_prob


def test_an_opened_translator_needs_neither_text_nor_cache_and_skips_empty_lines(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = open_run(trained).task
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "nothing"))
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))
    translator = open_translator(moved)
    done = task.translate_split("test", 4, search=task.config.search)
    first, second, *_ = done.sources
    assert translator.translate([first, "", "  ", second]) == [done.translations[0], "", "", done.translations[1]]
    assert translator.translate([]) == [] and not (tmp_path / "nothing").exists()
    # Best first, and the best is that of a search for one.
    (ranked,) = translator.search_lines([first], num_best=3)
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    assert translator.text(ranked[0]) == done.translations[0] and len({each.words for each in ranked}) == 3


def test_an_ensemble_has_the_mean_of_probabilities_and_averages_that_of_weights(trained: Path, tmp_path: Path):
    alone, other = open_translator(trained), open_translator(trained, which=20)
    both = replace(alone, models=[*alone.models, *other.models])
    line = ["ba ca da fa"]
    (ranked,) = both.search_lines(line)
    source = torch.tensor([[*alone.source_units.encode_line(line[0]), alone.source_units.lexicon.eos]])
    words = torch.tensor([[*ranked[0].words, alone.target_units.lexicon.eos]])
    ids = torch.cat([words[:, -1:], words[:, :-1]], 1)
    with torch.no_grad():
        probs = [model.output.log_probs(model.hidden(ids, model.encode(source))).exp() for model in both.models]
    mean = (probs[0] + probs[1]).double() / 2
    expected = mean[0].log().gather(1, words.T).sum()
    assert ranked[0].log_prob == pytest.approx(float(expected), rel=1e-4)
    assert open_translator([trained, trained]).translate(line) == alone.translate(line)
    averaged = open_translator(trained, average=2)
    weights = average_checkpoints(trained, last=2)
    for name, parameter in averaged.models[0].named_parameters(remove_duplicate=False):
        if name in weights:
            torch.testing.assert_close(parameter, weights[name])


def test_runs_that_cannot_translate_together_or_at_all_are_refused(trained: Path, tmp_path: Path):
    other = small(data=replace(small().task.data, units=Words(max_size=8)))
    train(replace(other, steps=1, evaluate_every=None, schedule=other.schedule), tmp_path / "other")
    with pytest.raises(ValueError, match=r"runs of an ensemble must have the same units, but those of .*other are not"):
        open_translator([trained, tmp_path / "other"])
    with pytest.raises(ValueError, match="runs must be one folder at least, got none"):
        open_translator([])
    train(replace(find("sotu.softmax_tied")().toy(), **{**QUICK, "steps": 1, "epochs": None}), tmp_path / "language")
    with pytest.raises(
        ValueError, match=r"run must be of a translator, got .*language \(LanguageModelingConfig\); any"
    ):
        open_translator(tmp_path / "language")
    with pytest.raises(ValueError, match=r"run must be of a language model, got .*which translates; use anymax trans"):
        open_run(trained).task.config.continue_text(trained, "", None)


def test_a_beam_wider_than_the_vocabulary_is_refused_before_training(trained: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"search.beam must be at most the 14 words of the target, got 15"):
        train(small(search=Search(beam=15, max_length=9)), tmp_path / "wide")
    with pytest.raises(ValueError, match="beam must be at most the vocabulary size, 14, got 15; lower it"):
        open_translator(trained).translate(["ba"], search=Search(beam=15))


def test_a_sentence_longer_than_the_model_is_named_by_its_line(tmp_path: Path):
    def config(most: int) -> RunConfig:
        task = small().task
        own = replace(task.data.without_set(), source=tmp_path / "a.en", target=tmp_path / "a.de", held_out=0.3)
        model = replace(task.model, max_positions=most)
        data = replace(own, most_source=most, most_target=most, units=Words())
        return small(data=data, model=model, search=replace(task.search, max_length=6))

    lines = ["ba ca", "da", "ba da ca", "ca ca ba", "da da", "ba", "ca", "ba ba", "ca da ca da ca da ca da", "ba ba"]
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ValueError, match=r"a\.en line 9 has 9 units with its <eos>, and the model has 8 positions"):
        train(config(8), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    train(replace(config(9), steps=1, evaluate_every=None), tmp_path / "run-2")
    translator = open_translator(tmp_path / "run-2")
    with pytest.raises(
        ValueError, match="line 12 must have at most the model's 9 positions, got 10 units with its end"
    ):
        translator.search_lines(["ba", "ba " * 9], first_line=11)
    with pytest.raises(ValueError, match="max_length must be at most the model's max_positions, 9, got 13"):
        translator.translate(["ba"], search=Search(max_length=50))


def test_text_that_does_not_pair_is_refused_with_its_place(tmp_path: Path):
    for name, lines in {"a.en": "x y\nz\nw\n", "a.de": "x\n\nw\n", "short.de": "x\nz\n"}.items():
        (tmp_path / name).write_text(lines)
    task, source = small().task, tmp_path / "a.en"
    own = task.data.without_set()
    for data, said in (
        (replace(own, source=source, target=tmp_path / "short.de"), r"got 3 and 2: .*a\.en line 3 has no translation"),
        (
            replace(own, source=source, target=tmp_path / "a.de"),
            r"a\.de line 2 must hold the translation of .*a\.en line 2",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            train(replace(small(), task=replace(task, data=data)), tmp_path / "run")
    with pytest.raises(ValueError, match="languages of multi30k must be two of en, de, fr, got en ro"):
        ParallelText(languages=("en", "ro"))


def test_a_named_set_gives_way_to_a_text_of_your_own(tmp_path: Path):
    task = find("multi30k.raw")().task
    assert task.about_to_change(["optimizer.lr", "data.units.size"]) == task
    own = task.about_to_change(["data.source", "data.target"]).data
    assert (own.form, own.languages, own.units) == (None, None, task.data.units)
    mine = replace(task, data=replace(own, path=Path("x.tsv"), languages=("de", "en")))
    assert mine.about_to_change(["data.path"]) == mine and mine.run_name("multi30k.raw") == "x"
    files = replace(task, data=replace(own, source=Path("a/news.de.gz"), target=Path("a/news.en.gz")))
    assert files.run_name("multi30k.raw") == "news" and task.run_name("multi30k.raw") == "multi30k.raw"
    assert task.why_incomparable(replace(task, data=replace(task.data, units=Words()))) is None
    assert "other sentences" in task.why_incomparable(mine)


def test_words_of_train_are_those_of_its_translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    task = opened(small().task, tmp_path)
    lines = task.prepared.lines("train").references
    assert task.config.num_train_words(lambda *_: None) == sum(len(line.split()) + 1 for line in lines)


def test_a_difference_is_tested_seed_by_seed(trained: Path, tmp_path: Path):
    from anymax.cli.evaluate import write

    task = open_run(trained).task
    report = task.report("test", announce=lambda *_: None)
    worse = replace(report, translations=["ba" for _ in report.translations])
    folders = [tmp_path / name for name in ("a1", "b1", "a2", "b2")]
    for folder, each in zip(folders, (report, worse, worse, worse), strict=True):
        folder.mkdir()
        write(each, folder, "test")
    table = significance({"a": folders[::2], "b": folders[1::2]})
    assert [row[:2] for row in table.rows] == [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    assert table.columns[3] == "p against a" and table.rows[3][3] == "1.000"
    bleu = score_translations(report.translations, report.references, tokenize="none")["bleu"].value
    assert str(table.rows[0][2]).startswith(f"{bleu:.2f} ±")


def test_sides_may_have_units_of_their_own(tmp_path: Path):
    task = small().task
    model = replace(task.model, share_input=False, tie=Tie())
    config = replace(task, model=model, data=replace(task.data, joint=False, target_units=Words(max_size=9)))
    train(replace(small(), task=config, steps=2, evaluate_every=1, schedule=small().schedule), tmp_path / "run")
    translator = open_translator(tmp_path / "run")
    assert (len(translator.source_units.lexicon), len(translator.target_units.lexicon)) == (14, 9)
    (hypotheses,) = translate(
        translator.models,
        [torch.tensor([*translator.source_units.encode_line("ba ca"), translator.source_units.lexicon.eos])],
        translator.search,
        eos=translator.target_units.lexicon.eos,
        unk=translator.target_units.lexicon.unk,
        source_eos=translator.source_units.lexicon.eos,
    )
    assert translator.translate(["ba ca"]) == [translator.text(hypotheses.best)]


def alone(texts: list[Texts]) -> Texts:
    (only,) = texts
    return only


def test_texts_are_those_of_the_configured_search_for_pairs_that_the_seed_draws(trained: Path):
    task, said = open_run(trained).task, list[str]()
    first, again, other = (alone(task.texts("valid", limit=5, seed=seed, announce=said.append)) for seed in (1, 1, 2))
    assert first == again != other and first.headings == ("source", "reference", "translation")
    done = task.translate_split("valid", search=task.config.search)
    whole = list(zip(done.sources, done.references, done.translations, strict=True))
    shown = [(source, reference, translation.text) for source, reference, translation in texts_of(first)]
    places = sorted(random.Random(1).sample(range(len(whole)), 5))
    assert shown == [whole[place] for place in places]
    assert said[-1] == "writing for valid: 5 of 5 sentences" and "beam" in first.note
    more = alone(task.texts("valid", limit=10_000, seed=1, announce=said.append))
    assert [line.texts[0] for line in more.lines] == done.sources


def texts_of(texts: Texts) -> list[tuple[str, ...]]:
    return [line.texts for line in texts.lines]


def test_scores_of_texts_are_those_of_sacrebleu_and_marks_are_the_words_that_differ(trained: Path):
    shown = alone(open_run(trained).task.texts("test", limit=9, seed=3, announce=lambda _: None))
    assert shown.score == "chrF"
    for line in shown.lines:
        _, reference, translation = line.texts
        assert line.score == sentence_chrf(translation.text, [reference]).score
        same = [word for part, is_marked in translation.parts if not is_marked for word in part.split()]
        rest = iter(reference.split())
        # What is not marked stands in the reference, in its order.
        assert all(word in rest for word in same)
        assert "".join(part for part, _ in translation.parts) == translation.text


def test_lines_of_your_own_are_translated_as_by_an_opened_run_and_kept_as_they_are(trained: Path):
    task, opened_run = open_run(trained).task, open_translator(trained)
    lines = ["a b c", "</script><b>c</b> \u202e \x1b[31m d", " d  a "]
    shown = alone(task.texts_for(lines, announce=lambda _: None))
    assert texts_of(shown) == list(zip(lines, opened_run.translate(lines), strict=True))
    assert "<b>" not in shown.html().replace("<button>", "") and "</script>" not in shown.html()


def test_a_line_of_your_own_without_words_is_refused_by_its_number(trained: Path):
    task = open_run(trained).task
    for lines, said in ((["a", " \t"], "line 2 must hold words"), ([], "lines must be one at least, got none")):
        with pytest.raises(ValueError, match=said):
            task.texts_for(lines, announce=lambda _: None)
