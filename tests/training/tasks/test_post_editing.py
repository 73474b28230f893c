"""Post-editing as a task: learned by heart, begun from a BERT, reported beside leaving translations, and bad input."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics.ter import TER

from anymax.data import Pieces, Triplets, WordPieces
from anymax.evaluation.translation import count_changes
from anymax.models import BertConfig, PostEditorConfig, TransformerDecoderConfig, save_bert
from anymax.models.post_editing.sharing import BERT, PRESETS, SELF_TIED
from anymax.recipes import find
from anymax.training import (
    BertAdamConfig,
    Constant,
    PostEditingConfig,
    Ranks,
    RunConfig,
    open_post_editor,
    open_run,
    resume,
    train,
)
from anymax.training.tasks.post_editing.task import PostEditingTask
from anymax.training.tasks.translation.config import PairTokens, Search, TranslationOptions
from tests.data.triplets.test_triplets import write

pytestmark = pytest.mark.usefixtures("one_thread")

TEN = [
    ("press the key .", "drücken die Taste .", "drücken Sie die Taste ."),
    ("open the file .", "öffnen Sie den Datei .", "öffnen Sie die Datei ."),
    ("close all windows", "schließen alle Fenster", "schließen Sie alle Fenster"),
    ("a new layer", "eine neue Schicht", "eine neue Ebene"),
    ("the layer is new .", "die Schicht ist neu .", "die Ebene ist neu ."),
    ("see the file", "siehe die Datei", "siehe die Datei"),
    ("move it", "bewegen es", "verschieben Sie es"),
    ("click the key", "klicken den Taste", "klicken Sie auf die Taste"),
    ("all layers .", "alle Schichten .", "alle Ebenen ."),
    ("it is open", "es offen", "es ist geöffnet"),
]
SIZES = BertConfig(32, 2, 4, 64, max_positions=32, dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def triplets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triplets")
    for split in ("train", "dev", "test"):
        write(folder, split, TEN)
    return folder


def task_config(folder: Path, **changes) -> PostEditingConfig:
    data = Triplets(path=folder, pieces=Pieces(150, min_count=1, splitting="spaces"), most_target=20)
    usual = {"data": data, "model": PostEditorConfig(SIZES), "batching": PairTokens(400)}
    return PostEditingConfig(**usual | {"search": Search(beam=8, min_length=2, max_length=20)} | changes)


def run_config(task: PostEditingConfig, **changes) -> RunConfig:
    usual = {"steps": 150, "threads": 1, "device": "cpu", "evaluate_every": 75}
    return RunConfig(task, BertAdamConfig(4e-3), Constant(warmup=10), **usual | changes)


@pytest.fixture(scope="module")
def learned(triplets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned ten triplets by heart."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    with torch.random.fork_rng():
        train(run_config(task_config(triplets)), folder)
    return folder


def opened(config: PostEditingConfig, folder: Path) -> PostEditingTask:
    torch.manual_seed(0)
    return config.build(folder, Ranks(), seed=1, announce=lambda *_: None)


def test_ten_triplets_are_learned_by_heart_to_a_ter_of_zero(learned: Path):
    report = open_run(learned).task.report("test", announce=lambda *_: None)
    assert report.scores["ter"].value == 0 and report.scores["bleu"].value == pytest.approx(100)
    assert report.translations == [correction for _, _, correction in TEN]


def test_a_report_has_leaving_translations_as_they_are_beside(learned: Path):
    report = open_run(learned).task.report("test", announce=lambda *_: None)
    before = [translation for _, translation, _ in TEN]
    expected = TER(case_sensitive=True).corpus_score(before, [[correction for _, _, correction in TEN]]).score
    assert report.untouched["ter"].value == pytest.approx(expected) and expected > 10
    changes = report.changes
    assert (changes.better, changes.worse, changes.same, changes.untouched) == (9, 0, 1, 1)
    lines = "\n".join(report.lines())
    assert "9 got better, 0 got worse, 1 stayed, 1 of them unchanged" in lines and "case is counted" in lines
    for name in ("TER", "BLEU"):
        assert f"{name}: nrefs:1|case:mixed" in lines
    assert report.as_dict()["metrics"]["ter"] == 0
    ignored = open_run(learned).task.report("test", TranslationOptions(lowercase=True), announce=lambda *_: None)
    assert "case is ignored" in "\n".join(ignored.lines()) and "case:lc" in ignored.scores["ter"].signature


def test_a_comparison_begins_with_leaving_translations_as_they_are(learned: Path, tmp_path: Path):
    from anymax.cli.evaluate import write

    report = open_run(learned).task.report("test", announce=lambda *_: None)
    left = replace(report, translations=report.machine, scores=report.untouched)
    folders = [tmp_path / name for name in ("a1", "b1", "a2", "b2")]
    for folder, each in zip(folders, (report, left, left, report), strict=True):
        folder.mkdir()
        write(each, folder, "test")
    (table,) = task_config(tmp_path).comparison({"a": folders[::2], "b": folders[1::2]})
    first, *others = table.rows
    assert first[0] == "as it is" and first[2].startswith(f"{report.untouched['ter'].value:.2f} ±")
    assert [row[:2] for row in others] == [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    assert others[0][2].startswith("0.00 ±") and others[0][4:] == ("9", "0", "1")
    assert others[1][3] == others[2][3] == "1.000" and float(others[0][3]) == float(others[3][3]) < 0.01


def test_sentences_that_got_better_and_worse_are_counted_by_their_own_ter():
    references = ["a b c d", "a b c d", "a b c d", "a b c d"]
    before = ["a b c x", "a b c d", "x b c d", "a b x d"]
    after = ["a b c d", "a b c x", "a b c x", "a b x d"]
    changes = count_changes(before, after, references)
    assert (changes.better, changes.worse, changes.same, changes.untouched) == (1, 1, 2, 1)


def test_an_opened_run_corrects_lines_without_the_text_it_learned_from(learned: Path, tmp_path: Path):
    run = shutil.copytree(learned, tmp_path / "run")
    editor = open_post_editor([run, learned])
    sources, translations, corrections = map(list, zip(*TEN, strict=True))
    assert editor.correct(sources, translations) == corrections
    for wrong, message in (
        ((["a"], []), "sources and translations must be as many as each other, got 1 and 0"),
        ((["a", " "], ["b", "c"]), "line 8 must have a source, got an empty line"),
        ((["a"], [""]), "line 7 must have a translation, got an empty line"),
        ((["a"], ["die " * 33]), "line 7 must have a translation of at most the model's 32 positions, got 33"),
    ):
        with pytest.raises(ValueError, match=message):
            editor.correct(*wrong, first_line=7)
    with pytest.raises(ValueError, match="runs must be one folder at least"):
        open_post_editor([])


def test_training_begins_from_a_bert_and_its_word_pieces(triplets: Path, tmp_path: Path):
    pieces = WordPieces.train({word: 3 for triplet in TEN for part in triplet for word in part.split()}, 200)
    torch.manual_seed(5)
    bert = SIZES.build(len(pieces), pooler=True)
    save_bert(bert, tmp_path / "bert")
    pieces.save_files(tmp_path / "bert")
    begun = task_config(triplets, bert=str(tmp_path / "bert"), model=PostEditorConfig(SIZES, BERT))
    task = opened(begun, tmp_path / "new")
    assert task.prepared.pieces.vocabulary == pieces.vocabulary and task.prepared.pieces.splitting == "spaces"
    for name, parameter in task.model.encoder.named_parameters():
        assert parameter.equal(bert.get_parameter(name)), name
    block = task.model.decoder.blocks[1]
    assert block.feed_forward.inner.weight.equal(bert.encoder.blocks[1].feed_forward.inner.weight)
    # A run that was stopped before it saved anything begins from it too, one with a checkpoint does without.
    train(run_config(begun, steps=12, evaluate_every=None), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert opened(begun, tmp_path / "run").model.encoder.words.table.equal(bert.words.table)
    resume(tmp_path / "run")
    shutil.rmtree(tmp_path / "bert")
    assert not open_run(tmp_path / "run").task.model.encoder.words.table.equal(bert.words.table)


def test_a_bert_of_another_shape_is_refused_before_any_step(triplets: Path, tmp_path: Path):
    pieces = WordPieces.train({word: 3 for triplet in TEN for part in triplet for word in part.split()}, 200)
    save_bert(replace(SIZES, ffn_dim=32).build(len(pieces)), tmp_path)
    pieces.save_files(tmp_path)
    said: list[str] = []
    for kind, message in (
        (None, "bert must have the sizes of the encoder, but its ffn_dim is 32 and should be 64"),
        (
            "roberta",
            "must have model_type 'bert', got 'roberta'; anymax.models.bert reads encoders",
        ),
        ("distilbert", "must have model_type 'bert', got 'distilbert'"),
    ):
        if kind is not None:
            (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        config = task_config(triplets, bert=str(tmp_path))
        with pytest.raises(ValueError, match=message):
            config.build(tmp_path / "new", Ranks(), seed=1, announce=said.append)
    # No text was read.
    assert set(said) == {f"reading {tmp_path}"} and not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_sharing_is_refused(learned: Path, triplets: Path):
    other = run_config(task_config(triplets, model=PostEditorConfig(SIZES, PRESETS["cross_tied"])))
    with pytest.raises(
        ValueError, match=r"must fit the model, but the model lacks decoder\.blocks\.0\.cross_attention"
    ):
        open_run(learned, config=other)


def test_settings_that_cannot_work_are_refused(triplets: Path):
    for changes, message in (
        ({"goal": "ter", "decoded": 0}, "decoded must not be 0 with goal 'ter'"),
        ({"search": Search(max_length=32)}, "search.max_length must be below model.max_positions, 32, got 32"),
        ({"data": Triplets(path=triplets, most_target=32)}, "data.most_target must be below .*, 32, got 32"),
    ):
        with pytest.raises(ValueError, match=message):
            task_config(triplets, **changes)


def test_heads_can_be_looked_at(learned: Path):
    task = open_run(learned).task
    (observed,) = task.observe("valid", limit=3, seed=1)
    assert observed.weights.keys() == {"encoder", "decoder", "cross"}
    lengths = [
        (len(queries.units), len(keys.units))
        for queries, keys in zip(observed.queries["cross"], observed.keys["cross"], strict=True)
    ]
    for row, (queries, keys) in enumerate(lengths):
        weights = observed.weights["cross"][0][row]
        torch.testing.assert_close(weights[:, :queries, :keys].sum(-1), torch.ones(SIZES.num_heads, queries))
        assert not weights[:, :, keys:].any()


def test_the_small_bert_is_one_that_the_small_recipes_begin_from():
    small = find("bert.small")().task
    assert small.model == find("ape_small.self_tied")().task.model.encoder
    assert small.data.pieces.size == find("ape_small.self_tied")().task.data.pieces.size


def test_recipes_have_the_rows_of_the_ablation_at_both_sizes():
    for name, sharing in PRESETS.items():
        for file in ("ape", "ape_small"):
            model = find(f"{file}.{name}")().task.model
            assert model.sharing == sharing
            # The first row has another decoder, of the same sizes.
            body = model.decoder_config.body
            assert body.norm_first == isinstance(model.decoder, TransformerDecoderConfig) == (name == "transformer")
            sizes = ("model_dim", "num_layers", "num_heads", "ffn_dim", "dropout", "attention_dropout")
            assert all(getattr(body, size) == getattr(model.encoder, size) for size in sizes)
            assert model.max_positions == model.encoder.max_positions
    assert find("ape.large")().task.model.sharing == SELF_TIED and find("ape.large")().task.data.oversample == 35


def test_texts_have_the_sentence_ter_and_mark_what_the_post_edit_changed(learned: Path):
    task = open_run(learned).task
    (shown,), (again,) = (task.texts("test", limit=6, seed=4, announce=lambda _: None) for _ in range(2))
    assert shown == again and (shown.score, len(shown.lines)) == ("TER", 6)
    assert shown.headings == ("source", "machine translation", "correction", "post-edit")
    for line in shown.lines:
        *triplet, edited = line.texts
        assert tuple(triplet) in TEN
        assert line.score == TER(case_sensitive=True).sentence_score(edited.text, [triplet[2]]).score
        kept = [word for part, is_marked in edited.parts if not is_marked for word in part.split()]
        rest = iter(triplet[1].split())
        assert all(word in rest for word in kept)
        assert any(is_marked for _, is_marked in edited.parts) == (edited.text != triplet[1])


def test_your_own_lines_are_a_sentence_and_a_translation_with_a_tab_between(learned: Path):
    task = open_run(learned).task
    pairs = [(source, translation) for source, translation, _ in TEN] + [("<i>x</i> & \u202e", "<script>")]
    (shown,) = task.texts_for(["\t".join(pair) for pair in pairs], announce=lambda _: None)
    assert [line.texts[:2] for line in shown.lines] == pairs
    written = open_post_editor(learned).correct(*zip(*pairs, strict=True))
    assert [line.texts[2].text for line in shown.lines] == written
    assert "<i>" not in shown.html() and "<script>" not in shown.html()


@pytest.mark.parametrize("line", ["one text", "a\tb\tc", "\tb", "a\t ", ""])
def test_your_own_line_of_another_form_is_refused_by_its_number(learned: Path, line: str):
    with pytest.raises(ValueError, match="line 2 must"):
        open_run(learned).task.texts_for(["all layers .\talle Schichten .", line], announce=lambda _: None)
